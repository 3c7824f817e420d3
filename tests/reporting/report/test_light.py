"""Reports load no torch: it would take longer than the report."""

import subprocess
import sys

from .runs import finished, going

CODE = """
import sys
from pathlib import Path
from evorl.reporting.report.page import render
from evorl.reporting.report.run_data import read_payload
from evorl.reporting.report.server import RunsFolder

folder = Path(sys.argv[1])
data = read_payload([folder / "family", folder / "going"])
render({"kind": "report", "data": data, "live": None}, "two runs")
assert len(RunsFolder(folder).entries()) == 2
print({"torch", "rich", "accelerate"} & {*sys.modules})
"""


def test_neither_a_report_nor_the_dashboard_load_torch(tmp_path):
    finished(tmp_path)
    going(tmp_path)
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
