"""Replay: what the environments gave, stored once, and drawn per agent.

The way of a transition: `NStep` (steps → windows) → `ReplayBuffer` (the ring) → a sampler, uniform
or prioritised (a round's batches in one gather) → `evorl.experience.loader` (the loader prepared by
Accelerate; imported by its own name, so that the rest of the package does not load accelerate).
"""

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.nstep import NStep
from evorl.experience.priority import Priorities, linear_beta
from evorl.experience.requests import SampleRequest, split_groups
from evorl.experience.sampling import PrioritisedSampler, Sampler, UniformSampler
from evorl.experience.storage import Replays
from evorl.experience.transitions import Items, Samples, Transitions

__all__ = [
    "Items",
    "NStep",
    "Priorities",
    "PrioritisedSampler",
    "ReplayBuffer",
    "Replays",
    "SampleRequest",
    "Sampler",
    "Samples",
    "Transitions",
    "UniformSampler",
    "linear_beta",
    "split_groups",
]
