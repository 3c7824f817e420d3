"""evorl schedule: the hyperparameters that made an agent, to train by them again."""

from pathlib import Path

import click

from evorl.cli.options import RUN, agent
from evorl.errors import RunError


@click.command
@click.argument("run", type=RUN)
@agent("Another agent than the best one.")
def schedule(run: Path, agent: int | None) -> None:
    """Print the hyperparameters that the best agent of the run directory RUN trained with, as YAML.

    They go by the agent's own environment steps, over all of its ancestors, up to where it was at
    its best (another agent: up to its last evaluation). Train by them again with --replay-schedule.

    \b
    evorl schedule runs/cartpole > schedule.yaml
    evorl train configs/dqn/cartpole.yaml --replay-schedule schedule.yaml --seeds 3 seed=101
    """
    from evorl.cli.lineage import find_descent
    from evorl.evolution import schedule_of
    from evorl.runs import RunDirectory

    directory = RunDirectory.open(run)
    descent = find_descent(directory, agent)
    if descent.scheduled:
        raise RunError(f"{run}: the run followed a schedule itself; use that one again")
    if not descent.ancestry[-1].fitness and descent.best is None:
        raise RunError(f"{run}: agent {descent.id} was not evaluated yet")
    found = schedule_of(directory.config(), descent.ancestry, descent.own_steps)
    heading = (
        f"The schedule of agent {descent.id} of {run}: what it trained with,"
        " by its own environment steps."
    )
    click.echo(found.to_yaml(heading), nl=False)
