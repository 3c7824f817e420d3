"""Environments that misbehave, each in a run of its own: it is survived and counted, or refused in
one line; it never ends in a raw traceback, a hang, or exit code 0 without a score.

    python benchmarks/misbehaving.py                # all of them: some minutes
    python benchmarks/misbehaving.py --count 10     # some of them
    python benchmarks/misbehaving.py "reward nan"   # those whose name begins so

What misbehaves does so in some episodes, where nothing else is said, else always.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

ROOT, ENV_ID = Path(__file__).parents[1], "misbehaving:Misbehaves-v0"
LENGTH, WHEN = 8, 3  # steps of an episode, and the wrong one
STEPS_WRONG, RESETS_WRONG = 0.15, 0.05  # share of episodes: of many resets not all may be wrong
OPTIONS = (
    *("seed=3", "compile=false", "network.hidden=[8]", "population.size=2", "env.num_envs=2"),
    *("algorithm.learning_starts=16", "algorithm.batch_size=8", "replay.capacity=400"),
    *("evaluation.every=80", "evaluation.episodes=3", "evaluation.confirm_episodes=3"),
    *("evaluation.final_episodes=20", "budget.env_steps=640", "run.if_exists=number"),
)
Wrong = Callable[[list[Any]], Any]  # what a step (or a reset) gives, instead of what it should


class Nasty(BaseException):
    """As some extension modules raise it."""


class Silent(Exception):
    """That cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")


def put(place: int, value: Any) -> Wrong:
    """Another value in one place of what is given."""
    return lambda proper: (*proper[:place], value, *proper[place + 1 :])


def throw(error: BaseException) -> Wrong:
    """Something is raised instead."""

    def wrong(proper: list[Any]) -> Any:
        raise error

    return wrong


def deeper(proper: list[Any]) -> Any:
    """Calls itself without end."""
    return deeper(proper)


def kill(number: int) -> Wrong:
    """A signal for its own process."""
    return lambda proper: os.kill(os.getpid(), number) or time.sleep(60)


def close_all(proper: list[Any]) -> Any:
    """Closes what the process needs to be heard."""
    os.closerange(3, 256)
    return tuple(proper)


def hang(proper: list[Any]) -> Any:
    """Never comes back."""
    while True:
        time.sleep(1)


def numbers(*values: float, dtype: Any = np.float32) -> Any:
    """An observation."""
    return np.array(values, dtype)


NAN, INF = float("nan"), float("inf")
REWARDS = {
    **{"nan": NAN, "inf": INF, "-inf": -INF, "1e300": 1e300, "1e30": np.float32(1e30)},
    **{"None": None, "text": "much", "list": [1.0, 2.0], "complex": 1 + 2j},
    **{"array of two": numbers(1, 2), "dict": {"a": 1}, "object": object(), "array nan": [NAN]},
}
OBSERVATIONS = {
    **{"nan": numbers(0, NAN, 0), "inf": numbers(INF, 0, 0), "1e30": numbers(0, 0, 1e30)},
    **{"float64": numbers(0, 0, 1e300, dtype=np.float64), "None": None, "text": "seen"},
    **{"too short": numbers(1, 2), "too long": numbers(1, 2, 3, 4), "scalar": 1.0},
    **{"deeper": numbers(1, 2, 3)[None], "ragged": [[1], [2, 3]], "dict": {"a": 1}},
    **{"complex": numbers(1, 2, 3, dtype=np.complex64), "empty": numbers()},
    **{"objects": np.array([1, None, object()], object), "strings": np.array(["a", "b", "c"])},
}
STEPS: dict[str, Wrong] = {
    **{f"reward {name}": put(1, value) for name, value in REWARDS.items()},
    **{f"observation {name}": put(0, value) for name, value in OBSERVATIONS.items()},
    **{f"terminated {value!r}": put(2, value) for value in (None, "no", NAN, 2, [True, False])},
    "truncated None": put(3, None),
    "four values": lambda proper: tuple(proper[:4]),
    "six values": lambda proper: (*proper, {}),
    "no values": lambda proper: None,
    "observation alone": lambda proper: proper[0],
    "raises": throw(RuntimeError("the simulator broke\nin two lines")),
    "raises escapes": throw(ValueError("\x1b[31m red \x1b]0;title\x07")),
    "raises without text": throw(AssertionError()),
    "raises what has no text": throw(Silent()),
    "raises StopIteration": throw(StopIteration()),
    "raises GeneratorExit": throw(GeneratorExit()),
    "raises MemoryError": throw(MemoryError()),
    "raises EOFError": throw(EOFError()),
    "raises BaseException": throw(Nasty("panic")),
    "calls itself": deeper,
    "exits with 0": throw(SystemExit(0)),
    "exits with 1": throw(SystemExit(1)),
}
RESETS: dict[str, Wrong] = {
    "reset alone": lambda proper: proper[0],
    "reset of three": lambda proper: (*proper, 1),
    "reset nan": put(0, numbers(NAN, 0, 0)),
    "reset too short": put(0, numbers(1, 2)),
    "reset None": lambda proper: None,
    "reset raises": throw(RuntimeError("no reset")),
    "reset exits": throw(SystemExit(0)),
}
PROCESSES: dict[str, Wrong] = {  # of workers
    "process ends with 0": lambda proper: os._exit(0),
    "process ends with 7": lambda proper: os._exit(7),
    "process is killed": kill(signal.SIGKILL),
    "process has a segfault": kill(signal.SIGSEGV),
    "process is ended": kill(signal.SIGTERM),
    "process closes all": close_all,
    "process hangs": hang,
}
MADE: dict[str, Callable[[], Any]] = {  # what happens where an environment is made
    "made with an exit": lambda: sys.exit(0),
    "made with an error": lambda: 1 / 0,
    "made in another folder": lambda: os.chdir("/"),
    "made with strict numpy": lambda: np.seterr(all="raise"),
    "made with strict warnings": lambda: warnings.simplefilter("error"),
}
HARMLESS = {"made in another folder", "made with strict numpy", "made with strict warnings"}


class Misbehaves(gymnasium.Env[Any, Any]):
    """A step pays 1 for the right action, which is seen; but some steps or resets are wrong."""

    observation_space = spaces.Box(-1e9, 1e9, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, kind: str, always: bool = False) -> None:
        self.always = always
        self.step_wrong = (STEPS | PROCESSES).get(kind)
        self.reset_wrong = RESETS.get(kind)
        if kind in MADE:
            MADE[kind]()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Seed 0 is for those who only try it out."""
        super().reset(seed=seed)
        share = RESETS_WRONG if self.reset_wrong else STEPS_WRONG
        self.time, bad = 0, self.np_random.random() < share
        self.bad = self.always or (bad and seed != 0)
        proper = [self._seen(), {}]
        wrong: Any = self.reset_wrong(proper) if self.bad and self.reset_wrong else tuple(proper)
        return wrong

    def step(self, action: Any) -> Any:
        """The wrong one is the third of a bad episode, or the first if it is always so."""
        reward = float(int(action) == self.time % 2)
        self.time += 1
        proper = [self._seen(), reward, self.time >= LENGTH, False, {}]
        if self.step_wrong and self.bad and self.time == (1 if self.always else WHEN):
            return self.step_wrong(proper)
        return tuple(proper)

    def _seen(self) -> Any:
        return numbers(self.time % 2, self.time / LENGTH, 1)


gymnasium.register("Misbehaves-v0", Misbehaves, max_episode_steps=100)


class Case(NamedTuple):
    """A run in which something is wrong."""

    name: str
    kind: str
    expected: str  # survived, refused, harmless or interrupted
    options: tuple[str, ...] = ()


def cases() -> list[Case]:
    """All of them; some kinds are in two, with worker processes or always wrong."""
    workers = ("env.backend=async", "env.timeout=2")
    found = [Case(kind, kind, "survived") for kind in (*STEPS, *RESETS)]
    for kind in ("reward nan", "observation too short", "four values", "exits with 0"):
        found.append(Case(f"{kind}, in a worker", kind, "survived", workers))
    found += [Case(kind, kind, "survived", workers) for kind in PROCESSES]
    found += [Case(k, k, "harmless" if k in HARMLESS else "refused") for k in MADE]
    always = "env.kwargs.always=true"
    names = ("reward nan", "observation too short", "observation None", "four values", "no values")
    for kind in (*names, "raises", "exits with 0", "terminated None", *RESETS):
        found.append(Case(f"always: {kind}", kind, "refused", (always,)))
    found.append(Case("hangs here", "process hangs", "interrupted", ("env.timeout=2",)))
    few = ("env.max_failures=2",)
    found += [Case(f"too often: {k}", k, "refused", few) for k in ("reward nan", "raises")]
    return found


def command_of(case: Case, config: Path) -> list[str]:
    """evorl train, as a user would start it."""
    kind = ["env.kwargs.kind=" + json.dumps(case.kind), "env.max_failures=1000", *case.options]
    backend = [] if any("backend" in own for own in case.options) else ["env.backend=sync"]
    return [sys.executable, "-m", "evorl", "train", str(config), "-q", *OPTIONS, *kind, *backend]


def verdict(case: Case, code: int, out: str, err: str, failures: int | None) -> str | None:
    """What is wrong with how the run ended; None if nothing is."""
    lines = err.strip().splitlines() or [""]
    if "cli/__init__.py" in err or not err.replace("\n", "").replace("\t", "").isprintable():
        return f"a raw traceback or raw bytes: {lines[-1]}"
    if case.expected == "interrupted":
        where = "hangs: a step or reset takes longer" in err and "misbehaving.py, line" in err
        return None if code == 130 and where else f"exit code {code}: {lines[-1]}"
    if case.expected == "refused":
        named = lines[-1].startswith("error: ") and "Misbehaves-v0" in lines[-1]
        return None if code == 2 and named else f"exit code {code}: {lines[-1]}"
    if code != 0 or "held-out score" not in out:
        return f"exit code {code}: {lines[-1]}"
    if case.expected == "harmless":
        return None if failures == 0 else f"{failures} failures"
    return None if failures and "Misbehaves-v0" in err else "nobody was told"


def run(case: Case, folder: Path, patience: float) -> tuple[str | None, str]:
    """What is wrong with how a run ended, if anything, and the last line of it."""
    config = folder / "misbehaving.yaml"
    config.write_text(f"env: {{id: '{ENV_ID}'}}\nrun: {{folder: {folder / 'runs'}}}\nname: run\n")
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    given: dict[str, Any] = {"cwd": folder, "env": os.environ | {"PYTHONPATH": path}}
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(command_of(case, config), stdout=out, stderr=err, **given)
        try:
            if case.expected == "interrupted":
                wait_for("hangs", folder / "err", patience)
                process.send_signal(signal.SIGINT)
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            return "it hangs", ""
    said_out, said_err = ((folder / name).read_text() for name in ("out", "err"))
    summaries = sorted(folder.glob("runs/*/summary.json"))
    failures = json.loads(summaries[-1].read_text())["failures"] if summaries else None
    said = (said_err.strip().splitlines() or said_out.splitlines() or [""])[-1]
    return verdict(case, code, said_out, said_err, failures), said


def wait_for(text: str, file: Path, patience: float) -> None:
    """Until a file has it, or patience is over."""
    end = time.monotonic() + patience
    while text not in file.read_text() and time.monotonic() < end:
        time.sleep(0.1)


def main() -> None:
    """Run them, and say of each how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; left out: all")
    parser.add_argument("--count", type=int, help="as many of them, spread over all")
    parser.add_argument("--patience", type=float, default=120, help="seconds for each run")
    asked = parser.parse_args()
    chosen = [c for c in cases() if not asked.names or c.name.startswith(tuple(asked.names))]
    if asked.count:
        chosen = chosen[:: max(1, len(chosen) // asked.count)][: asked.count]
    wrong = 0
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            problem, said = run(case, Path(folder), asked.patience)
        wrong += problem is not None
        print(f"{case.name:32} {'WRONG: ' + problem if problem else f'{case.expected}: {said}'}")
    print(f"{len(chosen)} runs, {wrong} of them wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
