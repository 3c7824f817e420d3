"""What agents learn by: one file an algorithm, on the interface of base.py."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.algorithms.base import Algorithm as Algorithm
    from evorl.algorithms.base import Batch as Batch
    from evorl.algorithms.base import Hyperparameters as Hyperparameters
    from evorl.algorithms.base import Loss as Loss
    from evorl.algorithms.base import Trained as Trained
    from evorl.algorithms.base import discounted as discounted
    from evorl.algorithms.dqn import DQN as DQN
    from evorl.algorithms.hyperparameters import Declaration as Declaration
    from evorl.algorithms.hyperparameters import OffPolicy as OffPolicy
    from evorl.algorithms.noise import NoiseStreams as NoiseStreams
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
