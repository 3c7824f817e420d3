"""A run's configuration.

    config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])

run_config.py has all sections and what must fit between them; sections.py, evolution.py, spaces.py
and tracking.py the options of each, ranges.py their ranges and units, yaml_text.py the YAML,
overrides.py the command line's `section.key=value`, and wording.py the wording of errors.
"""

from evorl.config.evolution import (
    EvolutionConfig,
    ExploreConfig,
    MutationConfig,
    SelectionConfig,
)
from evorl.config.reading import dump_config, json_schema, load_config, parse_config
from evorl.config.run_config import RunConfig
from evorl.config.section import Hyperparameters
from evorl.config.sections import (
    AgentConfig,
    AlgorithmConfig,
    BudgetConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    FolderConfig,
    MeshConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    WrapperConfig,
)
from evorl.config.spaces import FractionSpace, SpaceConfig, SpacesConfig, WholeSpace
from evorl.config.tracking import TrackingConfig
from evorl.config.unused import unused_options

__all__ = [
    "AgentConfig",
    "AlgorithmConfig",
    "BudgetConfig",
    "CheckpointConfig",
    "EnvConfig",
    "EvaluationConfig",
    "EvolutionConfig",
    "ExploreConfig",
    "FolderConfig",
    "FractionSpace",
    "Hyperparameters",
    "MeshConfig",
    "MutationConfig",
    "NetworkConfig",
    "PopulationConfig",
    "ReplayConfig",
    "RunConfig",
    "SelectionConfig",
    "SpaceConfig",
    "SpacesConfig",
    "TrackingConfig",
    "WholeSpace",
    "WrapperConfig",
    "dump_config",
    "json_schema",
    "load_config",
    "parse_config",
    "unused_options",
]
