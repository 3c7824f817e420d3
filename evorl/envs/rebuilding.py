"""Environments that raise: a new one takes the broken one's place, and what it raised is told.

That is for the plain environments of `sync` and `async`, evaluation included. A `native` or
`envpool` vector is one piece: what it raises goes through as it is.
"""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registration
from numpy.typing import NDArray

from evorl.envs.make import Env, EnvSpec, LastObservationKept, make_env
from evorl.errors import EnvError
from evorl.seeding import integers

ATTEMPTS = 3  # new environments in a row, before a slot is given up
TRACES = "evorl_traces"  # in an info: tracebacks as text, which any process can send

HEAD = "Traceback (most recent call last):\n"
SHOWN = 200  # characters of an exception where one line tells of it


class Rebuilding(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replaces an environment that raises, in a step or in a reset.

    A step that raised is reported as truncated, with reward 0. Its observation is the first of the
    new environment, which a reset without a seed then starts from.
    """

    def __init__(self, make: Callable[[], Env]) -> None:
        super().__init__(make())
        self._make = make
        self._seed, self._rebuilt = 0, 0  # the last one given, and environments made since then
        self._first: Any = None  # observation of a new environment that is yet to be played

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step; tracebacks in its info say that it failed."""
        try:
            return self.env.step(action)
        except Exception:  # whatever it is, the next environment may do better
            traces = [traceback.format_exc()]
        self._first = self._rebuild(traces)
        return self._first, 0.0, False, True, {TRACES: tuple(traces)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset, or that of a new one, with the tracebacks in its info."""
        first, self._first = self._first, None
        if seed is not None:
            self._seed, self._rebuilt = int(seed), 0
        elif first is not None:
            return first, {}
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception:
            traces = [traceback.format_exc()]
        return self._rebuild(traces), {TRACES: tuple(traces)}

    def _rebuild(self, traces: list[str]) -> Any:
        """A new environment's first observation; `traces` grows by what goes wrong with it."""
        space = self.observation_space
        for _ in range(ATTEMPTS):
            self._rebuilt += 1
            with contextlib.suppress(Exception):
                self.env.close()
            try:
                self.env = self._make()
                return self.env.reset(seed=self._next_seed())[0]
            except Exception:
                traces.append(traceback.format_exc())
        return np.zeros(space.shape or (), space.dtype)  # given up

    def _next_seed(self) -> int:
        """From the seed given last, so that nothing of earlier generations has to be known.

        A held-out seed, of 2^30 or more, gives another one that nothing else uses.
        """
        return (self._seed & 2**30) + integers(self._seed, "rebuild", self._rebuilt, count=1)[0]


def make_slot(spec: EnvSpec, registered: Registration | None = None) -> Rebuilding:
    """One environment of many, which is replaced if it raises."""
    return Rebuilding(lambda: LastObservationKept(make_env(spec, registered)))


class Failure(NamedTuple):
    """An exception of an environment."""

    slot: int
    trace: str  # the whole traceback

    @property
    def line(self) -> str:
        """What was raised: where the frames, which are indented, are over."""
        lines = self.trace.rpartition(HEAD)[2].strip("\n").splitlines()
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
        if len(traces) > ATTEMPTS:
            what = f"raised, and so did {ATTEMPTS} new environments in a row"
            raise with_trace(f"env.id: {self.env_id!r} {what}", self._found[-1])

    def read(self, infos: dict[str, Any]) -> NDArray[np.bool_] | None:
        """Adds what the infos of M slots tell; which slots [M] that were, or None."""
        if TRACES not in infos:
            return None
        slots: NDArray[np.bool_] = infos[f"_{TRACES}"]
        for slot in np.flatnonzero(slots):
            self.add(int(slot), infos[TRACES][slot])
        return slots

    def take(self) -> list[Failure]:
        """All since the last call."""
        found, self._found = self._found, []
        return found


def with_trace(what: str, failure: Failure) -> EnvError:
    """One line, and the environment's own traceback as a note."""
    error = EnvError(f"{what}: {failure.line}")
    error.add_note(failure.trace.rstrip())
    return error
