"""A run that is made to break its readers is listed as damaged, or as it is; the others stay."""

import json
import random
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from threading import Thread

import pytest

from evorl.errors import EvorlError
from evorl.reporting.page import render
from evorl.reporting.run_data import read_payload
from evorl.reporting.server import Dashboard, list_entry
from evorl.runs.status import find_runs

from .runs import finished

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from poisons import POISONS


@pytest.fixture
def runs(tmp_path):
    """A good run and one that is to be poisoned."""
    for name in ("good", "bad"):
        finished(tmp_path / "runs", name)
    (tmp_path / "outside").mkdir()
    return tmp_path / "runs"


@pytest.mark.parametrize("name", POISONS)
def test_poisons(runs, name):
    POISONS[name](random.Random(name), runs / "bad", runs.parent / "outside")
    states = {run.path.name: run for run in find_runs(runs)}
    assert states["good"].state == "finished"
    for run in states.values():
        json.dumps(run.to_json())
        shown = list_entry(run.path.name, run.path)
        render({"kind": "list", "data": {"runs": [shown]}, "live": None}, "list")
    for paths in ([runs / "bad"], [runs / "good", runs / "bad"]):
        try:
            data = read_payload(paths)
        except EvorlError:
            continue
        render({"kind": "report", "data": data, "live": None}, "report")
    assert not any((runs.parent / "outside").iterdir())


@pytest.fixture
def address(runs):
    with Dashboard(runs, port=0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


def asked(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return json.load(answer)


def test_a_name_that_is_not_utf8_is_shown_and_found(runs, address):
    POISONS["a name that is not UTF-8"](random.Random(0), runs / "bad", runs)
    listed = {run["name"] for run in asked(f"{address}list")["runs"]}
    assert listed == {"good", "bad\\udcff\\udcfe"}
    name = urllib.parse.quote("bad\\udcff\\udcfe")
    (run,) = asked(f"{address}data?run={name}")["runs"]
    run["path"].encode()  # as all names that a script may have to quote


def test_many_may_wait_to_be_answered():
    assert Dashboard.request_queue_size >= 200
