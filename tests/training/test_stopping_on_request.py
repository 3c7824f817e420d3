"""A run that is asked to stop does so when its next checkpoint is written, and loses nothing."""

import pytest

import evorl
from evorl.config import parse_config
from evorl.runs.directory import RunDirectory
from evorl.runs.status import state_of
from evorl.training.signals import Interrupted
from tests.reporting.tracked import BASE, lines, reproducible


class AskToStop(evorl.Callback):
    """As somebody at the dashboard, while generation 1 trains."""

    def on_generation_begin(self, event):
        if event.generation == 1:
            RunDirectory(event.directory).ask_to_stop()


def train(folder, callbacks=()):
    config = parse_config(BASE, [f"run.folder={folder}", "budget.env_steps=800"])
    return evorl.train(config, callbacks=callbacks)


def test_it_stops_after_its_generation_and_resumes_to_the_same_bytes(tmp_path):
    with pytest.raises(Interrupted) as raised:
        train(tmp_path, [AskToStop()])
    assert raised.value.exit_code == 130
    path = tmp_path / "run"
    state = state_of(path)
    assert (state.state, state.resumable, state.generation) == ("stopped", True, 1)
    assert not RunDirectory(path).asked_to_stop
    config = RunDirectory(path).config()
    evorl.train(config, resume=RunDirectory(path))
    assert [line["generation"] for line in lines(path)] == [0, 1, 2, 3]
    assert reproducible(path) == reproducible(train(tmp_path / "whole").directory)


def test_what_was_asked_of_an_earlier_process_is_forgotten(tmp_path):
    path = train(tmp_path).directory
    RunDirectory(path).ask_to_stop()
    config = parse_config(RunDirectory(path).config().model_dump(), ["budget.env_steps=1000"])
    evorl.train(config, resume=RunDirectory(path))
    assert state_of(path).state == "finished"
