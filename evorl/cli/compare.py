"""evorl compare: which configuration does better, over several runs of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.shared import RUNS, decimals, table

if TYPE_CHECKING:
    from evorl.runs import Comparison, Estimate


@click.command
@RUNS
def compare(runs: tuple[Path, ...]) -> None:
    """Compare finished runs, grouped by configuration; seeds and names may differ within a group.

    Runs that follow different schedules of --replay-schedule are different groups.

    The unit is the run, by the held-out mean score of its best agent. Intervals are 95 % bootstrap
    intervals over runs, and too narrow for fewer than about ten of them. P(X > Y) is how probably a
    run of X scores higher than one of Y in the same environment: ties count half.

    \b
    evorl compare runs/cartpole*
    evorl compare runs/evolved-1 runs/evolved-2 runs/plain-1 runs/plain-2
    """
    from evorl.runs import compare_runs, read_runs

    click.echo("\n".join(comparison_lines(compare_runs(read_runs(runs)))))


def comparison_lines(comparison: "Comparison") -> Iterator[str]:
    """A table for each environment, and one of each group against each."""
    for env, groups in comparison.groups.items():
        places = decimals(*(score for group in groups for score in group.scores))
        rows = []
        for group in groups:
            iqm, mean = _cells(group.summary.iqm, places), _cells(group.summary.mean, places)
            rows.append((group.label, str(len(group.runs)), *iqm, *mean, f"{group.steps:,.0f}"))
        header = (env, "runs", "IQM", "95 % interval", "mean", "95 % interval", "steps a run")
        yield from table(header, rows, "<>>>>>>", wraps=[0])
        yield ""
    if comparison.improvements:
        pairs = [
            (pair.x, pair.y, *_cells(pair.probability, 2), pair.env)
            for pair in comparison.improvements
        ]
        titles = ("X", "Y", "P(X > Y)", "95 % interval", "environment")
        yield from table(titles, pairs, "<<>>>", wraps=[0, 1])
        yield ""
    yield "Steps are environment steps of training and evaluation, intervals are over runs."
    yield from (f"warning: {line}" for line in comparison.warnings)


def _cells(estimate: "Estimate", places: int) -> tuple[str, str]:
    low, high = f"{estimate.low:.{places}f}", f"{estimate.high:.{places}f}"
    return f"{estimate.value:.{places}f}", f"{low} to {high}" if estimate.known else "—"
