"""What an algorithm is: one class of pure functions with a leading population dimension.

Legend: P agents, B batch, N environments of an agent, O outputs of a network.

An algorithm holds no state, knows no rank and never touches an optimizer. It declares its networks
and hyperparameters, says how agents act, and what their loss is; everything else (padding, groups,
Adam, clipping, target networks, compiling, evolution, ranks, checkpoints, export) follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from evorl.algorithms.hyperparameters import Declaration
from evorl.envs import ActionSpec
from evorl.errors import ConfigError
from evorl.experience import Batch
from evorl.networks import Networks, NetworkSpec, Spec, Weights

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Loss(NamedTuple):
    """What an update minimises."""

    loss: Tensor  # [P] each agent's own, as `weight` adds up its samples
    priority: Tensor | None = None  # [P, B] errors by which a prioritised replay draws
    stop: Tensor | None = None  # [P] whose updates end before this one, until new experience


class Gradients(NamedTuple):
    """The same in closed form: gradients of the weights, and what priorities go by."""

    segments: dict[str, Weights]  # of each network, by segment
    priority: Tensor  # [P, B]


@dataclass(frozen=True)
class Trained:
    """A network or bare parameter of every agent, and how it is trained: by which hyperparameters.

    Statistics are not trained at all.

    A target network follows by a fraction `tau`, or is copied, at every update or one in `period`;
    without either there is none. With `every`, it is trained at one in so many updates only.
    """

    spec: Spec
    lr: str = "lr"
    max_grad_norm: str | None = None
    tau: str | None = None
    period: str | None = None
    every: str | None = None


class Hyperparameters:
    """Every agent's numbers by name, [P] each, as views of one tensor [H, P]."""

    def __init__(self, names: tuple[str, ...], values: Tensor) -> None:
        self.names, self.values = names, values

    def __getitem__(self, name: str) -> Tensor:
        return self.values.select(0, self.names.index(name))


class Algorithm(Declaration):
    """A learning rule for a whole group of agents, and a policy for all of them.

    `networks`, `loss` and `greedy` are what every algorithm says; the rest has defaults.
    """

    clips_together: ClassVar[bool] = False  # by the norm of all networks' gradients, or of each?

    @property
    def may_stop(self) -> bool:
        """Whether `loss` says who stops."""
        return False

    def networks(self, observation: NetworkSpec, action: ActionSpec) -> dict[str, Trained]:
        """The networks of an agent by name; `observation` is a spec with the inputs filled in."""
        raise TypeError(f"{type(self).__name__} declares no networks")

    def loss(self, networks: Networks, targets: Networks, batch: Any, hp: Hyperparameters) -> Loss:
        """The loss of an update on a Batch or RolloutBatch; autograd differentiates it."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def measures(
        self, networks: Networks, targets: Networks, batch: Any, hp: Hyperparameters
    ) -> dict[str, Tensor]:
        """What of a batch is worth a curve beside the loss, such as Q values: [P] by name."""
        return {}

    def greedy(self, networks: Networks, obs: Tensor) -> Tensor:
        """The best actions [P, N] for observations [P, N, ...], for scoring and exporting."""
        raise TypeError(f"{type(self).__name__} has no greedy policy")

    def loss_noise(self, action: ActionSpec) -> int:
        """How many random numbers `loss` gets for each sample."""
        return 0

    def noise(
        self, random: np.random.Generator, shape: tuple[int, int], action: ActionSpec
    ) -> dict[str, npt.NDArray[Any]]:
        """The random part of an agent's acting, for T iterations in N environments: [T, N, ...]."""
        return {}

    def exploration(self, hp: Mapping[str, Floats], steps: Ints) -> Floats:
        """How much each agent explores [P] after its own environment steps [P]; as reported."""
        return np.zeros(len(steps))

    def exploration_of(self, exploration: Floats, share: float) -> Floats:
        """How much of it an actor does: `share` goes from 0, for the first one, to 1."""
        return exploration

    def log_prob(self, networks: Networks, obs: Tensor, action: Tensor) -> Tensor:
        """With rollouts: log-probabilities [P, B] of actions at observations [P, B, ...]."""
        raise TypeError(f"{type(self).__name__} does not learn from rollouts")

    def value(self, networks: Networks, obs: Tensor) -> Tensor:
        """With rollouts: values [P, B] of observations [P, B, ...]."""
        raise TypeError(f"{type(self).__name__} does not learn from rollouts")

    def act(
        self,
        networks: Networks,
        obs: Tensor,
        hp: Hyperparameters,
        noise: Mapping[str, Tensor],
        exploration: Tensor,
    ) -> Tensor:
        """Actions [P, N] in training, from observations [P, N, ...] and noise [P, N, ...]."""
        return self.greedy(networks, obs)

    def gradients(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> Gradients:
        """`loss` differentiated in closed form, for speed; see `has_closed_form`."""
        raise TypeError(f"{type(self).__name__} has no closed form")

    def loss_of(self, priority: Tensor, weight: Tensor) -> Tensor:
        """With a closed form: losses [..., P] from what it gave as priorities [..., P, B]."""
        raise TypeError(f"{type(self).__name__} has no closed form")

    @classmethod
    def has_closed_form(cls) -> bool:
        """Whether `gradients` belongs to `loss`: a subclass with a loss of its own has none."""
        for own in cls.__mro__:
            if "gradients" in vars(own):
                return own is not Algorithm
            if "loss" in vars(own):
                return False
        return False


def mean_of(values: Tensor, weight: Tensor) -> Tensor:
    """Mean [P] of a batch's values [P, B], where there is a sample."""
    there = (weight > 0).to(values.dtype)
    return (values * there).sum(-1) / there.sum(-1).clamp(min=1)


def discrete_actions(algorithm: Declaration, action: ActionSpec) -> int:
    """How many actions there are; ConfigError if they cannot be counted."""
    if action.kind != "discrete" or action.n is None:
        raise ConfigError(
            f"algorithm.name: {algorithm.name} takes Discrete actions, and the environment's are"
            f" {action.kind}; choose another algorithm"
        )
    return action.n


def continuous_actions(algorithm: Declaration, action: ActionSpec) -> int:
    """How many numbers an action has; ConfigError unless actions are a Box."""
    if action.kind != "continuous":
        raise ConfigError(
            f"algorithm.name: {algorithm.name} takes Box actions, and the environment's are"
            f" {action.kind}; choose another algorithm, such as dqn"
        )
    return action.shape[0]
