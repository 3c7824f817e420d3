"""What an actor's message has in it, and whether one that arrives is what it should be.

Legend: P agents, N environments of an agent, T steps of a message, R episodes that ended.

Every message says from whom it is, which one, and of which weights:

slot, session    the actor's number, and its process: another one if another took its place
sequence         1, 2, 3 …: each counts once
version          of the weights that it played with
generation       of their agents

and what was done: env_steps, steps [P] of each agent, episodes, returns [R] and how many of them
are each agent's (returned [P]), exploration [P], who died of what (dead [P]), failures of
environments, and what statistics have seen. What the algorithm sends is beside that; where actors
keep their part of the replay, how much that is.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evorl.envs import LARGEST, ActionSpec, ObservationSpec
from evorl.population import Population

HEADER = ("slot", "session", "sequence", "version", "generation")
MOST = 2**62  # of a number in the header
MOST_SEEN = 1e300  # of sums in statistics
UNROLL = "unroll."  # how fields of unrolls begin
WINDOW = "window."  # and those of n-step transitions
SHARD = "shard."  # and those that say how much an actor's part of the replay holds
DEAD = ("", "actions", "loss")  # what an agent died of, by number; 0: it lives
MOST_FAILURES, TRACE = 256, 2000  # of one message, and characters of each


class Refused(Exception):
    """A message that is not used; the reason is how it is counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class Expected(NamedTuple):
    """What a tensor of a message must be."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]  # None: any number
    low: float = -math.inf  # nothing is below it; finite bounds also keep out what is no number
    high: float | tuple[int, ...] = math.inf  # several: of the numbers along the last dimension

    def check(self, name: str, value: Any) -> None:
        """Refused unless it is."""
        if not isinstance(value, Tensor):
            raise Refused("fields", f"{name} is no tensor")
        if value.dtype != self.dtype:
            raise Refused("type", f"{name} is {value.dtype} instead of {self.dtype}")
        wanted = zip(value.shape, self.shape, strict=False)
        if value.ndim != len(self.shape) or any(w is not None and s != w for s, w in wanted):
            raise Refused("shape", f"{name} is {tuple(value.shape)} instead of {self.shape}")
        several = isinstance(self.high, tuple)
        high: Any = torch.tensor(self.high) if several else self.high
        if self.low == -math.inf and not several and high == math.inf:
            return
        if not bool(((value >= self.low) & (value <= high)).all()):
            raise Refused("range", f"{name} goes beyond {self.low} to {self.high}")


class Limits(NamedTuple):
    """How much one message can say."""

    agents: int  # P
    num_envs: int  # N
    steps: int  # T
    observation: ObservationSpec
    action: ActionSpec
    n_step: int = 1
    shard: int = 0  # capacity of the replay that an actor keeps; 0: it sends what it plays

    @property
    def each(self) -> int:
        """Environment steps of an agent."""
        return self.num_envs * self.steps


def whole(fields: Mapping[str, Any], name: str, high: int = MOST) -> int:
    """A whole number from 0 on; Refused if it is none."""
    value = fields.get(name)
    if type(value) is not int:
        raise Refused("fields", f"{name} is no whole number")
    if not 0 <= value <= high:
        raise Refused("range", f"{name} goes beyond 0 to {high}")
    return value


def expected_fields(population: Population, limits: Limits) -> dict[str, Expected]:
    """The tensors of a message of these agents, by what their algorithm sends."""
    agents, numbers, floats = limits.agents, torch.int64, torch.float64
    found = {
        "steps": Expected(numbers, (agents,), 0, limits.each),
        "returns": Expected(floats, (None,)),
        "returned": Expected(numbers, (agents,), 0, limits.each),
        "exploration": Expected(floats, (agents,), -LARGEST, LARGEST),
        "dead": Expected(torch.uint8, (agents,), 0, len(DEAD) - 1),
    }
    for what, size in population.statistics_sizes().items():
        found[f"seen_{what}"] = Expected(
            floats, (None, agents, 1 + 3 * size), -MOST_SEEN, MOST_SEEN
        )
    if population.algorithm.sends == "gradients":
        found["loss"] = Expected(floats, (agents,), -LARGEST, LARGEST)
        found["updates"] = Expected(numbers, (agents,), 0, 1)
        for g, group in enumerate(population.groups):
            shape = tuple(group.theta.shape)
            found[f"gradient{g}"] = Expected(group.theta.dtype, shape, -LARGEST, LARGEST)
    if population.algorithm.sends == "unrolls":
        found |= {f"{UNROLL}{name}": own for name, own in expected_unrolls(limits).items()}
    if population.algorithm.sends == "transitions" and limits.shard:
        found |= {f"{SHARD}{name}": own for name, own in expected_status(limits).items()}
    elif population.algorithm.sends == "transitions":
        found |= {f"{WINDOW}{name}": own for name, own in expected_windows(limits).items()}
    return found


def experience_fields(
    observation: ObservationSpec, action: ActionSpec, shape: tuple[int | None, ...]
) -> dict[str, Expected]:
    """The fields of steps of these environments, of this shape: as RolloutBuffer has them."""
    bits, floats = torch.bool, torch.float32
    seen = torch.from_numpy(np.empty(0, observation.dtype)).dtype
    done = torch.from_numpy(np.empty(0, action.dtype)).dtype
    low, high = (0, observation.n - 1) if observation.n is not None else (-LARGEST, LARGEST)
    if not seen.is_floating_point and observation.n is None:
        low, high = -math.inf, math.inf  # a byte is within its range
    obs = Expected(seen, (*shape, *observation.shape), low, high)
    bounds: tuple[float, float | tuple[int, ...]] = (-LARGEST, LARGEST)
    if action.choices:  # numbers of a box may be any: environments get them clipped
        most = tuple(n - 1 for n in action.choices)
        bounds = (0, most[0] if action.n is not None else most)
    return {
        "obs": obs,
        "action": Expected(done, (*shape, *action.shape), *bounds),
        "reward": Expected(floats, shape, -LARGEST, LARGEST),
        "next_obs": obs,
        **{name: Expected(bits, shape) for name in ("terminated", "ended", "valid")},
    }


def expected_unrolls(limits: Limits) -> dict[str, Expected]:
    """Of unrolls, [P, N, T, ...]: see `RolloutBuffer.unrolls`."""
    shape = (limits.agents, limits.num_envs, limits.steps)
    steps = experience_fields(limits.observation, limits.action, shape)
    return steps | {"log_prob": steps["reward"]}


def expected_windows(limits: Limits) -> dict[str, Expected]:
    """Of n-step transitions, [K, ...]: see `Transitions`; and whether they were cut at the end."""
    steps = experience_fields(limits.observation, limits.action, (None,))
    return {
        **{name: steps[name] for name in ("obs", "action", "next_obs")},
        "rewards": steps["reward"]._replace(shape=(None, limits.n_step)),
        "bootstrap": Expected(torch.uint8, (None,), 0, limits.n_step),
        "env": Expected(torch.int64, (None,), 0, limits.agents * limits.num_envs - 1),
        "td_errors": Expected(torch.float32, (None,)),
        "cut": Expected(torch.bool, (None,)),
    }


def expected_status(limits: Limits) -> dict[str, Expected]:
    """Of a part of the replay: see `Shard.status`."""
    return {
        "totals": Expected(torch.float64, (limits.agents,), 0, limits.shard * LARGEST),
        "sizes": Expected(torch.int64, (limits.agents,), 0, limits.shard),
        "dropped": Expected(torch.int64, (), 0, MOST),
    }


def check_exactly(fields: Mapping[str, Any], expected: Mapping[str, Expected]) -> None:
    """Refused unless these are the fields, and each is what it should be."""
    if other := sorted(fields.keys() ^ expected.keys()):
        raise Refused("fields", f"missing or unknown: {', '.join(map(repr, other))[:200]}")
    for name, own in expected.items():
        own.check(name, fields[name])


def check_fields(
    fields: Mapping[str, Any], expected: Mapping[str, Expected], limits: Limits
) -> None:
    """Refused unless a message has just what it should."""
    plain = {*HEADER, "env_steps", "episodes", "failures"}
    if missing := sorted(plain - fields.keys()):
        raise Refused("fields", f"missing: {', '.join(map(repr, missing))[:200]}")
    most = limits.agents * limits.each
    whole(fields, "env_steps", most)
    whole(fields, "episodes", most)
    check_exactly({n: own for n, own in fields.items() if n not in plain}, expected)
    if int(fields["returned"].sum()) != len(fields["returns"]):
        raise Refused("shape", "returns are not as many as returned says")
    seen = [fields[name] for name in expected if name.startswith("seen_")]
    if any(len(own) > limits.steps or bool((own[..., 0] < 0).any()) for own in seen):
        raise Refused("range", "statistics are of more than a message's steps")
    windows = {len(fields[name]) for name in expected if name.startswith(WINDOW)}
    pending = limits.agents * limits.num_envs * limits.n_step  # from messages before
    if len(windows) > 1 or max(windows, default=0) > most + pending:
        raise Refused("shape", "transitions are too many, or not equally many in all fields")
    failures = fields["failures"]
    if not isinstance(failures, list) or len(failures) > MOST_FAILURES:
        raise Refused("fields", "failures is no short list")
    for failure in failures:
        if not (isinstance(failure, list) and [type(part) for part in failure] == [int, str]):
            raise Refused("fields", "a failure is a number and a text")


def check_padding(fields: Mapping[str, Any], masks: list[Tensor]) -> None:
    """Refused where a gradient would move what is no weight: padding is zero and stays zero."""
    for g, mask in enumerate(masks):
        if bool((fields[f"gradient{g}"] * ~mask).any()):
            raise Refused("padding", f"gradient{g} is not zero outside of the networks")


def masks_of(population: Population) -> list[Tensor]:
    """Of each group, [P, D]: where its agents have weights that are trained."""
    found = []
    for group in population.groups:
        own = torch.stack([group.layout.mask(one.architectures) for one in group.genomes])
        for name in group.layout.statistics:
            own[:, group.layout.slices[name]] = False
        found.append(own)
    return found
