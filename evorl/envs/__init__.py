"""Gymnasium and EnvPool environments behind one interface: to train in, and to be scored in."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.envs.backend import (
        choose_backend as choose_backend,
        make_episodes as make_episodes,
        make_vector_env as make_vector_env,
        slots_for as slots_for,
    )
    from evorl.envs.episodes import Episodes as Episodes
    from evorl.envs.make import Env as Env, EnvSpec as EnvSpec, find as find, make_env as make_env
    from evorl.envs.pool import Pool as Pool
    from evorl.envs.rebuilding import (
        Failure as Failure,
        Failures as Failures,
        with_trace as with_trace,
    )
    from evorl.envs.spaces import (
        ActionSpec as ActionSpec,
        ObservationSpec as ObservationSpec,
        SpaceAdapter as SpaceAdapter,
        adapt as adapt,
    )
    from evorl.envs.vector import Step as Step, VectorEnv as VectorEnv, inspect as inspect
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
