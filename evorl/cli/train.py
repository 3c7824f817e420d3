"""evorl train and resume: one run, or one agent along a schedule."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from evorl.cli.shared import OVERRIDES, PATH, QUIET, RUN, VERBOSE, echo_score, make_console
from evorl.errors import ConfigError

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.evolution import Schedule
    from evorl.reporting import Console
    from evorl.training import Resume


@click.command
@click.argument("config", type=PATH)
@OVERRIDES
@click.option(
    "--replay-schedule",
    type=PATH,
    metavar="FILE",
    help="Train one agent by a schedule of `evorl schedule`, without selection.",
)
@click.option(
    "--resume",
    type=click.Choice(["auto"]),
    help="auto: resume the run of this name if there is one, for launchers that restart a job.",
)
@QUIET
@VERBOSE
def train(
    config: Path,
    overrides: tuple[str, ...],
    resume: Literal["auto"] | None,
    replay_schedule: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Train as the YAML file CONFIG says, and print the held-out score.

    With --replay-schedule one agent trains from scratch with the hyperparameters that another's
    line of descent had, for as many steps, into the run directory NAME-seed7 of its seed. What the
    schedule fixes (hyperparameters, network, population, evolution, replay.share, the budget but
    for budget.stop_at) cannot be set then, and counts for nothing in CONFIG.

    \b
    evorl train configs/dqn/cartpole.yaml
    evorl train configs/dqn/cartpole.yaml --verbose
    evorl train configs/dqn/lunar_lander.yaml population.size=8 algorithm.lr=1e-3 seed=7
    evorl train configs/dqn/cartpole.yaml --replay-schedule schedule.yaml seed=101
    """
    from evorl.config import load_config
    from evorl.evolution import config_for_schedule, read_schedule

    console = make_console(quiet, verbose)
    if resume and replay_schedule:
        raise ConfigError("--resume: not with --replay-schedule; use evorl resume RUN")
    loaded, schedule = load_config(config, overrides), None
    if replay_schedule is not None:
        schedule, name = read_schedule(replay_schedule), f"{loaded.name}-seed{loaded.seed}"
        loaded = config_for_schedule(loaded, schedule, overrides).model_copy(update={"name": name})
    _run_and_print(loaded, console, schedule, resume)


@click.command
@RUN
@OVERRIDES
@QUIET
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
    from evorl.config import SCHEDULE, parse_text, parse_yaml
    from evorl.distributed import read_on_main_rank
    from evorl.evolution import parse_schedule
    from evorl.runs import RunDirectory

    console, source = make_console(quiet, verbose), "the run's config.yaml"
    config, text = json.loads(read_on_main_rank(lambda: _read(run, overrides)))
    schedule = parse_schedule(parse_yaml(text, source, SCHEDULE), source) if text else None
    _run_and_print(parse_text(config, source), console, schedule, RunDirectory(run))


def _read(run: Path, overrides: Sequence[str]) -> str:
    """All that ranks must know of the run, which perhaps only the main one can see."""
    from evorl.config import dump_config
    from evorl.runs import RunDirectory, reopen

    directory = RunDirectory.open(run)
    config, schedule = reopen(directory, overrides), directory.schedule()
    return json.dumps([dump_config(config), schedule and schedule.to_yaml()])


def _run_and_print(
    config: "RunConfig", console: "Console", schedule: "Schedule | None", resume: "Resume"
) -> None:
    """Train, and print on the main rank what the run ended with."""
    from evorl.training import ending_on_signals, train

    with ending_on_signals():
        result = train(config, console=console, schedule=schedule, resume=resume)
    if result is not None:
        echo_score(result.score, result.directory, f"seed {config.seed}: " if schedule else "")
