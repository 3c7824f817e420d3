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
    from evorl.actors import ActorEnd, BusExchange, Inbox, Limits, WeightsMessage, copy_of
    from evorl.algorithms import (
        A2C,
        A3C,
        DDPG,
        DQN,
        IMPALA,
        PPO,
        SAC,
        TD3,
        Algorithm,
        Loss,
        NoiseStreams,
        OffPolicy,
        OnPolicy,
        Trained,
    )
    from evorl.bus import Bus
    from evorl.cli import one_line_errors
    from evorl.config import RunConfig, hyperparameter, load_config, parse_config
    from evorl.distributed import Parallel, World
    from evorl.envs import ActionSpec, EnvSpec, make_episodes, make_vector_env
    from evorl.errors import ConfigError, EvorlError, RunError, StageError
    from evorl.evolution import Mutation, Selection
    from evorl.experience import (
        Batch,
        NStep,
        PrioritisedSampler,
        ReplayBuffer,
        ReplayLoader,
        Transitions,
        UniformSampler,
        UnrollSampler,
        UnrollStore,
    )
    from evorl.genome import Architecture, Genome
    from evorl.networks import NetworkSpec
    from evorl.pipeline import (
        Actor,
        Callback,
        Context,
        Event,
        Save,
        Snapshot,
        StepTimer,
        Task,
        TrainingContext,
        play,
    )
    from evorl.population import Population
    from evorl.reporting import Console
    from evorl.runs import Agent, RunDirectory, load_agent
    from evorl.seeding import generator, held_out
    from evorl.training import (
        Result,
        ending_on_signals,
        evaluate_last,
        make_run,
        observation_spec,
        score_run,
        start_run,
        train,
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
