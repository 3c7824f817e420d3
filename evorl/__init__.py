"""Evolutionary hyperparameter optimisation for reinforcement learning.

    import evorl

    result = evorl.train("configs/dqn/cartpole.yaml", ["budget.env_steps=50000"])
    action = result.best.act(observation)

All public names are here, for a loop of one's own, too; each is imported when it is first used.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.algorithms import (
        DQN as DQN,
        Algorithm as Algorithm,
        Batch as Batch,
        Loss as Loss,
        NoiseStreams as NoiseStreams,
        OffPolicy as OffPolicy,
        Trained as Trained,
    )
    from evorl.cli.errors import one_line_errors as one_line_errors
    from evorl.config import (
        RunConfig as RunConfig,
        hyperparameter as hyperparameter,
        load_config as load_config,
        parse_config as parse_config,
    )
    from evorl.distributed import World as World
    from evorl.envs import (
        ActionSpec as ActionSpec,
        EnvSpec as EnvSpec,
        make_episodes as make_episodes,
        make_vector_env as make_vector_env,
    )
    from evorl.errors import (
        ConfigError as ConfigError,
        EvorlError as EvorlError,
        RunError as RunError,
    )
    from evorl.evolution import Mutation as Mutation, Selection as Selection
    from evorl.experience import (
        NStep as NStep,
        PrioritisedSampler as PrioritisedSampler,
        ReplayBuffer as ReplayBuffer,
        ReplayLoader as ReplayLoader,
        UniformSampler as UniformSampler,
    )
    from evorl.genome import Architecture as Architecture, Genome as Genome
    from evorl.networks import NetworkSpec as NetworkSpec
    from evorl.pipeline import (
        Callback as Callback,
        Context as Context,
        Event as Event,
        Save as Save,
        Snapshot as Snapshot,
        Task as Task,
        play as play,
    )
    from evorl.population import Population as Population
    from evorl.reporting import Console as Console
    from evorl.runs import Agent as Agent, RunDirectory as RunDirectory, load_agent as load_agent
    from evorl.seeding import generator as generator, held_out as held_out
    from evorl.training import (
        Result as Result,
        ending_on_signals as ending_on_signals,
        make_run as make_run,
        observation_spec as observation_spec,
        score_run as score_run,
        start_run as start_run,
        train as train,
    )

__version__ = "0.1.0"


def lazy_door(file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's `__getattr__`, `__dir__` and `__all__`: all that its TYPE_CHECKING block imports.

    So each room lists in one place what it offers, and what is not used is never imported.
    """
    path = Path(file)
    package = "evorl" if path.parent.name == "evorl" else f"evorl.{path.parent.name}"
    imports = [
        n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)
    ]
    module_of = {
        name.name: node.module
        for node in imports
        for name in node.names
        if node.module and node.module.startswith("evorl.")
    }

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # from now on without this function
        return value

    return get, lambda: sorted(module_of), sorted(module_of)


if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
