"""What an algorithm is: pure functions with a leading population dimension.

Legend: P agents, B batch, A network outputs, N environments.

An algorithm holds no state, knows no rank and never touches an optimizer. It says how the
networks' outputs should change; the population turns that into gradients and steps.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from evorl.networks.stacked import Network, Saved
from evorl.networks.views import Arranged


class Batch(NamedTuple):
    """One update's samples. The discount says what follows: gamma^n, or 0 after a termination."""

    obs: Tensor  # [P, B, ...]
    action: Tensor  # [P, B]
    reward: Tensor  # [P, B] summed over the n steps, discounted
    next_obs: Tensor  # [P, B, ...]
    discount: Tensor  # [P, B]
    weight: Tensor  # [P, B] a sample's share of its agent's loss; 0 for padding


class Signal(NamedTuple):
    """What the backward pass starts from."""

    saved: Saved  # of the forward pass on batch.obs
    gradient: Tensor  # [P, A, B] of the summed losses by the outputs
    td_error: Tensor  # [P, B]


class Algorithm(Protocol):
    """A learning rule for a whole group of agents, and a policy for all of them."""

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """Its name and options."""
        ...

    def signal(self, network: Network, online: Arranged, target: Arranged, batch: Batch) -> Signal:
        """How the outputs should change, for one update."""
        ...

    def loss(self, td_error: Tensor, weight: Tensor) -> Tensor:
        """Each agent's loss [..., P] from errors and weights [..., P, B]."""
        ...

    def act(
        self, values: Tensor, explore: npt.NDArray[np.bool_], random: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Actions [P, N] from outputs [P, A, N]; `random` where `explore` says so."""
        ...
