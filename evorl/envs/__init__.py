"""Gymnasium and EnvPool environments behind one interface: to train in, and to be scored in."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.envs.backend import (
        choose_backend,
        make_episodes,
        make_vector_env,
        slots_for,
        spaces_of,
    )
    from evorl.envs.entrance import LARGEST
    from evorl.envs.make import Env, EnvSpec, adapted, find, make_env
    from evorl.envs.rebuilding import Failure, Failures, with_trace
    from evorl.envs.spaces import ActionSpec, ObservationSpec, SpaceAdapter, adapt
    from evorl.envs.vector import Episodes, Step, VectorEnv, steps_limit
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
