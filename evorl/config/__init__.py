"""A run's configuration.

    config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])

run_config.py has all sections and what must fit between them; sections.py and evolution.py the
options of each, section.py what they are made of; registry.py the parts that names stand for, also
a user's own; loading.py files and the command line's `section.key=value`, with yaml_text.py;
messages.py the wording of errors, unused.py warnings, schema.py the JSON schema and
docs/configuration.md.

Each name is imported when it is first used: what lists runs does not load pydantic.
"""

from typing import TYPE_CHECKING

from evorl import lazy_names

if TYPE_CHECKING:
    from evorl.config.evolution import EvolutionConfig as EvolutionConfig
    from evorl.config.evolution import ExploreConfig as ExploreConfig
    from evorl.config.evolution import MutationConfig as MutationConfig
    from evorl.config.evolution import SpaceConfig as SpaceConfig
    from evorl.config.evolution import SpacesConfig as SpacesConfig
    from evorl.config.loading import dump_config as dump_config
    from evorl.config.loading import load_config as load_config
    from evorl.config.loading import parse_config as parse_config
    from evorl.config.loading import parse_text as parse_text
    from evorl.config.loading import refuse_override as refuse_override
    from evorl.config.registry import resolve as resolve
    from evorl.config.run_config import RunConfig as RunConfig
    from evorl.config.schema import json_schema as json_schema
    from evorl.config.sections import AgentConfig as AgentConfig
    from evorl.config.sections import BudgetConfig as BudgetConfig
    from evorl.config.sections import CheckpointConfig as CheckpointConfig
    from evorl.config.sections import EnvConfig as EnvConfig
    from evorl.config.sections import EvaluationConfig as EvaluationConfig
    from evorl.config.sections import FolderConfig as FolderConfig
    from evorl.config.sections import MeshConfig as MeshConfig
    from evorl.config.sections import NetworkConfig as NetworkConfig
    from evorl.config.sections import PopulationConfig as PopulationConfig
    from evorl.config.sections import ReplayConfig as ReplayConfig
    from evorl.config.sections import TrackingConfig as TrackingConfig
    from evorl.config.sections import WrapperConfig as WrapperConfig
    from evorl.config.unused import unused_options as unused_options
    from evorl.config.yaml_text import dump_yaml as dump_yaml
    from evorl.config.yaml_text import parse_yaml as parse_yaml
    from evorl.config.yaml_text import read_yaml as read_yaml

_MODULES = {
    "evolution": "EvolutionConfig ExploreConfig MutationConfig SpaceConfig SpacesConfig",
    "loading": "dump_config load_config parse_config parse_text refuse_override",
    "registry": "resolve",
    "run_config": "RunConfig",
    "schema": "json_schema",
    "sections": "AgentConfig BudgetConfig CheckpointConfig EnvConfig EvaluationConfig FolderConfig "
    "MeshConfig NetworkConfig PopulationConfig ReplayConfig TrackingConfig WrapperConfig",
    "unused": "unused_options",
    "yaml_text": "dump_yaml parse_yaml read_yaml",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
