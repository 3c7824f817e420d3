"""What evorl train --dry-run prints."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from evorl.cli.shared import echo_json, make_console, table

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.evolution import Schedule
    from evorl.training import Plan

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_plan(config: "RunConfig", schedule: "Schedule | None", as_json: bool) -> None:
    """Measure a few rounds, and print on the main rank what the run would be, and take."""
    from evorl.training import ending_on_signals, plan_run

    make_console(quiet=True)  # for warnings
    with ending_on_signals():
        plan = plan_run(config, schedule)
    if plan is None:
        return
    if as_json:
        echo_json(plan.to_json())
    else:
        click.echo("\n".join(_lines(plan, config.budget.env_steps)))


def _lines(plan: "Plan", env_steps: int) -> Iterator[str]:
    several = len(plan.groups) > 1
    yield f"environment:  {plan.env}, {plan.num_envs} of it for each agent, {plan.backend}"
    yield (
        f"agents:       {plan.agents} in {len(plan.groups)} group{'s' * several},"
        f" {plan.algorithm}, {'compiled' if plan.compiled else 'eager'} updates"
    )
    rows = [(str(g.agents), "; ".join(g.networks), f"{g.parameters:,}") for g in plan.groups]
    yield from table(("agents", "networks", "parameters of one"), rows, "><>", wraps=[1])
    each = f" on each of {plan.ranks} ranks" if plan.ranks > 1 else ""
    yield f"memory:       {_size(plan.memory)}{each}, of which {_size(plan.replays)} are replays"
    yield (
        f"speed:        {plan.steps_per_second:,.0f} environment steps a second over {plan.rounds}"
        f" rounds; {describe_duration(plan.start)} until they began"
    )
    yield (
        f"training:     {env_steps:,} steps in {plan.generations:,} generations,"
        f" about {describe_duration(plan.training)}"
    )
    if plan.evaluation is None:
        yield "evaluation:   meanwhile"
    else:
        most = describe_duration(plan.evaluation)
        yield f"evaluation:   {most} at the most, if all episodes are as long as they may be"


def describe_duration(seconds: float) -> str:
    """Such as `2 h 5 min`: the largest unit, and the next one where it counts."""
    whole = max(1, round(seconds))
    for (size, unit), (less, smaller) in pairwise(UNITS):
        if whole >= size:
            count, rest = divmod(whole, size)
            more = f" {rest // less} {smaller}" if count < 10 and rest >= less else ""
            return f"{count} {unit}{more}"
    return f"{whole} s"


def _size(count: int) -> str:
    """Bytes, as MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
