"""evorl resume: a run that was stopped or killed goes on."""

from pathlib import Path

import click

from evorl.cli.completing import RUN
from evorl.cli.talking import talking
from evorl.console import Console


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
    from evorl.resuming import reopen
    from evorl.run_directory import RunDirectory

    directory = RunDirectory.open(run)
    config = reopen(directory, overrides)
    run_and_tell(config, console, schedule=directory.schedule(), resume=directory)
