"""The replays of one rank as files of a checkpoint; and back, on fewer or more ranks, too."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.sampling import Sampler
from evorl.experience.transitions import Transitions

Tensors = dict[str, Tensor]


@dataclass
class Replays:
    """What a rank remembers: one replay for all its agents, or one for each of them."""

    buffer: ReplayBuffer
    sampler: Sampler
    agents: range  # of this rank, by their number in the run
    copy: int  # of these agents, as several ranks may train the same ones
    rank: int
    mesh: tuple[int, int]  # ranks along population and along data

    def files(self) -> dict[str, Tensors]:
        """By agent what each has for itself, so that any rank can take it over; and what is shared.

        A replay that all ranks have is written once.
        """
        states = (self.sampler.state_dict(i) for i in range(len(self.agents)))
        files = {self._own_name(a): s for a, s in zip(self.agents, states, strict=True) if s}
        if self.sampler.share == "rank" or (self.sampler.share == "world" and self.rank == 0):
            files[self._shared_name(self.rank)] = self.buffer.state_dict()
        return files

    def load(
        self, stems: Collection[str], load: Callable[[str], Tensors], mesh: tuple[int, int]
    ) -> bool:
        """Take over what ranks of another mesh, or of the same, had saved.

        False if it is not what they had: dealt out again, or some copies of an agent lack theirs.
        """
        if self.sampler.share == "rank" and mesh != self.mesh:
            saved, ranks = mesh[0] * mesh[1], self.mesh[0] * self.mesh[1]
            for rank in range(self.rank, saved, ranks) or [self.rank % saved]:
                items = _oldest_first(load(self._shared_name(rank)))
                self.sampler.inserted(self.buffer.add(items))
            return False
        if self.sampler.share != "agent":
            self.buffer.load_state_dict(load(self._shared_name(self.rank)))
        for i, agent in enumerate(self.agents):
            # a copy of an agent that there was none of begins with what the first one has
            for name in (self._own_name(agent), f"replay-agent-{agent}"):
                if name in stems:
                    self.sampler.load_state_dict(load(name), i)
                    break
        return mesh[1] == self.mesh[1]

    def _shared_name(self, rank: int) -> str:
        return "replay-world" if self.sampler.share == "world" else f"replay-rank-{rank}"

    def _own_name(self, agent: int) -> str:
        return f"replay-agent-{agent}" + (f"-copy-{self.copy}" if self.copy else "")


def check_items(state: Tensors, choices: Sequence[int]) -> None:
    """ValueError if actions that were stored are none of those that there are."""
    action = state.get("action")
    if action is None or not choices:
        return
    if action.is_floating_point() or ((action < 0) | (action >= torch.tensor(choices))).any():
        raise ValueError("the replay has actions that the environment does not know")


def _oldest_first(state: Tensors) -> Transitions:
    """The items of a saved ring, in the order in which they came."""
    size, position = len(state["action"]), int(state["position"].item())
    full = size == int(state["capacity"].item())
    order = np.roll(np.arange(size), -position) if full else np.arange(size)
    fields = {name: state[name].numpy()[order] for name in Transitions._fields[:5]}
    return Transitions(**fields, env=np.zeros(size, dtype=np.int64))
