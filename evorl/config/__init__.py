"""A run's configuration.

    config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])

sections.py has the options, ranges.py their ranges and units, yaml_text.py the YAML, overrides.py
the command line's `section.key=value`, and wording.py the wording of errors.
"""

from evorl.config.reading import dump_config, json_schema, load_config, parse_config
from evorl.config.sections import (
    AgentConfig,
    AlgorithmConfig,
    BudgetConfig,
    EnvConfig,
    EvaluationConfig,
    FolderConfig,
    Hyperparameters,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    RunConfig,
    WrapperConfig,
)
from evorl.config.unused import unused_options

__all__ = [
    "AgentConfig",
    "AlgorithmConfig",
    "BudgetConfig",
    "EnvConfig",
    "EvaluationConfig",
    "FolderConfig",
    "Hyperparameters",
    "NetworkConfig",
    "PopulationConfig",
    "ReplayConfig",
    "RunConfig",
    "WrapperConfig",
    "dump_config",
    "json_schema",
    "load_config",
    "parse_config",
    "unused_options",
]
