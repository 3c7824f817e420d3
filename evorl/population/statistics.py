"""The running statistics of a population: what its agents see and get in training.

Legend: P agents, N environments of an agent, K numbers of an observation, or one return.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.networks import Moments, NetworkSpec, Spec, encode, scale_of
from evorl.population.group import Group

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KEPT = ("obs", "return")  # what there may be statistics of


class KeepsStatistics:
    """The part of a population that follows observations and returns, if networks are to."""

    specs: dict[str, Spec]
    groups: list[Group]
    members: list[Ints]
    alive: Bools
    dtype: torch.dtype
    average: Callable[[Tensor], None] | None
    running_returns: Floats | None  # [P, N] discounted, of the running episodes
    # what was taken in, to be taken in elsewhere; None: nobody asks
    taken_in: dict[str, list[Tensor]] | None = None
    _order: Ints
    _places: Ints
    _in_order: bool
    _parts: list[slice]

    def _tensor(self, array: Array) -> Tensor:
        raise NotImplementedError

    def hyperparameter(self, name: str) -> Floats:
        """One hyperparameter of every agent, [P]; read only."""
        raise NotImplementedError

    def observe(self, obs: Array, valid: Bools | None = None) -> None:
        """Take observations [P, N, ...] of training into every living agent's statistics.

        Where `valid` [P, N] is False there was no step; None: all are.
        """
        if "obs_mean" in self.groups[0].normalizer:
            spec = next(own for own in self.specs.values() if isinstance(own, NetworkSpec))
            data = encode(spec, self._tensor(obs), self.dtype)
            there = self.alive[:, None].repeat(obs.shape[1], 1)
            self._merge("obs", data, there if valid is None else there & valid)

    @property
    def unobserved(self) -> bool:
        """Whether some living agent's observations are to be normalised, and none were seen yet."""
        counts = [own.normalizer.get("obs_samples") for own in self.groups]
        alive = [torch.from_numpy(self.alive[numbers]) for numbers in self.members]
        pairs = zip(counts, alive, strict=True)
        return any(own is not None and bool((own.cpu()[is_] == 0).any()) for own, is_ in pairs)

    def observe_rewards(self, reward: Array, ended: Bools, valid: Bools | None = None) -> None:
        """Take a step's rewards [P, N] into the statistics of discounted returns.

        Args:
            reward: As the environments gave them.
            ended: [P, N] whose episode is over, in whatever way.
            valid: [P, N] False: no step at all. None: all are.
        """
        if "return_mean" not in self.groups[0].normalizer:
            return
        there = self.alive[:, None].repeat(reward.shape[1], 1)
        there = there if valid is None else there & valid
        before = np.zeros(reward.shape) if self.running_returns is None else self.running_returns
        gamma = self.hyperparameter("gamma")[:, None]
        returns = np.where(there, gamma * before + reward, 0)
        self._merge("return", self._tensor(returns[..., None]), there)
        self.running_returns = np.where(ended, 0, returns)

    def reward_scale(self) -> Tensor | None:
        """What rewards are multiplied by when they are learned from, [P]; None: they are not."""
        each = [scale_of(group.normalizer) for group in self.groups]
        found = joined([own for own in each if own is not None]) if each[0] is not None else None
        return found if found is None or self._in_order else found[self._tensor(self._places)]

    @torch.no_grad()
    def _merge(self, what: str, data: Tensor, there: Bools) -> None:
        """Take samples [P, N, K] into every agent's statistics, where they are there [P, N]."""
        each = self._tensor(there)
        if not self._in_order:
            order = self._tensor(self._order)
            data, each = data[order], each[order]
        moments = self._moments(what)
        pairs = zip(moments, self._parts, strict=True)
        sums = torch.cat([own.sums(data[part], each[part]) for own, part in pairs])
        if self.taken_in is not None:
            known = torch.cat([own.mean for own in moments]).double()
            taken = torch.cat([sums, known], 1)[self._tensor(self._places)]
            self.taken_in.setdefault(what, []).append(taken)
        self._take(moments, sums)

    @torch.no_grad()
    def merge(self, what: str, taken: Tensor) -> None:
        """Take in what a copy of these agents has taken in, [S, P, 1 + 3K] (see `taken_in`).

        All S at once: ranks that average wait for each other once, whatever their S.
        """
        moments, size = self._moments(what), taken.shape[2] // 3
        total = taken.new_zeros(len(self._order), 1 + 2 * size)
        total = total.to(moments[0].mean.device)
        for number, one in enumerate(taken.to(total.device)[:, self._tensor(self._order)]):
            sums, mean = torch.split(one, [1 + 2 * size, size], 1)
            pairs = zip(moments, self._parts, strict=True)
            own = torch.cat([m.moved(sums[part], mean[part]) for m, part in pairs])
            total = total + own if number else own
        self._take(moments, total)

    def statistics_sizes(self) -> dict[str, int]:
        """Of what there are statistics, and of how many numbers, K."""
        return {what: own[0].mean.shape[1] for what in KEPT if (own := self._moments(what))}

    def _moments(self, what: str) -> list[Moments]:
        return [own for group in self.groups if (own := Moments.of(group.normalizer, what))]

    def _take(self, moments: Sequence[Moments], sums: Tensor) -> None:
        if self.average is not None:  # over the ranks that train the same agents
            self.average(sums)
        for own, part in zip(moments, self._parts, strict=True):
            own.merge_(sums[part])


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """One after another; mostly there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
