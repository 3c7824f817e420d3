"""Runs of one configuration together: how good they are at each step, with a band over runs.

The unit is the run, as in evorl compare: at each step the interquartile mean of the best agents so
far, by confirmed fitness, and its 95 % bootstrap interval over runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evorl.runs import group_runs, interquartile_mean, read_begun

POINTS = 120  # of a curve
RESAMPLES = 1000
TAILS = (0.025, 0.975)


class _Curve(NamedTuple):
    """The best so far of one run."""

    steps: list[int]
    best: list[float]
    finished: bool  # what it ended with is what it keeps


def seed_bands(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A band for each configuration of which there are several runs, as `read_run` gives them."""
    curves = {run["path"]: _curve(run) for run in runs}
    groups = group_runs(read_begun(list(curves)))
    found = []
    for env, several in groups.items():
        for group in several:
            own = [curve for run in group.runs if (curve := curves[str(run.path)]).steps]
            if len(own) > 1 and (band := _band(own)):
                found.append({"env": env, "label": group.label, "runs": len(own)} | band)
    return found


def _curve(run: Mapping[str, Any]) -> _Curve:
    """From the first row on that has a confirmed agent."""
    rows = zip(run["rows"]["env_steps"], run["rows"]["best"], strict=True)
    known = [(steps, best) for steps, best in rows if best is not None]
    finished = run["state"] == "finished"
    return _Curve([steps for steps, _ in known], [best for _, best in known], finished)


def _band(curves: Sequence[_Curve]) -> dict[str, Any] | None:
    """Over the steps that all have made, or ended before; None if there are none."""
    import numpy as np

    from evorl.seeding import generator

    start = max(curve.steps[0] for curve in curves)
    open_ends = [curve.steps[-1] for curve in curves if not curve.finished]
    end = min(open_ends or [max(curve.steps[-1] for curve in curves)])
    grid = sorted({step for curve in curves for step in curve.steps if start <= step <= end})
    if not grid:
        return None
    places = np.linspace(0, len(grid) - 1, min(POINTS, len(grid))).astype(int)
    steps = np.array(grid)[places]
    best = np.array(  # [runs, steps]
        [np.array(own.best)[np.searchsorted(own.steps, steps, "right") - 1] for own in curves]
    )
    drawn = generator(0, "bands").integers(0, len(best), (RESAMPLES, len(best)))
    low, high = np.quantile(interquartile_mean(best[drawn], axis=1), TAILS, axis=0)
    middle = interquartile_mean(best, axis=0)
    figures = {"steps": steps, "iqm": middle, "low": low, "high": high}
    return {name: values.tolist() for name, values in figures.items()}
