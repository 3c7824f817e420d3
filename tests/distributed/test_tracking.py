"""With several ranks the main one tracks, and only that."""

import os

import pytest

from tests.reporting.read_back import sessions

from .runs import train

pytestmark = pytest.mark.slow


def test_the_main_rank_tracks(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [*os.environ]:
        if name.startswith("WANDB_"):  # also the service of this process
            monkeypatch.delenv(name)
    run = train(tmp_path / "two", "tracking.wandb=offline", "tracking.tensorboard=true", ranks=2)
    (session,) = sessions(run)
    count = len((run / "metrics.jsonl").read_text().splitlines())
    assert session.generations == list(range(count))
    assert count == 6
    assert len([path for path in (run / "tensorboard").iterdir() if path.is_file()]) == 1
    assert "memory_percent" in session.stats  # W&B's own figures of the machine
    assert not (tmp_path / "two" / "wandb").exists()
