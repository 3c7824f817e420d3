"""evorl resume: a run that was stopped or killed goes on."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from evorl.cli.completing import RUN
from evorl.cli.talking import talking
from evorl.config import RunConfig, dump_config
from evorl.config.reading import parse_text
from evorl.config.yaml_text import parse_yaml
from evorl.evolution.schedule import Schedule, parse_schedule
from evorl.reporting.console import Console


@click.command(short_help="Go on with a run that was stopped or killed.")
@click.argument("run", type=RUN)
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@talking
def resume(run: Path, overrides: tuple[str, ...], console: Console) -> None:
    """Go on with the run in the directory RUN from its newest checkpoint.

    It ends with the same bytes as if it had never been stopped. The budget may be extended; options
    of learning and evolution cannot change in a run that has begun.

    \b
    evorl resume runs/cartpole
    evorl resume runs/cartpole --verbose
    evorl resume runs/cartpole budget.env_steps=1000000
    accelerate launch --config_file configs/accelerate/cpu.yaml -m evorl resume runs/cartpole
    """
    from evorl.cli.train import run_and_tell
    from evorl.distributed.store import read_on_main_rank
    from evorl.runs.directory import RunDirectory

    config, schedule = _understood(read_on_main_rank(lambda: _read(run, overrides)))
    run_and_tell(config, console, schedule=schedule, resume=RunDirectory(run))


def _read(run: Path, overrides: Sequence[str]) -> str:
    """All that ranks must know of the run, which perhaps only the main one can see."""
    from evorl.runs.directory import RunDirectory
    from evorl.runs.resume import reopen

    directory = RunDirectory.open(run)
    config, schedule = reopen(directory, overrides), directory.schedule()
    return json.dumps([dump_config(config), schedule and schedule.to_yaml()])


def _understood(told: str) -> tuple[RunConfig, Schedule | None]:
    config, schedule = json.loads(told)
    source = "the run's config.yaml"
    return (
        parse_text(config, source),
        schedule and parse_schedule(parse_yaml(schedule, source), source),
    )
