"""An environment that raises, or gives what is no step, is replaced by a new one and counted."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registration

from evorl.envs.entrance import Entrance, Result, Taken
from evorl.envs.make import Env, EnvSpec, Masked, close, make_env
from evorl.errors import EnvError, one_line
from evorl.seeding import integers

ATTEMPTS = 4  # resets in a row that may fail, before a slot is given up
TRACES = "evorl_traces"  # in an info: tracebacks, or lines on what else is wrong
SHOWN = 200  # characters of an exception where one line tells of it
RESET = "in a reset"


class Before(NamedTuple):
    """What a slot goes on from, if it takes the place of one whose process is gone."""

    seed: int = 0  # the last one given
    rebuilt: int = 0  # environments made since then
    broken: bool = False


NOTHING = Before()


class Slot(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of many: a new one takes its place if it fails, in a step or in a reset.

    It gives no infos, which nobody reads. But tracebacks in an info say what was raised, and lines
    what was wrong with what it gave. What ends a process, such as sys.exit, is no more than that.
    """

    def __init__(
        self, make: Callable[[], Env], entrance: Entrance | None = None, before: Before = NOTHING
    ) -> None:
        """Without an entrance anything is taken. A slot before it may have had the same place."""
        super().__init__(make())
        self._make, self.entrance, self._broken = make, entrance, before.broken
        self._new = before.broken  # nothing has been done in it yet: it need not be made again
        self._seed, self._rebuilt = before.seed, before.rebuilt
        self.steps = 0  # of this episode

    def step(self, action: Any) -> Result:
        """The environment's step, unchecked. One that raised is truncated, and means nothing."""
        self.steps += 1
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            return obs, reward, terminated, truncated, {}
        except (EnvError, KeyboardInterrupt):  # the next one's masks would be no better
            raise
        except BaseException:  # whatever it is, the next environment may do better
            return self.refuse(traceback.format_exc())

    def refuse(self, problem: str) -> Result:
        """Instead of a step that is no transition."""
        self._broken = True
        return self._nothing(), 0.0, False, True, {TRACES: (problem,)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset, or that of a new one if it is broken."""
        if seed is not None:
            self._seed, self._rebuilt = seed, 0
        traces: list[str] = []
        self.steps = 0
        while len(traces) < ATTEMPTS:
            try:
                if self._broken:
                    seed = self._rebuild(seed)
                obs, _ = self.env.reset(seed=seed)
                problem = self._problem(obs)
                if problem is None:
                    return obs, {TRACES: tuple(traces)} if traces else {}
            except (EnvError, KeyboardInterrupt):
                raise
            except BaseException:
                problem = traceback.format_exc()
            self._broken, seed = True, None
            traces.append(problem)
        return self._nothing(), {TRACES: tuple(traces)}

    def _problem(self, obs: Any) -> str | None:
        """What is wrong with an episode's first observation."""
        return self.entrance.problem_of_observation(obs, RESET) if self.entrance else None

    def _rebuild(self, seed: int | None) -> int:
        """Makes a new environment; its seed, if not given, follows from the one given last."""
        if seed is None:
            self._rebuilt += 1
            new = integers(self._seed, "rebuild", self._rebuilt, count=1)[0]
            seed = (self._seed & 2**30) + new  # held-out seeds, of 2^30 or more, stay held out
        if not self._new:
            close(self.env)
            self.env = self._make()
        self._broken = self._new = False
        return seed

    def _nothing(self) -> Any:
        space = self.observation_space
        return np.full(space.shape or (), getattr(space, "start", 0), space.dtype)


def make_slot(
    spec: EnvSpec,
    registered: Registration | None = None,
    masked: bool | None = None,
    entrance: Entrance | None = None,
    before: Before = NOTHING,
) -> Slot:
    """One environment of many, which is replaced if it fails."""
    return Slot(lambda: make_env(spec, registered, masked), entrance, before)


def step_slots(
    slots: Sequence[Slot], actions: Iterable[Any], entrance: Entrance
) -> tuple[Taken, list[tuple[str, ...]]]:
    """Steps K slots, one after another; also what was wrong with each, if anything."""
    found = [slot.step(action) for slot, action in zip(slots, actions, strict=True)]
    taken = entrance.take(found)
    if taken is None:  # which is rare
        parts = []
        for i, slot in enumerate(slots):
            part = entrance.take([found[i]])
            if part is None:
                found[i] = slot.refuse(entrance.problem(found[i], slot.steps) or "gave no step")
                part = entrance.take([found[i]])
                assert part is not None  # nothing is always as it must be
            parts.append(part)
        taken = Taken._make(np.concatenate(own) for own in zip(*parts, strict=True))
    return taken, [result[4].get(TRACES, ()) for result in found]


def random_action(env: Env) -> Any:
    """One that the environment allows now."""
    env = env.env if isinstance(env, Slot) else env
    return env.sample() if isinstance(env, Masked) else env.action_space.sample()


class Failure(NamedTuple):
    """An exception of an environment, or what else was wrong with it."""

    slot: int
    trace: str  # the whole traceback, or one line such as `gave the reward nan in step 3 of …`

    @property
    def raised(self) -> bool:
        """Whether it is an exception."""
        return "\n" in self.trace.strip()

    @property
    def verb(self) -> str:
        """What the environment did, in a word."""
        return "raised" if self.raised else "failed"

    @property
    def line(self) -> str:
        """What was raised: where the frames, which are indented, are over. Or what was wrong."""
        if not self.raised:
            return f"it {one_line(self.trace.strip())}"
        last = self.trace.rpartition("Traceback (most recent call last):\n")[2]
        lines = last.strip("\n").splitlines()
        found = (line for line in lines if line and not line[0].isspace())
        return one_line(next(found, lines[-1].strip())[:SHOWN])


class Failures:
    """What the environments of one vector raised, or did wrong, until somebody counts it."""

    def __init__(self, spec: EnvSpec, then: str = "a new environment took its place") -> None:
        """`then` is what comes of a failure."""
        self.env_id, self.limit, self.then = spec.id, spec.max_failures, then
        self._found: list[Failure] = []

    def add(self, slot: int, traces: Sequence[str]) -> None:
        """Of one step or reset; EnvError if no new environment worked, either."""
        self._found += [Failure(slot, trace) for trace in traces]
        if len(traces) >= ATTEMPTS:
            last = self._found[-1]
            what = f"env.id: {self.env_id!r} {last.verb} in {ATTEMPTS} resets in a row"
            raise with_trace(what, last)

    def take(self) -> list[Failure]:
        """All since the last call."""
        found, self._found = self._found, []
        return found


def with_trace(what: str, failure: Failure) -> EnvError:
    """One line, and the environment's own traceback, if there is one, as a note."""
    error = EnvError(f"{what}: {failure.line}")
    if failure.raised:
        error.add_note("\n".join(map(one_line, failure.trace.rstrip().splitlines())))
    return error
