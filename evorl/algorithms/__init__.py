"""What agents learn by: one file an algorithm, on the interface of base.py."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.algorithms.base import (
        Algorithm as Algorithm,
        Batch as Batch,
        Hyperparameters as Hyperparameters,
        Loss as Loss,
        Trained as Trained,
        discounted as discounted,
    )
    from evorl.algorithms.dqn import DQN as DQN
    from evorl.algorithms.hyperparameters import Declaration as Declaration, OffPolicy as OffPolicy
    from evorl.algorithms.noise import NoiseStreams as NoiseStreams
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
