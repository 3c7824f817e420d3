"""evorl train and resume: one run, one agent along a schedule, or a group of runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from evorl.cli.dry_run import print_plan
from evorl.cli.group import (
    JOBS,
    SEEDS,
    first_seeds,
    refuse_jobs,
    reopen_group,
    start_group,
    train_and_compare,
)
from evorl.cli.shared import (
    JSON,
    OVERRIDES,
    PATH,
    QUIET,
    RUN,
    VERBOSE,
    echo_json,
    echo_score,
    make_console,
)
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
@SEEDS
@JOBS
@click.option(
    "--dry-run",
    is_flag=True,
    help="Train a few rounds only: print what the run would be, and take.",
)
@JSON
@QUIET
@VERBOSE
def train(
    config: Path,
    overrides: tuple[str, ...],
    resume: Literal["auto"] | None,
    replay_schedule: Path | None,
    seeds: int | None,
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Train as the YAML file CONFIG says, and print the held-out score.

    With --seeds it is a group of runs in a folder of their own, compared at the end.

    With --replay-schedule one agent trains from scratch with the hyperparameters that another's
    line of descent had, for as many steps, into the run directory NAME-seed7 of its seed. What the
    schedule fixes (hyperparameters, network, population, evolution, replay.share, the budget but
    for budget.stop_at) cannot be set then, and counts for nothing in CONFIG.

    \b
    evorl train configs/dqn/cartpole.yaml
    evorl train configs/dqn/cartpole.yaml --verbose
    evorl train configs/dqn/lunar_lander.yaml population.size=8 algorithm.lr=1e-3 seed=7
    evorl train configs/dqn/cartpole.yaml --seeds 5 --jobs 2
    evorl train configs/dqn/lunar_lander.yaml --dry-run
    evorl train configs/dqn/cartpole.yaml --replay-schedule schedule.yaml seed=101
    """
    from evorl.config import load_config
    from evorl.evolution import config_for_schedule, read_schedule

    console, others = (
        make_console(quiet or as_json, verbose),
        {"--seeds": seeds, "--resume": resume},
    )
    _refuse_beside("--replay-schedule", replay_schedule, others)
    _refuse_beside("--dry-run", dry_run, others | {"--verbose": verbose})
    loaded, schedule = load_config(config, overrides), None
    if seeds:
        group = start_group(config, overrides, first_seeds(loaded, seeds), jobs, resume)
        train_and_compare(group, console, as_json)
        return
    refuse_jobs(jobs, without="--seeds")
    if replay_schedule is not None:
        schedule, name = read_schedule(replay_schedule), f"{loaded.name}-seed{loaded.seed}"
        loaded = config_for_schedule(loaded, schedule, overrides).model_copy(update={"name": name})
    if dry_run:
        print_plan(loaded, schedule, as_json)
    else:
        _run_and_print(loaded, console, schedule, resume, as_json)


@click.command
@RUN
@OVERRIDES
@JOBS
@JSON
@QUIET
@VERBOSE
def resume(
    run: Path,
    overrides: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Resume the run in the directory RUN from its newest checkpoint.

    It ends with the same bytes as if it had never been stopped. The budget may be extended; options
    of learning and evolution cannot change in a run that has begun. In a group of runs it trains
    all that are not finished.

    \b
    evorl resume runs/cartpole
    evorl resume runs/cartpole --verbose
    evorl resume runs/cartpole budget.env_steps=1000000
    accelerate launch --config_file configs/accelerate/cpu.yaml -m evorl resume runs/cartpole
    """
    from evorl.config import SCHEDULE, parse_text, parse_yaml
    from evorl.distributed import read_on_main_rank
    from evorl.evolution import parse_schedule
    from evorl.runs import RunDirectory, is_group

    console, source = make_console(quiet or as_json, verbose), "the run's config.yaml"
    if is_group(run):
        train_and_compare(reopen_group(run, overrides, jobs), console, as_json)
        return
    refuse_jobs(jobs, without="a group of runs")
    config, text = json.loads(read_on_main_rank(lambda: _read(run, overrides)))
    schedule = parse_schedule(parse_yaml(text, source, SCHEDULE), source) if text else None
    _run_and_print(parse_text(config, source), console, schedule, RunDirectory(run), as_json)


def _refuse_beside(option: str, given: object, others: Mapping[str, object]) -> None:
    for other in [other for other, value in others.items() if given and value]:
        raise ConfigError(f"{other}: not with {option}; leave one of them out")


def _read(run: Path, overrides: Sequence[str]) -> str:
    """All that ranks must know of the run, which perhaps only the main one can see."""
    from evorl.config import dump_config
    from evorl.runs import RunDirectory, reopen

    directory = RunDirectory.open(run)
    config, schedule = reopen(directory, overrides), directory.schedule()
    return json.dumps([dump_config(config), schedule and schedule.to_yaml()])


def _run_and_print(
    config: "RunConfig",
    console: "Console",
    schedule: "Schedule | None",
    resume: "Resume",
    as_json: bool,
) -> None:
    """Train, and print on the main rank what the run ended with."""
    from evorl.training import ending_on_signals, train

    with ending_on_signals():
        result = train(config, console=console, schedule=schedule, resume=resume)
    if result is None:
        return
    if as_json:
        echo_json({"path": str(result.directory)} | result.score.to_json())
    else:
        echo_score(result.score, result.directory, f"seed {config.seed}: " if schedule else "")
