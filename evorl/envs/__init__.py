"""Gymnasium and EnvPool environments behind one interface: to train in, and to be scored in."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.envs.backend import choose_backend as choose_backend
    from evorl.envs.backend import make_episodes as make_episodes
    from evorl.envs.backend import make_vector_env as make_vector_env
    from evorl.envs.backend import slots_for as slots_for
    from evorl.envs.episodes import Episodes as Episodes
    from evorl.envs.make import Env as Env
    from evorl.envs.make import EnvSpec as EnvSpec
    from evorl.envs.make import find as find
    from evorl.envs.make import make_env as make_env
    from evorl.envs.pool import Pool as Pool
    from evorl.envs.rebuilding import Failure as Failure
    from evorl.envs.rebuilding import Failures as Failures
    from evorl.envs.rebuilding import with_trace as with_trace
    from evorl.envs.spaces import ActionSpec as ActionSpec
    from evorl.envs.spaces import ObservationSpec as ObservationSpec
    from evorl.envs.spaces import SpaceAdapter as SpaceAdapter
    from evorl.envs.spaces import adapt as adapt
    from evorl.envs.vector import Step as Step
    from evorl.envs.vector import VectorEnv as VectorEnv
    from evorl.envs.vector import inspect as inspect
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
