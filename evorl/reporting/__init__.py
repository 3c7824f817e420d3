"""What a person sees of a run: console, W&B and TensorBoard, report and dashboard."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.reporting.console import Console, as_text, own_lock, show_warnings_on
    from evorl.reporting.generation_table import (
        Evaluated,
        actors_line,
        headline,
        hyperparameter_line,
        ranking,
    )
    from evorl.reporting.group_view import GroupView
    from evorl.reporting.page import render, write_page
    from evorl.reporting.run_data import read_payload
    from evorl.reporting.server import Dashboard
    from evorl.reporting.tracking import Tracking, refuse_missing
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
