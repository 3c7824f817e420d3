"""What lists and compares runs loads nothing that is slow: it would take longer than the answer."""

import subprocess
import sys

import pytest

from tests.synthetic import make_family_run, make_run

SLOW = ("torch", "pydantic", "numpy", "scipy", "rich")
SCRIPT = """
import sys
{code}
print(*sorted(set(sys.modules) & set({slow})))
"""


def loaded(code, folder="."):
    """Which of the slow modules there are after this code has run in a process of its own."""
    script = SCRIPT.format(code=code, slow=SLOW)
    words = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("module", ["files", "checkpoint", "directory", "status", "compare"])
def test_importing(module):
    assert loaded(f"import evorl.runs.{module}") == []


def test_listing_runs(tmp_path):
    make_family_run(tmp_path, "finished")
    stopped = make_family_run(tmp_path, "stopped")
    stopped.remove_summary()
    code = """
from pathlib import Path
from evorl.runs.status import find_runs
assert {run.state for run in find_runs(Path(sys.argv[1]))} == {"finished", "stopped"}
"""
    assert loaded(code, tmp_path) == []


def test_comparing_runs(tmp_path):
    make_run(tmp_path, "one", seed=1)
    make_run(tmp_path, "two", seed=2)
    code = """
from pathlib import Path
from evorl.runs.compare import compare_runs, read_runs
groups = compare_runs(read_runs(Path(sys.argv[1]).iterdir())).groups["CartPole-v1"]
assert groups[0].summary.runs == 2
"""
    assert set(loaded(code, tmp_path)) == {"numpy"}
