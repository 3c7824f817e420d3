"""A run's configuration: its sections, and how YAML and overrides become a RunConfig.

config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])
"""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.config.evolution import (
        ExploreConfig as ExploreConfig,
        MutationConfig as MutationConfig,
        SpaceConfig as SpaceConfig,
    )
    from evorl.config.loading import (
        dump_config as dump_config,
        load_config as load_config,
        parse_config as parse_config,
        parse_text as parse_text,
        refuse_override as refuse_override,
    )
    from evorl.config.messages import (
        describe as describe,
        explain as explain,
        unknown_key as unknown_key,
    )
    from evorl.config.registry import did_you_mean as did_you_mean, resolve as resolve
    from evorl.config.run_config import RunConfig as RunConfig
    from evorl.config.schema import json_schema as json_schema, markdown as markdown
    from evorl.config.section import (
        HYPERPARAMETER as HYPERPARAMETER,
        MOST as MOST,
        Activation as Activation,
        Channels as Channels,
        Count as Count,
        Fraction as Fraction,
        Pixels as Pixels,
        Section as Section,
        Units as Units,
        hyperparameter as hyperparameter,
        option as option,
        refusal as refusal,
        refuse as refuse,
    )
    from evorl.config.sections import (
        BudgetConfig as BudgetConfig,
        EvaluationConfig as EvaluationConfig,
        NetworkConfig as NetworkConfig,
        ReplayConfig as ReplayConfig,
        TrackingConfig as TrackingConfig,
        WrapperConfig as WrapperConfig,
    )
    from evorl.config.unused import unused_options as unused_options
    from evorl.config.yaml_text import (
        dump_yaml as dump_yaml,
        parse_yaml as parse_yaml,
        read_yaml as read_yaml,
    )
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
