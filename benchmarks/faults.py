"""What actors and learners survive: each fault is made for real, and what it costs is measured.

    python benchmarks/faults.py                       # all of them, twenty minutes
    python benchmarks/faults.py --only kills stop     # some of them
    python benchmarks/faults.py --minutes 1 --seconds 20

kills      one of two actors is SIGKILLed every two seconds, for two minutes in four parts: every
           message is accounted for, and as many are taken as 80 % of those in between
stop       one of two actors is SIGSTOPped for 30 s: the other one keeps 90 % of its steps
learner    the learner is SIGKILLed: all are gone within ten seconds, and the run resumes
join       an actor joins while the run learns: seconds from its imports to its first message taken
slow       a learner that needs half a second for a message, for ten minutes: memory stays flat
malformed  1,000 messages made of a real one, at the level of actors and of the bus: each is counted

Environments count their steps in files, so that what the learner says of messages can be compared
with what was played. Prints the figures with their bars, and exits with 1 if one is missed; those
of all faults at full length are kept in benchmarks/results/faults.json.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from faulty import FOLDER, STEPS
from malformed import send_malformed
from throughput import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "faults.json"
PARTS, EVERY, QUIET = 4, 2.0, 15.0  # of the kills; seconds between two; and without any
STOPPED, WAIT, GENTLE = 30.0, 120.0, 16 * 2**20  # seconds; the same; bytes
CONFIG: dict[str, Any] = {
    "name": "run",
    "env": {"id": "faulty:Counted-v0", "num_envs": 8, "backend": "sync"},
    "algorithm": {"name": "impala", "rollout_steps": 16},
    "network": {"hidden": [32, 32], "activation": "tanh"},
    "population": {"size": 4},
    "evaluation": {"every": 1600, "source": "training", "confirm_episodes": 1, "final_episodes": 2},
    "budget": {"env_steps": 10**11},
    "mesh": {"actors": 2},
    "compile": False,
}
APEX: dict[str, Any] = {
    "algorithm": {"name": "dqn", "n_step": 3, "learn_step": 8, "learning_starts": 500},
    "replay": {"kind": "prioritized", "share": "agent"},
    "compile": "auto",
}
MESSAGE = 4 * 8 * 16  # environment steps


class Learner:
    """A run in a process of its own, with its actors."""

    def __init__(self, folder: Path, slow: float = 0.0, **sections: Any) -> None:
        self.folder, self.run = folder, folder / "runs" / "run"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        config = CONFIG | sections | {"run": {"folder": str(folder / "runs")}}
        (folder / "config.json").write_text(json.dumps(config))
        self.started: list[subprocess.Popen[bytes]] = []
        words = ["faulty.py", "learn", folder / "config.json", folder, slow]
        self.process = self.start("learner", *words)
        self.wait(lambda: (self.run / "metrics.jsonl").exists())

    def start(self, name: str, *words: Any) -> "subprocess.Popen[bytes]":
        """A command of Python's; what it says is in a file of this name."""
        own = {FOLDER: str(self.folder), "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        own["PYTHONPATH"] = f"{HERE}:{HERE.parent}"
        with (self.folder / name).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *map(str, words)],
                cwd=HERE,
                env=os.environ | own,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def join(self, name: str) -> "subprocess.Popen[bytes]":
        """An actor that joins."""
        self.wait(lambda: "actors may join" in self.said())
        found = re.search(r"--connect (\S+) --token-file (\S+)", self.said())
        assert found
        return self.start(name, "faulty.py", "join", *found.groups(), self.folder)

    def said(self, name: str = "learner") -> str:
        """What a process has said so far."""
        return (self.folder / name).read_text()

    def actors(self) -> list[psutil.Process]:
        """Those that it has started, the oldest first."""
        with suppress(psutil.Error, ValueError):
            (nursery,) = psutil.Process(self.process.pid).children()
            return sorted(nursery.children(), key=lambda own: own.create_time())
        return []

    def processes(self) -> list[psutil.Process]:
        """All that are alive, but for commands that have ended."""
        found = []
        for own in self.started:
            with suppress(psutil.Error):
                here = psutil.Process(own.pid)
                found += [here, *here.children(recursive=True)]
        return [own for own in found if alive(own)]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What was noted."""
        path = self.folder / name
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        """What its metrics say of actors, by generation."""
        return [row["actors"] for row in self.lines("runs/run/metrics.jsonl")]

    def rate(self, begin: float, end: float) -> float:
        """Messages taken per second between two times."""
        known = [
            (note["at"], sum(taken for _, taken in note["slots"].values()))
            for note in self.lines("heard")
            if begin <= note["at"] <= end
        ]
        (first, before), (last, after) = known[0], known[-1]
        return float((after - before) / (last - first))

    def steps(self, process: int) -> int:
        """That a process has played."""
        path = self.folder / "steps" / str(process)
        return int(STEPS.unpack(path.read_bytes())[0]) if path.exists() else 0

    def wait(self, condition: Callable[[], Any]) -> float:
        """Until it holds: how long that took."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() > begin + WAIT:
                raise SystemExit(f"waited {WAIT:g} s in vain:\n{self.said()[-3000:]}")
            time.sleep(0.02)
        return time.monotonic() - begin

    def end(self) -> None:
        """After the generation, as if the budget were spent."""
        (self.folder / "stop").touch()
        self.process.wait(WAIT)

    def kill(self) -> None:
        """All that is left."""
        for own in self.processes():
            with suppress(psutil.Error):
                own.kill()


@contextmanager
def learning(**options: Any) -> Iterator[Learner]:
    """A run, and nothing of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        learner = Learner(Path(folder), **options)
        try:
            yield learner
        finally:
            learner.kill()


def alive(process: psutil.Process) -> bool:
    """Neither gone nor only waiting to be looked after."""
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def kills(seconds: float, minutes: float) -> list[Figure]:
    """An actor is killed every two seconds."""
    with learning() as learner:
        learner.wait(lambda: len(learner.rows()) > 2)
        disturbed, quiet, deaths = [], [], 0
        for _ in range(PARTS):
            begin = time.time()
            time.sleep(QUIET)
            quiet.append(learner.rate(begin, begin := time.time()))
            for number in range(1, 1 + round(seconds / PARTS / EVERY)):
                time.sleep(max(0.0, begin + number * EVERY - time.time()))
                learner.wait(lambda: len(learner.actors()) == 2)
                learner.actors()[0].kill()
                deaths += 1
            disturbed.append(learner.rate(begin, time.time()))
        learner.end()
        rows, last = learner.rows(), learner.lines("runs/run/metrics.jsonl")[-1]
        total = {name: sum(row[name] for row in rows) for name in ("sent", "messages", "lost")}
        refused = sum(sum(row["refused"].values()) for row in rows)
        accounted = total["messages"] + refused + total["lost"] + rows[-1]["under_way"]
        own = learner.process.pid
        played = sum(
            learner.steps(int(path.name))
            for path in (learner.folder / "steps").iterdir()
            if int(path.name) != own
        )
        known = last["env_steps"] + MESSAGE * (total["lost"] + rows[-1]["under_way"])
        told = sum(row["gone"] for row in rows)
    return [
        Figure("kills: messages taken per second, undisturbed", statistics.mean(quiet), ""),
        Figure("kills: the same while actors are killed", statistics.mean(disturbed), ""),
        Figure(
            "kills: share of the messages",
            100 * statistics.mean(disturbed) / statistics.mean(quiet),
            " %",
            80,
        ),
        Figure("kills: actors killed", deaths, ""),
        Figure("kills: deaths that nobody was told of", abs(deaths - told), "", 0, True),
        Figure("kills: messages sent", total["sent"], ""),
        Figure("kills: taken", total["messages"], ""),
        Figure("kills: refused", refused, ""),
        Figure("kills: lost with who was killed", total["lost"], ""),
        Figure("kills: under way at the end", rows[-1]["under_way"], ""),
        Figure("kills: not accounted for", abs(total["sent"] - accounted), "", 0, True),
        # what an actor was about to play when it was killed, and both of them at the end
        Figure(
            "kills: steps in no message, for each death, in messages",
            (played - known) / MESSAGE / (deaths + 2),
            "",
            2,
            True,
        ),
    ]


def stop(seconds: float, minutes: float) -> list[Figure]:
    """One of two is stopped."""
    long = min(STOPPED, seconds)
    with learning() as learner:
        learner.wait(lambda: len(learner.rows()) > 2)
        stopped, other = learner.actors()

        def speed(length: float) -> float:
            begin, first = time.monotonic(), learner.steps(other.pid)
            time.sleep(length)
            return (learner.steps(other.pid) - first) / (time.monotonic() - begin)

        before = speed(long / 2)
        stopped.suspend()
        during = speed(long)
        frozen = learner.steps(stopped.pid)
        stopped.resume()
        back = learner.wait(lambda: learner.steps(stopped.pid) > frozen + 2 * MESSAGE)
        named = re.search(r"actor \d gives no sign of life", learner.said()) is not None
        learner.end()
    found = [
        Figure("stop: steps of the other one per second, before", before, ""),
        Figure("stop: while one is stopped", during, ""),
        Figure("stop: share that it keeps", 100 * during / before, " %", 90),
        Figure("stop: until the stopped one plays again", back, " s", 10, True),
    ]
    if long == STOPPED:
        found.append(Figure("stop: was it named", named, "", 1))
    return found


def learner(seconds: float, minutes: float) -> list[Figure]:
    """The learner is killed."""
    with learning(actors={"listen": "127.0.0.1:0"}) as learner:
        joined = learner.join("joined")
        learner.wait(lambda: len(learner.lines("first")) == 3)
        others = [own for own in learner.processes() if own.pid != learner.process.pid]
        learner.process.kill()
        gone = learner.wait(lambda: not any(map(alive, others)))
        code = joined.wait(WAIT)
        named = len(set(re.findall(r"error: actor (\d): the learner is gone", learner.said())))
        left = [path for path in learner.temporary.iterdir() if not path.name.startswith("torch")]
        played = learner.lines("runs/run/metrics.jsonl")[-1]["env_steps"]
        budget = f"budget.env_steps={played + 100_000}"
        resumed = learner.start("resumed", "-m", "evorl", "resume", learner.run, budget)
        again = resumed.wait(WAIT)
    return [
        Figure("learner: until all processes are gone", gone, " s", 10, True),
        Figure("learner: exit code of who had joined", code, "", 2),
        Figure("learner: of its own actors, how many named it", named, "", 2),
        Figure("learner: files left behind", len(left), "", 0, True),
        Figure("learner: exit code of evorl resume", again, "", 0, True),
    ]


def join(seconds: float, minutes: float) -> list[Figure]:
    """Actors join while the run learns."""
    found = []
    for name, sections in (("impala", {}), ("Ape-X DQN", APEX)):
        with learning(actors={"listen": "127.0.0.1:0"}, **sections) as learner:
            took = []
            for number in range(3):
                before = len(learner.lines("first"))
                learner.join(f"joined{number}")
                learner.wait(lambda n=before: len(learner.lines("first")) > n)
                imported, first = learner.lines("imported")[-1], learner.lines("first")[-1]
                took.append(first["at"] - imported["at"])
            learner.end()
        what = f"join: {name}, until its first message is taken"
        found.append(Figure(what, max(took), " s", 2, True))
    return found


def slow(seconds: float, minutes: float) -> list[Figure]:
    """A learner that is slower than its actors."""
    with learning(slow=0.5, evaluation=CONFIG["evaluation"] | {"every": 160}) as learner:
        learner.wait(lambda: len(learner.lines("first")) == 2)
        seen: list[int] = []
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            seen.append(sum(own.memory_info().rss for own in learner.processes()))
            time.sleep(1.0)
        queue = statistics.mean(row["queue"] for row in learner.rows())
        learner.end()
    quarter = len(seen) // 4
    first, last = statistics.median(seen[quarter : 2 * quarter]), statistics.median(seen[-quarter:])
    return [
        Figure("slow: minutes", minutes, ""),
        Figure("slow: messages that wait, of at most four", queue, ""),
        Figure("slow: memory of all processes, second quarter", first / 2**20, " MiB"),
        Figure("slow: what the last quarter has more", (last - first) / 2**20, " MiB", 16, True),
    ]


def malformed(seconds: float, minutes: float) -> list[Figure]:
    """An actor that sends nonsense."""
    with learning(actors={"listen": "127.0.0.1:0"}) as learner:
        learner.wait(lambda: "actors may join" in learner.said() and len(learner.rows()) > 1)
        sent, refused, taken = send_malformed(learner)
        alive = len(learner.actors()) + (learner.process.poll() is None)
        learner.end()
        # those two that sent them are gone; perhaps in a generation that has not ended
        deaths = max(sum(row["gone"] for row in learner.rows()) - 2, 0)
    return [
        Figure("malformed: messages", sent, "", 1000),
        Figure("malformed: refused, and counted", refused, ""),
        Figure("malformed: right by chance, and taken", taken, ""),
        Figure("malformed: that nobody counted", sent - refused - taken, "", 0, True),
        Figure("malformed: processes that still run, of three", alive, "", 3),
        Figure("malformed: that have died", deaths, "", 0, True),
    ]


CASES = {case.__name__: case for case in (kills, stop, learner, join, slow, malformed)}


def main() -> None:
    """Make the faults, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=CASES, nargs="+", help="some of them")
    parser.add_argument("--seconds", type=float, default=120.0, help="with kills")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the slow learner")
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in options.only or CASES:
        found = CASES[name](options.seconds, options.minutes)
        figures += found
        for figure in found:
            print(figure.line(), flush=True)
    missed = [figure.name for figure in figures if not figure.met]
    verdict = "all bars met" if not missed else "not met: " + "; ".join(missed)
    if not options.only and options.seconds >= 120 and options.minutes >= 10:
        told = [figure._asdict() | {"met": figure.met} for figure in figures]
        kept = json.dumps({"figures": told, "verdict": verdict}, indent=2, ensure_ascii=False)
        RESULTS.write_text(kept + "\n")
    print(verdict)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
