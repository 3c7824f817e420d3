"""The replays of one rank as files of a checkpoint; and back, on fewer or more ranks, too."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
from torch import Tensor

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.sampling import Sampler
from evorl.experience.transitions import Transitions

COMMON = "replay-world"
Tensors = dict[str, Tensor]
Load = Callable[[str], Tensors]


class Replays(NamedTuple):
    """What a rank remembers: one replay for all its agents, or one for each of them."""

    buffer: ReplayBuffer
    sampler: Sampler
    agents: range  # of this rank, by their number in the run
    copy: int  # of these agents, as several ranks may train the same ones
    rank: int
    mesh: tuple[int, int]  # ranks along population and along data

    def files(self) -> dict[str, Tensors]:
        """Named by agent where each has its own, so that any rank can take it over."""
        if self.sampler.own:
            return {
                self._own_name(agent): self.sampler.export(i) for i, agent in enumerate(self.agents)
            }
        if self.sampler.common:
            return self._common_files()
        return {_shared_name(self.rank): self.buffer.state_dict() | self.sampler.state_dict()}

    def load(self, stems: Collection[str], load: Load, mesh: tuple[int, int]) -> bool:
        """Take over what ranks of another mesh, or of the same, had saved.

        False if it is not what they had: dealt out again, or some copies of an agent lack theirs.
        """
        if self.sampler.own or self.sampler.common:
            if self.sampler.common:
                self.buffer.load_state_dict(load(COMMON))
            for i, agent in enumerate(self.agents):
                if self.sampler.own or self.sampler.export(i):
                    self.sampler.take_over(i, load(self._saved_name(agent, stems)))
            return mesh[1] == self.mesh[1]
        if mesh == self.mesh:
            state = load(_shared_name(self.rank))
            priorities = {name: state.pop(name) for name in self.sampler.state_dict()}
            self.buffer.load_state_dict(state)
            self.sampler.load_state_dict(priorities)
            return True
        saved, ranks = mesh[0] * mesh[1], self.mesh[0] * self.mesh[1]
        mine = range(self.rank, saved, ranks) or [self.rank % saved]
        for rank in mine:
            self.sampler.inserted(self.buffer.add(_oldest_first(load(_shared_name(rank)))))
        return False

    def _common_files(self) -> dict[str, Tensors]:
        """The replay that all ranks have, once; and by agent what each makes of it."""
        files = {
            self._own_name(agent): own
            for i, agent in enumerate(self.agents)
            if (own := self.sampler.export(i))
        }
        return files | ({COMMON: self.buffer.state_dict()} if self.rank == 0 else {})

    def _saved_name(self, agent: int, stems: Collection[str]) -> str:
        """A copy of an agent that there was none of begins with what the first one has."""
        name = self._own_name(agent)
        return name if name in stems else f"replay-agent-{agent}"

    def _own_name(self, agent: int) -> str:
        return f"replay-agent-{agent}" + (f"-copy-{self.copy}" if self.copy else "")


def _shared_name(rank: int) -> str:
    return f"replay-rank-{rank}"


def _oldest_first(state: Tensors) -> Transitions:
    """The items of a saved ring, in the order in which they came."""
    size, position = len(state["action"]), int(state["position"].item())
    full = size == int(state["capacity"].item())
    order = np.roll(np.arange(size), -position) if full else np.arange(size)
    fields = {name: state[name].numpy()[order] for name in Transitions._fields[:5]}
    return Transitions(**fields, slot=np.zeros(size, dtype=np.int64))
