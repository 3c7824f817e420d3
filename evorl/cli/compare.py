"""evorl compare: which configuration does better, over several runs of each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.shared import JSON, RUNS, echo_json, table

if TYPE_CHECKING:
    from evorl.runs import Comparison, Estimate


@click.command
@RUNS
@JSON
def compare(runs: tuple[Path, ...], as_json: bool) -> None:
    """Compare finished runs, grouped by configuration; seeds and names may differ within a group.

    Runs that follow different schedules of --replay-schedule are different groups. What is not
    finished, or is no run, is left out and named at the end. A group stands for its runs.

    The unit is the run, by the held-out mean score of its best agent. Intervals are 95 % bootstrap
    intervals over runs, and too narrow for fewer than about ten of them. P(X > Y) is how probably a
    run of X scores higher than one of Y in the same environment: ties count half.

    \b
    evorl compare runs/*
    evorl compare runs/evolved-1 runs/evolved-2 runs/plain-1 runs/plain-2
    """
    from evorl.runs import compare_runs, expand_groups, read_finished

    finished, left_out = read_finished(expand_groups(runs))
    comparison = compare_runs(finished)
    if as_json:
        echo_json(comparison.to_json() | {"left_out": left_out})
        return
    lines = [*comparison_lines(comparison), *(f"left out: {one}" for one in left_out)]
    click.echo("\n".join(lines))


def comparison_lines(comparison: "Comparison") -> Iterator[str]:
    """A table for each environment, and one of each group against each."""
    for env, groups in comparison.groups.items():
        summaries = [group.summary for group in groups]
        iqms = _cells([summary.iqm for summary in summaries])
        means = _cells([summary.mean for summary in summaries])
        rows = [
            (group.label, str(len(group.runs)), *iqm, *mean, f"{group.steps:,.0f}")
            for group, iqm, mean in zip(groups, iqms, means, strict=True)
        ]
        header = (env, "runs", "IQM", "95 % interval", "mean", "95 % interval", "steps a run")
        yield from table(header, rows, "<>>>>>>", wraps=[0])
        yield ""
    if pairs := comparison.improvements:
        chances = _cells([pair.probability for pair in pairs])
        against = [(p.x, p.y, *chance, p.env) for p, chance in zip(pairs, chances, strict=True)]
        titles = ("X", "Y", "P(X > Y)", "95 % interval", "environment")
        yield from table(titles, against, "<<>>>", wraps=[0, 1])
        yield ""
    yield "Steps are environment steps of training and evaluation, intervals are over runs."
    yield from (f"warning: {line}" for line in comparison.warnings)


def _cells(column: "Sequence[Estimate]") -> "Iterator[tuple[str, str]]":
    """Figures of one column, and their intervals."""
    from evorl.runs import decimals

    places = decimals([one.value for one in column], [one.error for one in column])
    for value, interval in (one.texts(places) for one in column):
        yield value, interval or "—"
