"""evorl sweep: a run for each combination of values, compared at the end."""

from pathlib import Path

import click

from evorl.cli.group import JOBS, SEEDS, first_seeds, start_group, train_and_compare
from evorl.cli.shared import JSON, PATH, QUIET, VERBOSE, complete, make_console
from evorl.errors import ConfigError


@click.command
@click.argument("config", type=PATH)
@click.argument(
    "values", nargs=-1, required=True, metavar="SECTION.KEY=VALUE,VALUE...", shell_complete=complete
)
@SEEDS
@JOBS
@click.option(
    "--resume",
    type=click.Choice(["auto"]),
    help="auto: resume the sweep of this name if there is one.",
)
@JSON
@QUIET
@VERBOSE
def sweep(
    config: Path,
    values: tuple[str, ...],
    seeds: int | None,
    jobs: int | None,
    resume: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Train as the YAML file CONFIG says with each combination of values, and compare the runs.

    Values are separated by commas; an option with one value has it in all runs. The runs are a
    group: a folder of ordinary runs. After Ctrl-C or a kill, evorl resume FOLDER trains what is not
    finished.

    \b
    evorl sweep configs/dqn/cartpole.yaml algorithm.lr=1e-3,3e-4 --seeds 3 --jobs 2
    evorl sweep configs/dqn/cartpole.yaml network.hidden=[64],[64,64] name=widths
    evorl sweep configs/dqn/cartpole.yaml evolution.method=evolution,none seed=7,8,9
    """
    from evorl.config import load_config
    from evorl.runs import read_grid

    console = make_console(quiet or as_json, verbose)
    fixed, varied = read_grid(values)
    if seeds and "seed" in varied:
        raise ConfigError("--seeds: not with several values of seed; leave one of them out")
    if seeds:
        varied |= first_seeds(load_config(config, fixed), seeds)
    if not varied:
        what = "give an option several values, such as algorithm.lr=1e-3,1e-4"
        raise ConfigError(f"there is nothing to compare: {what}")
    group = start_group(config, fixed, varied, jobs, "auto" if resume else None)
    train_and_compare(group, console, as_json)
