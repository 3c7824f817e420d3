"""A run's configuration.

    config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])

run_config.py has all sections and what must fit between them; sections.py and evolution.py the
options of each, section.py what they are made of; registry.py the parts that names stand for, also
a user's own; loading.py YAML and the command line's `section.key=value`; messages.py the wording of
errors, unused.py warnings, schema.py the JSON schema and docs/configuration.md.
"""

from evorl.config.evolution import (
    EvolutionConfig,
    ExploreConfig,
    MutationConfig,
    SpaceConfig,
    SpacesConfig,
)
from evorl.config.loading import dump_config, load_config, parse_config
from evorl.config.registry import resolve
from evorl.config.run_config import RunConfig
from evorl.config.schema import json_schema
from evorl.config.sections import (
    AgentConfig,
    BudgetConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    FolderConfig,
    MeshConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    TrackingConfig,
    WrapperConfig,
)
from evorl.config.unused import unused_options

__all__ = [
    "AgentConfig",
    "BudgetConfig",
    "CheckpointConfig",
    "EnvConfig",
    "EvaluationConfig",
    "EvolutionConfig",
    "ExploreConfig",
    "FolderConfig",
    "MeshConfig",
    "MutationConfig",
    "NetworkConfig",
    "PopulationConfig",
    "ReplayConfig",
    "RunConfig",
    "SpaceConfig",
    "SpacesConfig",
    "TrackingConfig",
    "WrapperConfig",
    "dump_config",
    "json_schema",
    "load_config",
    "parse_config",
    "resolve",
    "unused_options",
]
