"""What agents learn by: one file an algorithm, on the interface of base.py."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.algorithms.base import Algorithm, Batch, Hyperparameters, Loss, Trained, discounted
    from evorl.algorithms.dqn import DQN
    from evorl.algorithms.hyperparameters import Declaration, OffPolicy
    from evorl.algorithms.noise import NoiseStreams
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
