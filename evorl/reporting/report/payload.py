"""What a page is given: one run, or several with a comparison of the finished ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.errors import RunError, one_line
from evorl.reporting.report.numbers import interval, short
from evorl.reporting.report.run_data import read_run
from evorl.runs.compare import Comparison, compare, read_runs
from evorl.runs.directory import RunDirectory


def read_payload(paths: Sequence[Path]) -> dict[str, Any]:
    """The runs in these directories; RunError if one is damaged, or given twice."""
    directories = [RunDirectory.open(path) for path in paths]
    seen: set[Path] = set()
    for directory in directories:
        if (real := directory.path.resolve()) in seen:
            raise RunError(one_line(f"{directory.path}: given twice"))
        seen.add(real)
    names = unique_names(paths)
    runs = {name: read_run(d, name) for name, d in zip(names, directories, strict=True)}
    for run in runs.values():
        if run["state"] == "stopped" and not run["rows"]["generation"]:
            raise RunError(
                one_line(
                    f"{run['path']}: stopped before its first generation ended, so there is nothing"
                    f" to report; {run['commands']['resume']} goes on with it"
                )
            )
    return payload(runs)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The folders' own names, or their whole paths where these are alike."""
    names = [path.resolve().name for path in paths]
    return [
        name if names.count(name) == 1 else str(path)
        for name, path in zip(names, paths, strict=True)
    ]


def payload(runs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Runs by the names that they are shown under; each knows its path."""
    finished = {name: run["path"] for name, run in runs.items() if run["state"] == "finished"}
    comparison = None
    if len(runs) > 1 and finished:
        comparison = _comparison(compare(read_runs(finished.values())), finished)
    return {"runs": list(runs.values()), "comparison": comparison}


def _comparison(comparison: Comparison, names: Mapping[str, str]) -> dict[str, Any]:
    shown = {Path(path): name for name, path in names.items()}
    return {
        "groups": [
            {
                "env": env,
                "label": group.label,
                "runs": [shown[run.path] for run in group.runs],
                "iqm": interval(group.summary.iqm),
                "mean": interval(group.summary.mean),
                "steps": short(group.steps),
            }
            for env, groups in comparison.groups.items()
            for group in groups
        ],
        "improvements": [
            {"x": one.x, "y": one.y, "probability": interval(one.probability), "envs": one.envs}
            for one in comparison.improvements
        ],
        "warnings": comparison.warnings,
    }
