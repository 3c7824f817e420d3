"""Actors that join a run while it learns: who may, what they do, and how it ends."""

import re
import signal
import socket
import time

import psutil
import pytest

from evorl.config import parse_config
from evorl.errors import ConfigError
from evorl.training.joining import spread
from tests.distributed.runs import Run, generation_of, wait_for

from .test_processes import CONFIG, FREE, LONG, begun, metrics

OPEN = "actors.listen=127.0.0.1:0"
APEX = (FREE, "algorithm={name: dqn}", "replay={at: actors, kind: prioritized, share: agent}")
SAID = re.compile(r"^actors may join: evorl actor --connect (\S+) --token-file (\S+)$", re.M)


class Joining(Run):
    """An actor that joins the run of a folder."""

    def __init__(self, folder, name, *words, environment=None):
        text = wait_for_line(SAID, folder)
        self.token = folder / text[2]
        words = words or ("--token-file", self.token)
        super().__init__(
            folder / name, "actor", "--connect", text[1], *words, environment=environment
        )

    def said(self):
        return super().said() if self.output.exists() else ""


def wait_for_line(pattern, folder):
    """What a run in a folder said, as soon as it has."""

    def find():
        return [found for path in folder.glob("output-*") for found in pattern.finditer(read(path))]

    def read(path):
        return path.read_text()

    wait_for(find)
    return find()[-1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.fixture(autouse=True)
def nobody_left(monkeypatch):
    """However a test ends: what it has started is gone."""
    started = []
    make = Run.__init__
    monkeypatch.setattr(
        Run, "__init__", lambda self, *a, **k: started.append(self) or make(self, *a, **k)
    )
    yield
    for run in started:
        run.kill()


@pytest.mark.slow
def test_who_may_join_and_how_it_ends(tmp_path):
    """One run of one actor of its own, with two places for others."""
    opened = (f"actors.listen=127.0.0.1:{free_port()}", "mesh.actors=1", "actors.most=3")
    learner, directory = begun(tmp_path, FREE, LONG, *opened), tmp_path / "runs" / "run"
    first = Joining(tmp_path, "first")
    assert first.token.stat().st_mode & 0o777 == 0o600
    wait_for(lambda: "actor 1 of the run run: 4 agents in CartPole-v1" in first.said())
    wait_for(
        lambda: generation_of(directory) > 0 and metrics(directory)[-1]["actors"]["alive"] == 2
    )
    patient = Joining(tmp_path, "patient", "--token-file", first.token, "--wait", 60)
    wait_for(lambda: "actor 2 of the run" in patient.said())

    nobody = tmp_path / "nobody"
    nobody.write_text("f" * 64)
    for said, words, environment in (
        ("all 2 places are taken; end another guest, or allow more", (), {}),
        ("it has another token, or is no learner", ("--token-file", nobody), {}),
        ("it has another token, or is no learner", ("-q",), {"EVORL_TOKEN": "e" * 64}),
        ("the run's token is missing: set EVORL_TOKEN, or name its file", ("-q",), {}),
        ("EVORL_TOKEN: a token must be 32 characters", ("-q",), {"EVORL_TOKEN": "secret"}),
    ):
        code, line = Joining(tmp_path, "refused", *words, environment=environment).wait()
        assert code == 2
        assert re.fullmatch(f"error: .*{said}.*\n", line), line

    first.kill()
    assert wait_for_line(
        re.compile(r"warning: actor 1 \(\S+, process \d+\) is gone \(its conn"), tmp_path
    )
    second = Joining(tmp_path, "second")  # in the same place
    wait_for(lambda: "actor 1 of the run" in second.said())
    second.launcher.send_signal(signal.SIGINT)
    code, said = second.wait()
    assert (code, said.splitlines()[-1]) == (130, "interrupted")
    wait_for_line(
        re.compile(r"warning: actor 1 \(.*\) is gone \(it left\); the others play on"), tmp_path
    )
    third = Joining(tmp_path, "third", "--token-file", first.token, "--wait", 1)
    wait_for(lambda: "actor 1 of the run" in third.said())
    wait_for_line(
        re.compile(rf"^actor 1 \(.*, process {third.launcher.pid}\) has joined", re.M), tmp_path
    )

    learner.kill([psutil.Process(learner.launcher.pid)])
    before = time.monotonic()
    code, said = third.wait()
    assert code == 2
    assert "error: actor 1: the learner is gone (" in said
    assert "has not come back within 1 s (nobody answers at tcp://127.0.0.1:" in said
    assert time.monotonic() - before < 20  # three, and what a busy machine takes
    wait_for(lambda: "actor 2: the learner is gone (" in patient.said())
    played = metrics(directory)[-1]["env_steps"]
    resumed = Run(tmp_path, "resume", "runs/run", f"budget.env_steps={played + 6000}")
    code, said = resumed.wait()
    assert code == 0, said
    assert "actors play at their own pace; the run resumes, but" in said
    code, said = patient.wait()
    assert code == 0, said
    assert re.search(
        r"looking for it for 60 s\nactor \d of the run .*\nthe run is over: \d+ mess", said
    )
    learner.wait()


@pytest.mark.slow
def test_a_run_of_actors_that_join_only(tmp_path):
    """What they sent is what was taken, refused, or lost with one that died."""
    world = ("env.id=tests.actors.worlds:Fragile-v0", "env.max_failures=1000", "mesh.actors=0")
    learner = begun(tmp_path, FREE, OPEN, *world, "budget.env_steps=6000")
    actors = [Joining(tmp_path, str(number)) for number in range(2)]
    code, said = learner.wait()
    assert code == 0, said
    for slot in range(2):
        assert len(re.findall(rf"^actor {slot} \(\S+, process \d+\) has joined$", said, re.M)) == 1
    sent = 0
    for actor in actors:
        code, said = actor.wait()
        assert code == 0, said
        sent += int(re.search(r"^the run is over: (\d+) messages sent$", said, re.M)[1])
    rows = [row["actors"] for row in metrics(tmp_path / "runs" / "run")]
    known = sum(row["sent"] for row in rows)
    assert known == sum(row["messages"] + sum(row["refused"].values()) for row in rows)
    assert 0 <= sent - known <= 2 * 3  # two each wait to be taken, and one to be sent
    assert metrics(tmp_path / "runs" / "run")[-1]["failures"] > 5


def test_nobody_joins(tmp_path):
    code, said = begun(tmp_path, FREE, OPEN, "mesh.actors=0", "mesh.timeout=0.2").wait()
    assert code == 2
    assert "error: wait for an actor to join: it was not met within 0.2 s; " in said


def test_refusals(tmp_path):
    import yaml

    run = yaml.safe_load(CONFIG.replace("1e-2", "0.01"))
    for overrides, reason in (
        ((), "actors.listen: must be left out with actors.lockstep: nobody can join"),
        ((FREE, "actors.most=2"), "actors.most: must be more than the 2 that a learner has of its"),
        ((FREE, "actors.listen=5555"), "actors.listen: "),
        ((FREE, "actors.listen=a:70000"), "actors.listen: must have a port below 65536"),
        ((FREE, "algorithm.name=a2c", "mesh.actors=0"), "actors.listen: must be left out with al"),
        (APEX, "replay.at: must be learners with actors.listen: who joins keeps no"),
    ):
        with pytest.raises(ConfigError, match=reason):
            parse_config(run, [OPEN, *overrides])


def test_however_many_join_they_explore_all_over():
    assert [spread(number) for number in range(8)] == [
        0,
        1,
        1 / 2,
        1 / 4,
        3 / 4,
        1 / 8,
        5 / 8,
        3 / 8,
    ]
