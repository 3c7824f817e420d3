"""evorl train: one run, or one agent along a schedule with several seeds."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from evorl.cli.options import CONFIG, OVERRIDES, VERBOSE, make_console, quiet
from evorl.cli.tables import show_estimate
from evorl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.distributed import World
    from evorl.evolution import Schedule
    from evorl.reporting import Console
    from evorl.training import Resume, Score


@click.command
@click.argument("config", type=CONFIG)
@OVERRIDES
@click.option(
    "--replay-schedule",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Train one agent by a schedule of `evorl schedule`, without selection.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="With --replay-schedule: N runs, with seed, seed + 1, … (1 if left out).",
)
@click.option(
    "--resume",
    type=click.Choice(["auto"]),
    help="auto: resume the run of this name if there is one, for launchers that restart a job.",
)
@quiet()
@VERBOSE
def train(
    config: Path,
    overrides: tuple[str, ...],
    resume: Literal["auto"] | None,
    replay_schedule: Path | None,
    seeds: int | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Train as the YAML file CONFIG says, and print the held-out score.

    With --replay-schedule one agent trains from scratch with the hyperparameters that another's
    line of descent had, for as many steps, with a run directory for each seed: NAME-seed7, … What
    the schedule fixes (hyperparameters, network, population, evolution, replay.share, the budget
    but for budget.stop_at) cannot be set then, and counts for nothing in CONFIG.

    \b
    evorl train configs/dqn/cartpole.yaml
    evorl train configs/dqn/cartpole.yaml --verbose
    evorl train configs/dqn/lunar_lander.yaml population.size=8 algorithm.lr=1e-3 seed=7
    evorl train configs/dqn/cartpole.yaml --replay-schedule schedule.yaml --seeds 3 seed=101
    """
    from evorl.config import load_config
    from evorl.evolution import read_schedule

    console = make_console(quiet, verbose)
    if resume and replay_schedule:
        raise ConfigError("--resume: not with --replay-schedule; use evorl resume RUN for each run")
    if seeds is not None and replay_schedule is None:
        raise ConfigError("--seeds: only with --replay-schedule; one run has one seed, seed=7")
    loaded = load_config(config, overrides)
    if replay_schedule is None:
        run_and_print(loaded, console, resume=resume)
    else:
        _replay(loaded, overrides, read_schedule(replay_schedule), seeds or 1, console)


def _replay(
    config: "RunConfig",
    overrides: tuple[str, ...],
    schedule: "Schedule",
    seeds: int,
    console: "Console",
) -> None:
    from evorl.evolution import config_for_schedule

    alone = config_for_schedule(config, schedule, overrides)
    if config.population.size > 1 and config.replay.share != "agent":
        console.warn(
            f"with replay.share: {config.replay.share} the schedule's agent learned from"
            f" {config.population.size} agents' experience, now it has its own only"
        )
    runs = [_seeded(alone, config.seed + i) for i in range(seeds)]
    if config.run.if_exists == "error":
        _refuse_existing(runs)
    from evorl.distributed import World
    from evorl.runs import summarise_group

    # all seeds in one world: ranks that have parted cannot meet again
    world = World.start(runs[0].population.size, **dict(config.mesh))
    try:
        found = [run_and_print(run, console, schedule, world=world) for run in runs]
    finally:
        world.close()
    scores = [score.mean.value for score in found if score]
    if seeds > 1 and scores:
        mean = show_estimate(summarise_group(scores).mean)
        click.echo(f"mean held-out score of {seeds} seeds: {mean}")


def _seeded(config: "RunConfig", seed: int) -> "RunConfig":
    from evorl.config import parse_config

    data = config.model_dump() | {"seed": seed, "name": f"{config.name}-seed{seed}"}
    return parse_config(data, source=f"config for seed {seed}")


def _refuse_existing(runs: "list[RunConfig]") -> None:
    """RunError now, and not hours later, if one of the runs exists."""
    from evorl.runs import RunDirectory

    for run in runs:
        path = Path(run.run.folder) / run.name
        if path.exists() and not RunDirectory(path).has_not_begun():
            raise RunError(
                f"{path} exists already: choose another name, remove it,"
                " or set run.if_exists=number"
            )


def run_and_print(
    config: "RunConfig",
    console: "Console",
    schedule: "Schedule | None" = None,
    resume: "Resume" = None,
    world: "World | None" = None,
) -> "Score | None":
    """Train, and print what the run ended with; None but on the main rank."""
    from evorl.training import ending_on_signals, train as run_training

    before = set() if resume else _begun(config, None)
    try:
        with ending_on_signals():
            result = run_training(
                config, console=console, schedule=schedule, world=world, resume=resume
            )
    except KeyboardInterrupt as error:
        for path in _begun(config, resume) - before:
            error.add_note(f"resume with evorl resume {path}")
        raise
    if result is None:
        return None
    score, whose = result.score, f"seed {config.seed}: " if schedule else ""
    click.echo(
        f"{whose}held-out score over {score.episodes} episodes: mean {show_estimate(score.mean)},"
        f" IQM {show_estimate(score.iqm)}"
    )
    click.echo(f"best agent, metrics and summary: {result.directory}")
    return score


def _begun(config: "RunConfig", resume: "Resume") -> set[Path]:
    """The run that is resumed, or those of this name that have begun: name, name-2, …"""
    folder = Path(config.run.folder)
    if resume is not None:
        return {folder / config.name if resume == "auto" else resume.path}
    files = folder.glob("*/config.yaml") if folder.is_dir() else ()
    ours = re.compile(rf"{re.escape(config.name)}(-\d+)?")
    return {file.parent for file in files if ours.fullmatch(file.parent.name)}
