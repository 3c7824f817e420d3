"""A run's configuration: its sections, and how YAML and overrides become a RunConfig.

    config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])
"""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.config.evolution import ExploreConfig as ExploreConfig
    from evorl.config.evolution import MutationConfig as MutationConfig
    from evorl.config.evolution import SpaceConfig as SpaceConfig
    from evorl.config.loading import dump_config as dump_config
    from evorl.config.loading import load_config as load_config
    from evorl.config.loading import parse_config as parse_config
    from evorl.config.loading import parse_text as parse_text
    from evorl.config.loading import refuse_override as refuse_override
    from evorl.config.messages import describe as describe
    from evorl.config.messages import explain as explain
    from evorl.config.messages import unknown_key as unknown_key
    from evorl.config.registry import did_you_mean as did_you_mean
    from evorl.config.registry import resolve as resolve
    from evorl.config.run_config import RunConfig as RunConfig
    from evorl.config.schema import json_schema as json_schema
    from evorl.config.schema import markdown as markdown
    from evorl.config.section import Activation as Activation
    from evorl.config.section import Channels as Channels
    from evorl.config.section import Count as Count
    from evorl.config.section import Fraction as Fraction
    from evorl.config.section import HYPERPARAMETER as HYPERPARAMETER
    from evorl.config.section import MOST as MOST
    from evorl.config.section import Pixels as Pixels
    from evorl.config.section import Section as Section
    from evorl.config.section import Units as Units
    from evorl.config.section import hyperparameter as hyperparameter
    from evorl.config.section import option as option
    from evorl.config.section import refusal as refusal
    from evorl.config.section import refuse as refuse
    from evorl.config.sections import BudgetConfig as BudgetConfig
    from evorl.config.sections import EvaluationConfig as EvaluationConfig
    from evorl.config.sections import NetworkConfig as NetworkConfig
    from evorl.config.sections import ReplayConfig as ReplayConfig
    from evorl.config.sections import TrackingConfig as TrackingConfig
    from evorl.config.sections import WrapperConfig as WrapperConfig
    from evorl.config.unused import unused_options as unused_options
    from evorl.config.yaml_text import dump_yaml as dump_yaml
    from evorl.config.yaml_text import parse_yaml as parse_yaml
    from evorl.config.yaml_text import read_yaml as read_yaml
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
