"""Gymnasium and EnvPool environments behind one interface.

`make_vector_env` gives the environments that agents collect experience in, `make_episodes` the ones
that their fitness is measured in. `choose_backend` says which backend `auto` stands for, and why.
"""

from evorl.envs.backend import choose_backend, make_episodes, make_vector_env, slots_for
from evorl.envs.episodes import Episodes
from evorl.envs.make import EnvSpec
from evorl.envs.spaces import ActionSpec, ObservationSpec
from evorl.envs.vector import Step, VectorEnv

__all__ = [
    "ActionSpec",
    "EnvSpec",
    "Episodes",
    "ObservationSpec",
    "Step",
    "VectorEnv",
    "choose_backend",
    "make_episodes",
    "make_vector_env",
    "slots_for",
]
