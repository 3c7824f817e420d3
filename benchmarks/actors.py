"""Actors beside a learner, against loops that do both in turns: ratios in one run, on two cores.

    python benchmarks/actors.py                  # about six minutes
    python benchmarks/actors.py --only impala    # one of the two
    python benchmarks/actors.py --eager          # nothing is compiled
    python benchmarks/actors.py --set env.num_envs=8   # of each agent, in each actor
    python benchmarks/actors.py --write          # keep the figures in results/actors.json

On LunarLander-v3, for IMPALA and for Ape-X DQN:

- one learner with two actors, against the same learning without actors: frames per second of as
  many frames and updates. At best it is two cores instead of one;
- a population of eight as one matrix, against one agent: eight runs one after another make as many
  frames per second as one. Each agent has one environment in each actor. The more it has, the more
  of the time goes into environments, where a matrix gains nothing.

All take turns, a few seconds each: while one has its turn, the actors of the others wait for their
learners. Beside it: the mean lag, and what the bus takes of a core while the learner learns: its
threads and ZeroMQ's, and what the learner itself computes to publish and to read what has arrived.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from throughput import Figure
from tqdm import tqdm

from evorl import Save, TrainingContext, World, make_run, parse_config, start_run
from evorl.actors import BusExchange

TURNS, SECONDS, PAUSE = 5, 4.0, 1.0
QUEUED = 4  # messages that actors have ready when a turn begins: they don't count
RESULTS = Path(__file__).parent / "results" / "actors.json"
MATRIX = 8  # agents
CASES: dict[str, dict[str, Any]] = {
    "impala": {
        "env": {"id": "LunarLander-v3", "num_envs": 1},
        "algorithm": {"name": "impala", "rollout_steps": 256, "replay_unrolls": 16},
        "network": {"hidden": [64, 64], "activation": "tanh"},
    },
    "apex_dqn": {
        "env": {"id": "LunarLander-v3", "num_envs": 1},
        "algorithm": {"name": "dqn", "n_step": 3, "learn_step": 4, "learning_starts": 1000},
        "network": {"hidden": [64, 64]},
        "replay": {"kind": "prioritized", "share": "agent"},
        "actors": {"steps": 256},
    },
}


class Turn(NamedTuple):
    """What a few seconds came to."""

    seconds: float
    frames: int
    updates: int
    lags: list[int]
    bus: float  # seconds


class Case(NamedTuple):
    """What is compared."""

    settings: dict[str, Any]
    overrides: Sequence[str]


class Loop:
    """A run's stages that play and learn."""

    def __init__(self, case: Case, agents: int, actors: int, eager: bool, stack: ExitStack) -> None:
        options: dict[str, Any] = {
            "population": {"size": agents},
            "evaluation": {"every": 10**9},
            "budget": {"env_steps": 10**12},
            "mesh": {"actors": actors},
            "compile": not eager,
            "run": {"folder": stack.enter_context(TemporaryDirectory())},
        }
        config = parse_config(case.settings | options, case.overrides)
        world = World.start(agents)
        stack.callback(world.close)
        self.actors, run = actors, make_run(config, world, stack)
        self.context, self.stages = TrainingContext(agents), run.stages
        start_run(run, self.context, Save(world, run.config, run.storage, None, []))
        self.exchange = run.parts.exchange
        self._called = 0.0
        if isinstance(self.exchange, BusExchange):
            bus = self.exchange.bus
            bus.poll = self._timed(bus.poll)  # type: ignore[method-assign]
            bus.publish = self._timed(bus.publish)  # type: ignore[method-assign]

    def run(self, seconds: float) -> Turn:
        """Play and learn for so long."""
        context, lags = self.context, list[int]()
        for _ in range(QUEUED * (self.actors > 0)):
            self._iterate()
        before, bus = (context.env_steps, context.updates), self._bus()
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            self._iterate()
            lags += [message.lag for message in context.received]
        frames, updates = context.env_steps - before[0], context.updates - before[1]
        return Turn(spent, frames, updates, lags, self._bus() - bus)

    def _iterate(self) -> None:
        self.stages.collect(self.context)
        self.stages.learn(self.context)
        self.context.iteration += 1

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Counts what this thread computes in it, and not how long it waits for a core."""

        def timed(*given: Any) -> Any:
            start = time.thread_time()
            found = call(*given)
            self._called += time.thread_time() - start
            return found

        return timed

    def _bus(self) -> float:
        """What it has computed so far, in seconds."""
        return self._called + thread_seconds("evorl-bus") if self.exchange is not None else 0.0


def thread_seconds(name: str) -> float:
    """What threads of this name, and those of ZeroMQ, have computed."""
    ours = {str(one.native_id) for one in threading.enumerate() if one.name.startswith(name)}
    found = 0.0
    for task in Path("/proc/self/task").iterdir():
        if task.name in ours or (task / "comm").read_text().startswith("ZMQ"):
            found += int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def take_turns(loops: dict[str, Loop], title: str) -> dict[str, list[Turn]]:
    """All of them, again and again; the first time is to warm up, and to compile."""
    found: dict[str, list[Turn]] = {name: [] for name in loops}
    for turn in tqdm(range(TURNS + 1), desc=title, disable=None, leave=False):
        for name, loop in loops.items():
            done = loop.run(SECONDS)
            if turn:
                found[name].append(done)
            time.sleep(PAUSE)  # until actors have nothing more to do
    return found


def measure(name: str, eager: bool, overrides: Sequence[str]) -> list[Figure]:
    """Both comparisons for one algorithm."""
    case = Case(CASES[name], overrides)
    with ExitStack() as stack:
        loops = {
            "actors": Loop(case, MATRIX, 2, eager, stack),
            "without": Loop(case, MATRIX, 0, eager, stack),
            "alone": Loop(case, 1, 2, eager, stack),
        }
        turns = take_turns(loops, name)
        shares = loops["actors"].context.timer.shares()
    speed = {who: [own.frames / own.seconds for own in each] for who, each in turns.items()}
    rate = {
        who: sum(t.updates for t in each) / sum(t.frames for t in each)
        for who, each in turns.items()
    }

    def ratio(ours: str, theirs: str) -> float:
        return statistics.median(a / b for a, b in zip(speed[ours], speed[theirs], strict=True))

    own = turns["actors"]
    bus = 100 * sum(turn.bus for turn in own) / sum(turn.seconds for turn in own)
    lag = statistics.fmean(lag for turn in own for lag in turn.lags)
    found = [
        Figure(f"{who}: frames per second", statistics.median(s), "") for who, s in speed.items()
    ]
    found += [
        Figure(
            "with actors: updates per frame, of those without",
            rate["actors"] / rate["without"],
            "×",
        ),
        Figure("with actors: times as fast as without", ratio("actors", "without"), "×", 1.5),
        Figure("eight agents: times as fast as one by one", ratio("actors", "alone"), "×", 2.5),
        Figure("mean lag", lag, ""),
        Figure("the bus, of a core", bus, " %", 3, most=True),
    ]
    found += [Figure(f"learner's share of {part}", 100 * one, " %") for part, one in shares.items()]
    return [figure._replace(name=f"{name}: {figure.name}") for figure in found]


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=CASES, nargs="+", help="some of them")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--set", nargs="+", default=[], help="options, such as env.num_envs=8")
    parser.add_argument("--write", action="store_true", help="keep the figures as results")
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in options.only or CASES:
        found = measure(name, options.eager, options.set)
        figures += found
        for figure in found:
            print(figure.line(), flush=True)
    missed = [figure.name for figure in figures if not figure.met]
    verdict = "all bars met" if not missed else "not met: " + "; ".join(missed)
    if options.write:
        told = [figure._asdict() | {"met": figure.met} for figure in figures]
        kept = json.dumps({"figures": told, "verdict": verdict}, indent=2, ensure_ascii=False)
        RESULTS.write_text(kept + "\n")
    print(verdict)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
