"""The learning algorithms, one file each, on the interface in base.py."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.algorithms.a2c import A2C, A3C
    from evorl.algorithms.base import Algorithm, Hyperparameters, Loss, Trained
    from evorl.algorithms.ddpg import DDPG, TD3
    from evorl.algorithms.dqn import DQN
    from evorl.algorithms.hyperparameters import Declaration, OffPolicy, OnPolicy
    from evorl.algorithms.impala import IMPALA
    from evorl.algorithms.noise import NoiseStreams
    from evorl.algorithms.ppo import PPO
    from evorl.algorithms.returns import advantages, vtrace
    from evorl.algorithms.sac import SAC
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
