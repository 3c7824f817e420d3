"""What a person sees of a run: console, W&B and TensorBoard, report and dashboard."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.reporting.console import Console as Console, show_warnings_on as show_warnings_on
    from evorl.reporting.generation_table import (
        Evaluated as Evaluated,
        birth_lines as birth_lines,
        headline as headline,
        hyperparameter_line as hyperparameter_line,
        ranking as ranking,
        time_line as time_line,
    )
    from evorl.reporting.report.page import render as render, write_page as write_page
    from evorl.reporting.report.run_data import read_payload as read_payload
    from evorl.reporting.report.server import (
        Dashboard as Dashboard,
        RunsFolder as RunsFolder,
        is_loopback as is_loopback,
    )
    from evorl.reporting.tracking.tracking import (
        Tracking as Tracking,
        refuse_missing as refuse_missing,
    )
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
