"""A run that is killed, stopped or cut short resumes, and ends with the same bytes."""

import json
import random
import shutil
import signal
import time

import pytest

from evorl.population.compiled import has_compiler

from .runs import (
    HALVES,
    Run,
    any_moment,
    configured,
    deterministic,
    newest,
    some_time,
    train,
    wait_for,
)

pytestmark = pytest.mark.slow
RANDOM = random.Random()  # really at random: what fails here is worth finding
KILLS = 10


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def whole(request, tmp_path_factory):
    """A run that nobody stops, and on how many ranks."""
    ranks = request.param
    return ranks, train(tmp_path_factory.mktemp("whole"), ranks=ranks, real=True)


def resumed(folder, ranks, *overrides):
    code, said = Run(folder, "resume", "runs/run", *overrides, ranks=ranks).wait()
    assert code == 0, said
    return said


def test_killed_at_random_moments(whole, tmp_path):
    """Ten kills of all processes: in training, in saving, while starting or resuming."""
    ranks, expected = whole
    kills, tries = 0, 0
    while kills < KILLS:  # a run that ends before its share of kills is followed by another
        folder, tries = tmp_path / str(tries), tries + 1
        directory = folder / "runs" / "run"
        run = Run(folder, "train", configured(folder), ranks=ranks)
        while kills < KILLS and some_time(RANDOM, run, directory):
            run.kill()
            run.launcher.wait()
            kills += 1
            begun = (directory / "config.yaml").exists()
            words = ("resume", "runs/run") if begun else ("train", configured(folder))
            run = Run(folder, *words, ranks=ranks)
        code, said = run.wait()
        assert code == 0 or "the run is finished" in said, said  # the last kill came too late
        assert deterministic(directory) == deterministic(expected)


def test_killed_in_the_middle_of_saving(whole, tmp_path):
    """At least twice: the checkpoint that was being written is still there, half done."""
    ranks, expected = whole
    saving, tries = 0, 0
    while saving < 2 and tries < 5:
        folder, tries = tmp_path / str(tries), tries + 1
        directory = folder / "runs" / "run"
        run = Run(folder, "train", configured(folder), ranks=ranks)
        for _ in range(4):
            saving += killed_while_saving(run, directory)
            run.launcher.wait()
            run = Run(folder, "resume", "runs/run", ranks=ranks)
        code, said = run.wait()
        assert code == 0 or "the run is finished" in said, said
        assert deterministic(directory) == deterministic(expected)
    assert saving >= 2


def killed_while_saving(run, directory):
    """Kill a run as soon as it begins another checkpoint; whether it had not come to its end."""

    def begun():
        """Checkpoints that are being written: newer than all that are done."""
        names = {path.name for path in (directory / "checkpoints").glob("generation-*")}
        done = max((name for name in names if not name.endswith(HALVES)), default="")
        return {name for name in names if name.endswith(".new") and name > done}

    old, processes, deadline = begun(), None, time.monotonic() + 60
    while run.launcher.poll() is None and time.monotonic() < deadline:
        if begun() - old:
            run.kill(processes)
            run.kill()  # and those that it has started meanwhile
            return bool(begun())
        old &= begun()  # what an earlier kill has left is cleaned up when the run resumes
        if processes is None and directory.exists():
            processes = run.processes()  # now, as it takes longer than to save
        time.sleep(0.0005)
    run.kill()
    return False


def stopped(folder, ranks, number):
    """A run that got a signal before its end, and how it took that: folder, exit code, words."""
    run = Run(folder, "train", configured(folder), ranks=ranks, real=ranks > 1)
    any_moment(RANDOM, folder / "runs" / "run", 2)
    run.launcher.send_signal(number)
    begun = time.monotonic()
    code, said = run.wait()
    assert time.monotonic() - begun < 60
    if (folder / "runs" / "run" / "summary.json").exists():  # over before the signal came
        return stopped(folder / "again", ranks, number)
    return folder, code, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks_within_seconds(whole, tmp_path, number):
    ranks, expected = whole
    folder, code, said = stopped(tmp_path, ranks, number)
    assert "Traceback" not in said or ranks > 1  # the launcher has its own
    if ranks == 1:
        assert code == 128 + number
        assert said.splitlines()[-1].startswith("interrupted; resume with evorl resume ")
    assert code != 0
    resumed(folder, ranks)
    assert deterministic(folder / "runs" / "run") == deterministic(expected)


@pytest.mark.parametrize(("wanted", "real"), [(KILLS, False), (1, True)], ids=["ten", "real"])
def test_a_rank_that_dies_is_started_again(tmp_path, whole, wanted, real):
    """Kills of one rank; the launcher starts all of them again, from the last checkpoint."""
    ranks, expected = whole
    if ranks == 1:
        pytest.skip("one process has no launcher that starts it again")
    kills, tries = 0, 0
    while kills < wanted:
        folder, tries = tmp_path / str(tries), tries + 1
        directory = folder / "runs" / "run"
        words = ("train", configured(folder), "--resume", "auto")
        run = Run(folder, *words, ranks=ranks, restarts=wanted, real=real)
        while kills < wanted and some_time(RANDOM, run, directory):
            alive = run.ranks()
            # Workers that are forked wait for their launcher when they are done, and if one is
            # killed then the launcher may wait for it for ever: multiprocessing's Event does.
            if (directory / "summary.json").exists():
                break
            if len(alive) == ranks:
                run.kill([RANDOM.choice(alive)])
                kills += 1
        code, said = run.wait()
        assert code == 0, said
        assert deterministic(directory) == deterministic(expected)


@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs g++")
def test_a_compiled_run_resumes_to_the_same_bytes(tmp_path):
    """A process that resumes compiles its program again, for groups of other sizes."""
    only = {"architecture": 1, "new_layer": 0, "parameters": 0, "hyperparameters": 0}
    options = [f"evolution.mutation.{name}={value}" for name, value in only.items()]
    options += ["compile=true", "network.hidden=[20, 36]"]
    directories = []
    for i, parts in enumerate([[2880], [1440, 2880]]):
        folder = tmp_path / str(i)
        for part, steps in enumerate(parts):
            words = ["resume", "runs/run"] if part else ["train", configured(folder), *options]
            again = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"} if part else {}
            budget = f"budget.env_steps={steps}"
            code, said = Run(folder, *words, budget, environment=again).wait()
            assert code == 0, said
            assert "torch.compile failed" not in said
            agents = json.loads(newest(folder / "runs" / "run")[1]["manifest.json"])["state"][
                "agents"
            ]
            widths = [tuple(agent["genome"]["architectures"]["q"]["hidden"]) for agent in agents]
            assert len(set(widths)) > 1  # where the next process begins
        directories.append(folder / "runs" / "run")
    assert deterministic(directories[0]) == deterministic(directories[1])


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
    wait_for(lambda: (directory / "config.yaml").exists())
    run.kill()
    run.launcher.wait()
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    assert "starting from the beginning" in resumed(tmp_path, ranks)
    assert deterministic(directory) == deterministic(expected)
