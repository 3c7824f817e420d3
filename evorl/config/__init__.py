"""A run's configuration: its sections, and how YAML and overrides become a RunConfig.

config = load_config("configs/dqn/cartpole.yaml", ["algorithm.lr=1e-4", "seed=7"])
"""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.config.completion import complete_override
    from evorl.config.evolution import ExploreConfig, HalvingConfig, MutationConfig, SpaceConfig
    from evorl.config.importing import users_import
    from evorl.config.json_schema import make_json_schema, markdown
    from evorl.config.loading import (
        dump_config,
        explain,
        load_config,
        parse_config,
        parse_text,
        refuse_override,
    )
    from evorl.config.registry import did_you_mean, import_module, resolve
    from evorl.config.run_config import RunConfig, unused_options
    from evorl.config.sections import (
        MOST,
        BudgetConfig,
        Count,
        EvaluationConfig,
        Fraction,
        NetworkConfig,
        ReplayConfig,
        Section,
        TrackingConfig,
        WrapperConfig,
        hyperparameter,
        marks,
        option,
        refusal,
        refuse,
    )
    from evorl.config.yaml_text import SCHEDULE, dump_yaml, parse_yaml, read_yaml
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
