"""Replay: what the environments gave, stored once, and drawn per agent.

The way of a transition: `NStep` (steps → windows) → `ReplayBuffer` (the ring) → a sampler, uniform
or prioritised (a round's batches in one gather) → `evorl.replay.dataset` (the loader prepared by
Accelerate; imported by its own name, so that the rest of the package does not load accelerate).
"""

from evorl.replay.buffer import ReplayBuffer
from evorl.replay.nstep import NStep
from evorl.replay.plans import GroupPlan, split_groups
from evorl.replay.priority import Priorities, linear_beta
from evorl.replay.replays import Replays
from evorl.replay.sampling import PrioritisedSampler, Sampler, UniformSampler
from evorl.replay.transitions import Items, Samples, Transitions

__all__ = [
    "GroupPlan",
    "Items",
    "NStep",
    "Priorities",
    "PrioritisedSampler",
    "ReplayBuffer",
    "Replays",
    "Sampler",
    "Samples",
    "Transitions",
    "UniformSampler",
    "linear_beta",
    "split_groups",
]
