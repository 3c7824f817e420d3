"""An environment that raises is replaced by a new one, and what it raised is counted."""

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registration

from evorl.envs.make import Env, EnvSpec, Masked, make_env
from evorl.errors import EnvError
from evorl.seeding import integers

ATTEMPTS = 4  # resets in a row that may raise, before a slot is given up
TRACES = "evorl_traces"  # in an info: tracebacks as text, which any process can send
SHOWN = 200  # characters of an exception where one line tells of it


class Slot(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of many: a new one takes its place if it raises, in a step or in a reset.

    It gives no infos, which nobody reads: batching them costs time, and fails where an array's
    shape changes. But tracebacks in an info say what was raised.
    """

    def __init__(self, make: Callable[[], Env]) -> None:
        super().__init__(make())
        self._make, self._broken = make, False
        self._seed, self._rebuilt = 0, 0  # the last one given, and environments made since then

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step; None rests. One that raised is truncated, and means nothing."""
        if action is None:
            return self._nothing(), 0.0, False, False, {}
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            return obs, reward, terminated, truncated, {}
        except EnvError:  # the next one's masks would be no better
            raise
        except Exception:  # whatever it is, the next environment may do better
            self._broken = True
            return self._nothing(), 0.0, False, True, {TRACES: (traceback.format_exc(),)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset, or that of a new one if it is broken."""
        if seed is not None:
            self._seed, self._rebuilt = seed, 0
        traces: list[str] = []
        while len(traces) < ATTEMPTS:
            try:
                if self._broken:
                    seed = self._rebuild(seed)
                obs, _ = self.env.reset(seed=seed)
                return obs, {TRACES: tuple(traces)} if traces else {}
            except EnvError:
                raise
            except Exception:
                self._broken, seed = True, None
                traces.append(traceback.format_exc())
        return self._nothing(), {TRACES: tuple(traces)}

    def _rebuild(self, seed: int | None) -> int:
        """Makes a new environment; its seed, if not given, follows from the one given last."""
        if seed is None:
            self._rebuilt += 1
            new = integers(self._seed, "rebuild", self._rebuilt, count=1)[0]
            seed = (self._seed & 2**30) + new  # held-out seeds, of 2^30 or more, stay held out
        with suppress(Exception):
            self.env.close()
        self.env = self._make()
        self._broken = False
        return seed

    def _nothing(self) -> Any:
        space = self.observation_space
        return np.zeros(space.shape or (), space.dtype)


def make_slot(
    spec: EnvSpec, registered: Registration | None = None, masked: bool | None = None
) -> Slot:
    """One environment of many, which is replaced if it raises."""
    return Slot(lambda: make_env(spec, registered, masked))


def random_action(env: Env) -> Any:
    """One that the environment allows now."""
    env = env.env if isinstance(env, Slot) else env
    return env.sample() if isinstance(env, Masked) else env.action_space.sample()


class Failure(NamedTuple):
    """An exception of an environment."""

    slot: int
    trace: str  # the whole traceback

    @property
    def line(self) -> str:
        """What was raised: where the frames, which are indented, are over."""
        last = self.trace.rpartition("Traceback (most recent call last):\n")[2]
        lines = last.strip("\n").splitlines()
        found = (line for line in lines if line and not line[0].isspace())
        return next(found, lines[-1].strip())[:SHOWN]


class Failures:
    """What the environments of one vector raised, until somebody counts it."""

    def __init__(self, spec: EnvSpec) -> None:
        self.env_id, self.limit = spec.id, spec.max_failures
        self._found: list[Failure] = []

    def add(self, slot: int, traces: Sequence[str]) -> None:
        """Of one step or reset; EnvError if no new environment worked, either."""
        self._found += [Failure(slot, trace) for trace in traces]
        if len(traces) == ATTEMPTS:
            what = f"env.id: {self.env_id!r} raised in {ATTEMPTS} resets in a row"
            raise with_trace(what, self._found[-1])

    def take(self) -> list[Failure]:
        """All since the last call."""
        found, self._found = self._found, []
        return found


def with_trace(what: str, failure: Failure) -> EnvError:
    """One line, and the environment's own traceback as a note."""
    error = EnvError(f"{what}: {failure.line}")
    error.add_note(failure.trace.rstrip())
    return error
