"""A run that is killed, stopped or cut short goes on to the same bytes."""

import random
import shutil
import signal
import time

import pytest

from .runs import Run, any_moment, configured, deterministic, train, wait_for

pytestmark = pytest.mark.slow
RANDOM = random.Random()  # really at random: what fails here is worth finding


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def whole(request, tmp_path_factory):
    """A run that nobody stops, and on how many ranks."""
    ranks = request.param
    return ranks, train(tmp_path_factory.mktemp("whole"), ranks=ranks)


def resumed(folder, ranks, *overrides):
    code, said = Run(folder, "resume", "runs/run", *overrides, ranks=ranks).wait()
    assert code == 0, said
    return said


def test_killed_at_random_moments(whole, tmp_path):
    """One run, killed in every generation, and once more while it goes on from there."""
    ranks, expected = whole
    directory = tmp_path / "runs" / "run"
    run = Run(tmp_path, "train", configured(tmp_path), ranks=ranks)
    for generation in range(1, 6):
        any_moment(RANDOM, directory, generation)
        run.kill()
        run.launcher.wait()
        run = Run(tmp_path, "resume", "runs/run", ranks=ranks)
    code, said = run.wait()
    assert code == 0 or "the run is finished" in said, said  # it was killed too late
    assert deterministic(directory) == deterministic(expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks_within_seconds(whole, tmp_path, number):
    ranks, expected = whole
    directory = tmp_path / "runs" / "run"
    run = Run(tmp_path, "train", configured(tmp_path), ranks=ranks)
    any_moment(RANDOM, directory, 2)
    begun = time.monotonic()
    run.launcher.send_signal(number)
    code, said = run.wait()
    assert time.monotonic() - begun < 20
    assert "Traceback" not in said or ranks > 1  # the launcher has its own
    if ranks == 1:
        assert (code, said.splitlines()[-1]) == (128 + number, "interrupted")
    assert code != 0
    resumed(tmp_path, ranks)
    assert deterministic(directory) == deterministic(expected)


def test_a_rank_that_dies_is_started_again(tmp_path, whole):
    ranks, expected = whole
    if ranks == 1:
        pytest.skip("one process has no launcher that starts it again")
    directory = tmp_path / "runs" / "run"
    words = ("train", configured(tmp_path), "--resume", "auto")
    run = Run(tmp_path, *words, ranks=ranks, options=("--max_restarts", "3"))
    any_moment(RANDOM, directory, 3)
    run.kill([RANDOM.choice(run.ranks())])
    code, said = run.wait()
    assert code == 0, said
    assert deterministic(directory) == deterministic(expected)


def test_more_to_spend_is_as_if_it_had_always_been_there(whole, tmp_path):
    ranks, expected = whole
    train(tmp_path, "budget.env_steps=1440", ranks=ranks)
    resumed(tmp_path, ranks, "budget.env_steps=2880")
    directory = tmp_path / "runs" / "run"
    assert deterministic(directory) == deterministic(expected)


def test_on_other_ranks_too(whole, tmp_path):
    """With a replay for each agent it is even the same run."""
    ranks, expected = whole
    train(tmp_path, "budget.env_steps=1440", ranks=ranks)
    resumed(tmp_path, 3 - ranks, "budget.env_steps=2880")
    files, (_, checkpoint) = deterministic(tmp_path / "runs" / "run")
    others, (_, other) = deterministic(expected)
    assert files == others
    assert {k: v for k, v in checkpoint.items() if k != "manifest.json"} == {
        k: v for k, v in other.items() if k != "manifest.json"
    }


def test_killed_before_the_first_checkpoint(whole, tmp_path):
    ranks, expected = whole
    directory = tmp_path / "runs" / "run"
    run = Run(tmp_path, "train", configured(tmp_path), ranks=ranks)
    wait_for(lambda: (directory / "lineage.jsonl").exists())
    run.kill()
    run.launcher.wait()
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    assert "starting from the beginning" in resumed(tmp_path, ranks)
    assert deterministic(directory) == deterministic(expected)
