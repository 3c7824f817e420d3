"""From a configuration to a scored run: build makes the parts, trainer lists the stages."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.training.build import env_spec as env_spec
    from evorl.training.build import make_algorithm as make_algorithm
    from evorl.training.build import make_networks as make_networks
    from evorl.training.build import observation_spec as observation_spec
    from evorl.training.score import Score as Score
    from evorl.training.score import alone as alone
    from evorl.training.score import estimate as estimate
    from evorl.training.score import play_alone as play_alone
    from evorl.training.score import score_run as score_run
    from evorl.training.signals import ending_on_signals as ending_on_signals
    from evorl.training.start import Resume as Resume
    from evorl.training.start import start_run as start_run
    from evorl.training.trainer import Result as Result
    from evorl.training.trainer import make_run as make_run
    from evorl.training.trainer import train as train
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
