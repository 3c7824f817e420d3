"""What environments gave, stored once and drawn per agent: n-step windows, replay, loader."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.experience.buffer import ReplayBuffer
    from evorl.experience.loader import ReplayLoader
    from evorl.experience.prioritised import PrioritisedSampler, linear_beta
    from evorl.experience.replay_files import Replays, check_items
    from evorl.experience.rollout import RolloutBuffer, RolloutSampler
    from evorl.experience.samples_per_insert import SamplesPerInsert
    from evorl.experience.sampling import Sampler, SampleRequest, UniformSampler, split_groups
    from evorl.experience.shards import STAMPS, LocalShard, Shard, ShardedSampler, no_items
    from evorl.experience.transitions import (
        Batch,
        RolloutBatch,
        Samples,
        Transitions,
        UnrollBatch,
        scaled_rewards,
    )
    from evorl.experience.unrolls import UnrollSampler, UnrollStore
    from evorl.experience.windows import NStep
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
