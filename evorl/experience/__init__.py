"""What environments gave, stored once and drawn per agent: n-step windows, replay, loader."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.experience.buffer import ReplayBuffer as ReplayBuffer
    from evorl.experience.loader import ReplayLoader as ReplayLoader
    from evorl.experience.nstep import NStep as NStep
    from evorl.experience.priority import linear_beta as linear_beta
    from evorl.experience.replay_files import Replays as Replays
    from evorl.experience.requests import (
        SampleRequest as SampleRequest,
        split_groups as split_groups,
    )
    from evorl.experience.sampling import (
        PrioritisedSampler as PrioritisedSampler,
        Sampler as Sampler,
        UniformSampler as UniformSampler,
    )
    from evorl.experience.transitions import Samples as Samples, Transitions as Transitions
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
