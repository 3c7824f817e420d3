"""Evolutionary hyperparameter optimisation for reinforcement learning.

    import evorl

    result = evorl.train("configs/dqn/cartpole.yaml", ["budget.env_steps=50000"])
    action = result.best.act(observation)

All public names are here, for a loop of one's own, too; each is imported when it is first used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.algorithms.base import Algorithm as Algorithm
    from evorl.algorithms.base import Batch as Batch
    from evorl.algorithms.base import Loss as Loss
    from evorl.algorithms.base import Trained as Trained
    from evorl.algorithms.declaration import OffPolicy as OffPolicy
    from evorl.algorithms.dqn import DQN as DQN
    from evorl.algorithms.noise import NoiseStreams as NoiseStreams
    from evorl.cli.errors import one_line_errors as one_line_errors
    from evorl.config import RunConfig as RunConfig
    from evorl.config import load_config as load_config
    from evorl.config import parse_config as parse_config
    from evorl.config.section import hyperparameter as hyperparameter
    from evorl.distributed.world import World as World
    from evorl.envs import EnvSpec as EnvSpec
    from evorl.envs import make_episodes as make_episodes
    from evorl.envs import make_vector_env as make_vector_env
    from evorl.envs.spaces import ActionSpec as ActionSpec
    from evorl.errors import ConfigError as ConfigError
    from evorl.errors import EvorlError as EvorlError
    from evorl.errors import RunError as RunError
    from evorl.evolution.mutation import Mutation as Mutation
    from evorl.evolution.selection import Selection as Selection
    from evorl.experience import NStep as NStep
    from evorl.experience import PrioritisedSampler as PrioritisedSampler
    from evorl.experience import ReplayBuffer as ReplayBuffer
    from evorl.experience import UniformSampler as UniformSampler
    from evorl.experience.loader import ReplayLoader as ReplayLoader
    from evorl.genome import Architecture as Architecture
    from evorl.genome import Genome as Genome
    from evorl.networks.spec import NetworkSpec as NetworkSpec
    from evorl.pipeline.callbacks import Callback as Callback
    from evorl.pipeline.callbacks import Event as Event
    from evorl.pipeline.context import Context as Context
    from evorl.pipeline.evaluate import play as play
    from evorl.pipeline.save import Save as Save
    from evorl.pipeline.snapshot import Snapshot as Snapshot
    from evorl.pipeline.task import Task as Task
    from evorl.population.population import Population as Population
    from evorl.reporting.console import Console as Console
    from evorl.runs.agent import Agent as Agent
    from evorl.runs.agent import load_agent as load_agent
    from evorl.runs.directory import RunDirectory as RunDirectory
    from evorl.seeding import generator as generator
    from evorl.seeding import held_out as held_out
    from evorl.training.build import observation_spec as observation_spec
    from evorl.training.resume import start as start
    from evorl.training.score import score_run as score_run
    from evorl.training.signals import ending_on_signals as ending_on_signals
    from evorl.training.trainer import Result as Result
    from evorl.training.trainer import make_run as make_run
    from evorl.training.trainer import train as train

__version__ = "0.1.0"


def lazy_names(package: str, modules: dict[str, str]) -> tuple[Any, Any, list[str]]:
    """`__getattr__`, `__dir__`, `__all__` of a package that imports names when they are first used.

    `modules` has the names that each module of the package gives to others.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted(module_of)

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # from now on without this function
        return value

    return get, lambda: public, public


_MODULES = {
    "algorithms.base": "Algorithm Batch Loss Trained",
    "algorithms.declaration": "OffPolicy",
    "algorithms.dqn": "DQN",
    "algorithms.noise": "NoiseStreams",
    "cli.errors": "one_line_errors",
    "config": "RunConfig load_config parse_config",
    "config.section": "hyperparameter",
    "distributed.world": "World",
    "envs": "EnvSpec make_episodes make_vector_env",
    "envs.spaces": "ActionSpec",
    "errors": "ConfigError EvorlError RunError",
    "evolution.mutation": "Mutation",
    "evolution.selection": "Selection",
    "experience": "NStep PrioritisedSampler ReplayBuffer UniformSampler",
    "experience.loader": "ReplayLoader",
    "genome": "Architecture Genome",
    "networks.spec": "NetworkSpec",
    "pipeline.callbacks": "Callback Event",
    "pipeline.context": "Context",
    "pipeline.evaluate": "play",
    "pipeline.save": "Save",
    "pipeline.snapshot": "Snapshot",
    "pipeline.task": "Task",
    "population.population": "Population",
    "reporting.console": "Console",
    "runs.directory": "RunDirectory",
    "runs.agent": "Agent load_agent",
    "seeding": "generator held_out",
    "training.build": "observation_spec",
    "training.resume": "start",
    "training.score": "score_run",
    "training.signals": "ending_on_signals",
    "training.trainer": "Result make_run train",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
__all__ += ["__version__"]
