"""What train, sweep and resume share: a group of runs is made, trained, and compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from evorl.cli.compare import comparison_lines
from evorl.cli.shared import echo_json
from evorl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.reporting import Console
    from evorl.runs import Group

SEEDS = click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Train N runs as a group, with seeds from the one in CONFIG on.",
)
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Runs of a group that train at a time; 1 if left out, or as before.",
)


def start_group(
    file: Path,
    overrides: Sequence[str],
    varied: Mapping[str, Sequence[Any]],
    jobs: int | None,
    resume: Literal["auto"] | None = None,
) -> "Group":
    """The group that a configuration and the values of its options make, in a new folder."""
    from evorl.config import load_config, read_yaml
    from evorl.runs import Group, RunDirectory, is_group, make_grid, read_group

    _refuse_launcher()
    config = load_config(file, overrides)
    runs = make_grid(config.name, varied)
    for own in runs.values():  # a wrong one is refused before anything is made
        load_config(file, [*overrides, *own])
    path = Path(config.run.folder) / config.name
    group = Group(path, read_yaml(file), list(overrides), runs, jobs or 1)
    if resume and is_group(path):
        known = read_group(path)
        if known._replace(jobs=group.jobs) != group:
            raise RunError(f"{path}: is a group of other runs; choose another name, or remove it")
        return known if jobs is None else group
    made = RunDirectory.create(config.run.folder, config.name, config.run.if_exists)
    group = group._replace(path=made.path)
    group.write()
    return group


def first_seeds(config: "RunConfig", count: int) -> dict[str, list[int]]:
    """The seeds of so many runs of a configuration."""
    return {"seed": list(range(config.seed, config.seed + count))}


def reopen_group(path: Path, overrides: Sequence[str], jobs: int | None) -> "Group":
    """A group that is to train on, perhaps with a larger budget; refused where it cannot."""
    from evorl.runs import find_started, read_group, with_known_choices

    _refuse_launcher()
    old = read_group(path)
    own = {text.partition("=")[0] for given in old.runs.values() for text in given}
    for text in overrides:
        if (key := text.partition("=")[0].strip()) in own:
            raise ConfigError(
                f"override {text:.60}: the runs of {path} differ in {key}; leave it out"
            )
    group = old._replace(overrides=[*old.overrides, *overrides], jobs=jobs or old.jobs)
    for config in group.configs():
        find_started(with_known_choices(config))  # refuses what cannot change
    if not group.unfinished():
        more = 2 * max(config.budget.env_steps for config in group.configs())
        raise RunError(
            f"{path}: all of its runs are finished; to train on, give them more to spend:"
            f" budget.env_steps={more}"
        )
    group.write()
    return group


def train_and_compare(group: "Group", console: "Console", as_json: bool) -> None:
    """Train what is not finished, and compare what is; RunError if a run has failed."""
    from evorl.runs import RunDirectory, compare_runs, read_runs
    from evorl.training import ending_on_signals, train_group

    with ending_on_signals():
        failed = train_group(group, console)
    paths = [group.path / name for name in group.runs]
    finished = [path for path in paths if RunDirectory(path).finished]
    if finished:
        comparison = compare_runs(read_runs(finished))
        if as_json:
            echo_json({"path": str(group.path)} | comparison.to_json())
        else:
            click.echo("\n".join(comparison_lines(comparison)))
            click.echo(f"all of its runs on one page: evorl report {group.path}")
    if failed:
        name, why = next(iter(failed.items()))
        count = f"{len(failed)} of {len(group.runs)} runs failed"
        again = f"evorl resume {group.path} tries again"
        raise RunError(f"{group.path}: {count}, such as {name} ({why}); {again}")


def refuse_jobs(jobs: int | None, without: str) -> None:
    """--jobs is for groups only."""
    if jobs is not None:
        raise ConfigError(f"--jobs: only with {without}; leave it out")


def _refuse_launcher() -> None:
    from evorl.distributed import launched_ranks

    if launched_ranks() > 1:
        raise ConfigError("a group of runs starts its own processes; start it without a launcher")
