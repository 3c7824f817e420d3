"""From a configuration to a scored run: build makes the parts, trainer lists the stages."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.training.build import (
        env_spec as env_spec,
        make_algorithm as make_algorithm,
        make_networks as make_networks,
        observation_spec as observation_spec,
    )
    from evorl.training.score import (
        Score as Score,
        alone as alone,
        estimate as estimate,
        play_alone as play_alone,
        score_run as score_run,
    )
    from evorl.training.signals import ending_on_signals as ending_on_signals
    from evorl.training.start import Resume as Resume, start_run as start_run
    from evorl.training.trainer import Result as Result, make_run as make_run, train as train
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
