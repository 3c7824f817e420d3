"""What environments give is checked where it enters: nobody learns from what is no transition.

All slots are checked together, by a few calls; one by one only where something is wrong.
Legend: K slots.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evorl.envs.spaces import Array, SpaceAdapter
from evorl.errors import one_line

LARGEST = 1e18  # of what is learned from: its square is still a number
SQUARE = LARGEST**2
SHOWN = 60  # characters of a value

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Result = tuple[Any, Any, Any, Any, dict[str, Any]]  # of one environment's step


class Taken(NamedTuple):
    """What K environments gave in a step, in evorl's form."""

    obs: Array  # [K, …]
    reward: Floats  # [K]
    terminated: Bools  # [K]
    truncated: Bools  # [K]


class Entrance:
    """Takes in what environments of some spaces give."""

    def __init__(self, spaces: SpaceAdapter) -> None:
        own = spaces.observation
        self._spaces, self._own = spaces, own
        self._shape = own.shape if own.mask else spaces.raw_shape
        self._dtype = np.dtype(own.dtype if own.mask else spaces.raw_dtype)
        self._as_declared = own.dtype == self._dtype  # whether evorl has the environment's type

    def take(self, found: Sequence[Result]) -> Taken | None:
        """The steps of K environments; None if anything is not as it must be."""
        raw, rewards, terminated, truncated, _ = zip(*found, strict=True)
        try:
            obs, reward = self.observations(raw), _rewards(rewards)
            ends, cuts = _flags(terminated), _flags(truncated)
        except Exception:  # whatever these objects do when they are to be numbers
            return None
        if obs is None or reward is None or ends is None or cuts is None:
            return None
        whole = len(reward) == len(ends) == len(cuts) == len(raw)
        return Taken(obs, reward, ends, cuts) if whole else None

    def observations(self, raw: Sequence[Any]) -> Array | None:
        """Of K environments, [K, …] in evorl's form; None if any is not as declared."""
        given = np.array(raw)  # np.stack would take four times as long
        if given.shape[1:] != self._shape or given.dtype.kind not in "biuf":
            return None
        if self._as_declared and given.dtype == self._dtype:
            obs = self._spaces.observations(given, copy=False)
            return obs if self._fits(obs) else None
        with np.errstate(over="ignore", invalid="ignore"):  # where numbers are too large for others
            obs = self._spaces.observations(given, copy=False)
            return obs if self._holds(given) and self._fits(obs) else None

    def problem(self, found: Result, steps: int) -> str | None:
        """What is wrong with one environment's step, the `steps`-th of its episode."""
        obs, reward, terminated, truncated, _ = found
        when = f"in step {steps} of an episode"
        if problem := self.problem_of_observation(obs, when):
            return problem
        own = _alone(partial(_rewards, [reward]))
        if own is None or len(own) != 1:
            return f"gave the reward {show(reward)} {when}; it must be one number up to ±1e18"
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            own = _alone(partial(_flags, [flag]))
            if own is None or len(own) != 1:
                return f"gave {show(flag)} for {name} {when}; it must be true or false"
        return None

    def problem_of_observation(self, raw: Any, when: str) -> str | None:
        """What is wrong with one environment's observation; None if nothing is."""
        if _alone(lambda: self.observations([raw])) is not None:
            return None
        given = _alone(lambda: np.asarray(raw))
        if given is None or given.dtype.kind not in "biuf":
            return f"gave the observation {show(raw)} {when}; {self._declared}"
        if given.shape != self._shape:
            return f"gave an observation of shape {given.shape} {when}; {self._declared}"
        wrong = self._first_wrong(given)
        value = show(given[wrong])
        where = f" at {wrong}" if wrong else ""
        return f"gave an observation with {value}{where} {when}; {self._declared}"

    @property
    def _declared(self) -> str:
        rule = f"of shape {self._shape} and type {self._dtype}"
        if self._own.n is not None:
            first = self._spaces.observation_start
            rule = f"from {first} to {first + self._own.n - 1}"
        elif self._dtype.kind == "f":
            rule += ", and numbers may be up to ±1e18"
        return f"its observation_space says {rule}"

    def _first_wrong(self, given: Array) -> tuple[int, ...]:
        """The place of the first number that does not fit."""
        for place in np.ndindex(given.shape):
            one = np.full((1, *given.shape), given[place])
            if self.observations([one[0]]) is None:
                return tuple(place)
        return ()

    def _holds(self, given: Array) -> bool:
        """Whether whole numbers, if they are declared, are whole and not too large."""
        if given.dtype == self._dtype or self._dtype.kind == "f":
            return True
        return bool((given.astype(self._dtype) == given).all())

    def _fits(self, obs: Array) -> bool:
        if self._own.n is not None:
            return bool(np.minimum.reduce(obs) >= 0 and np.maximum.reduce(obs) < self._own.n)
        return obs.dtype.kind != "f" or fine(obs)


def fine(numbers: Array) -> bool:
    """Whether all are numbers that can be learned from; NaN and infinite ones are not."""
    flat = numbers.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        if float(flat.dot(flat)) <= SQUARE:  # the fastest look at all of them
            return True
    return bool(flat.min() >= -LARGEST and flat.max() <= LARGEST)


def show(value: Any) -> str:
    """A value in an error, on one line and cut off."""
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except Exception:  # its own
        text = "?"
    text = one_line(" ".join(text.split()))
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return text if isinstance(value, (float, np.generic)) else f"{text} ({type(value).__name__})"


def _rewards(given: Sequence[Any]) -> Floats | None:
    """Numbers, also as arrays of one; None if any is none, or too large."""
    rewards = np.array(given, np.float64).reshape(-1)
    return rewards.astype(np.float32) if fine(rewards) else None


def _flags(given: Sequence[Any]) -> Bools | None:
    """True and false, also as 1 and 0 or as arrays of one; None if they are anything else."""
    flags = np.array(given)
    if flags.dtype.kind != "b":
        if flags.dtype.kind not in "iuf" or not np.isin(flags, (0, 1)).all():
            return None
        flags = flags.astype(np.bool_)
    return flags.reshape(-1)


def _alone(check: Callable[[], Any]) -> Any:
    """What a check gives; None if it raises, whatever it is that an environment gave."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return check()
    except Exception:
        return None
