"""What a person sees of a run: console, W&B and TensorBoard, report and dashboard."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.reporting.console import Console as Console
    from evorl.reporting.console import show_warnings_on as show_warnings_on
    from evorl.reporting.generation_table import Evaluated as Evaluated
    from evorl.reporting.generation_table import birth_lines as birth_lines
    from evorl.reporting.generation_table import headline as headline
    from evorl.reporting.generation_table import hyperparameter_line as hyperparameter_line
    from evorl.reporting.generation_table import ranking as ranking
    from evorl.reporting.generation_table import time_line as time_line
    from evorl.reporting.report.page import render as render
    from evorl.reporting.report.page import write_page as write_page
    from evorl.reporting.report.run_data import read_payload as read_payload
    from evorl.reporting.report.server import Dashboard as Dashboard
    from evorl.reporting.report.server import RunsFolder as RunsFolder
    from evorl.reporting.report.server import is_loopback as is_loopback
    from evorl.reporting.tracking.tracking import Tracking as Tracking
    from evorl.reporting.tracking.tracking import refuse_missing as refuse_missing
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
