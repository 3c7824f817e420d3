"""What environments gave, stored once and drawn per agent: n-step windows, replay, loader."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.experience.buffer import ReplayBuffer
    from evorl.experience.loader import ReplayLoader
    from evorl.experience.priority import linear_beta
    from evorl.experience.replay_files import Replays
    from evorl.experience.rollout import RolloutBuffer, RolloutSampler
    from evorl.experience.sampling import (
        PrioritisedSampler,
        Sampler,
        SampleRequest,
        UniformSampler,
        split_groups,
    )
    from evorl.experience.transitions import (
        Batch,
        NStep,
        RolloutBatch,
        Samples,
        Transitions,
        scaled_rewards,
    )
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
