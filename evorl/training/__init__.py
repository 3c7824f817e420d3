"""From a configuration to a scored run: build makes the parts, trainer lists the stages."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.training.actor_setup import start_world
    from evorl.training.agents import checked_algorithm, env_spec, make_networks, observation_spec
    from evorl.training.dry_run import Plan, plan_run
    from evorl.training.group_runs import train_group
    from evorl.training.joining import join, read_token
    from evorl.training.on_ray import Ask, train_on_ray
    from evorl.training.score import Score, alone, estimate, play_alone, score_run
    from evorl.training.signals import ending_on_signals
    from evorl.training.start import Resume, make_run, start_run
    from evorl.training.trainer import Result, evaluate_last, train
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
