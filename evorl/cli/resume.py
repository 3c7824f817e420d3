"""evorl resume: continue a run that was stopped or killed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.options import OVERRIDES, RUN, VERBOSE, make_console, quiet

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.evolution import Schedule


@click.command
@click.argument("run", type=RUN)
@OVERRIDES
@quiet()
@VERBOSE
def resume(run: Path, overrides: tuple[str, ...], quiet: bool, verbose: bool) -> None:
    """Resume the run in the directory RUN from its newest checkpoint.

    It ends with the same bytes as if it had never been stopped. The budget may be extended; options
    of learning and evolution cannot change in a run that has begun.

    \b
    evorl resume runs/cartpole
    evorl resume runs/cartpole --verbose
    evorl resume runs/cartpole budget.env_steps=1000000
    accelerate launch --config_file configs/accelerate/cpu.yaml -m evorl resume runs/cartpole
    """
    from evorl.cli.train import run_and_print
    from evorl.distributed import read_on_main_rank
    from evorl.runs import RunDirectory

    console = make_console(quiet, verbose)
    config, schedule = _parse(read_on_main_rank(lambda: _read(run, overrides)))
    run_and_print(config, console, schedule=schedule, resume=RunDirectory(run))


def _read(run: Path, overrides: Sequence[str]) -> str:
    """All that ranks must know of the run, which perhaps only the main one can see."""
    from evorl.config import dump_config
    from evorl.runs import RunDirectory, reopen

    directory = RunDirectory.open(run)
    config, schedule = reopen(directory, overrides), directory.schedule()
    return json.dumps([dump_config(config), schedule and schedule.to_yaml()])


def _parse(text: str) -> "tuple[RunConfig, Schedule | None]":
    from evorl.config import parse_text, parse_yaml
    from evorl.evolution import parse_schedule

    config, schedule = json.loads(text)
    source = "the run's config.yaml"
    return (
        parse_text(config, source),
        schedule and parse_schedule(parse_yaml(schedule, source), source),
    )
