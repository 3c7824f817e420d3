"""A run directory as plain data for a page, while the run trains as well; or several, compared.

metrics.jsonl is read before lineage.jsonl, which is always the further one: agents are born in the
lineage before they are measured. config.yaml is read as it is, without the classes of its sections.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.errors import RunError
from evorl.evolution import Lineage
from evorl.reporting.report.agents import (
    agents,
    known_rows,
    moving_hyperparameters,
    mutation_effects,
)
from evorl.reporting.report.metrics import MetricsLine, read_metrics, running_seconds
from evorl.reporting.report.page import short, shorts
from evorl.runs import (
    BEST,
    CONFIG,
    LINEAGE,
    METRICS,
    SCHEDULE,
    SUMMARY,
    Comparison,
    RunDirectory,
    compare_runs,
    field,
    parse_json,
    read_bytes,
    read_runs,
    run_error,
    state_of,
)

BEST_AGENT = f"{BEST}/agent.json"
AXES = {"log": "log", "reverse_log": "reverse_log", "power_of_two": "log2"}
WIDE = 8.0  # a range that spans this many times its least value is drawn on a log axis


def read_run(directory: RunDirectory, name: str | None = None) -> dict[str, Any]:
    """Everything that a report shows of a run; RunError if the directory is damaged."""
    options, state = directory.options(), state_of(directory.path)
    measured = read_metrics(directory.path / METRICS)
    if state.problem is not None and not measured:
        raise RunError(state.problem)
    lineage = _lineage(directory, begins=state.state == "running" and not measured)
    rows = known_rows(measured, lineage)
    moving, seconds = moving_hyperparameters(rows), running_seconds(rows)
    return _configured(directory, options) | {
        "name": options.get("name", "") if name is None else name,
        "path": str(directory.path),
        "state": state.state,
        "updated": round(state.changed, 3),
        "headline": _headline(directory, rows, seconds),
        "best": _best(directory, lineage),
        "rows": _rows(rows, seconds),
        "agents": agents(rows, lineage, moving),
        "hyperparameters": {name: _axis(name, options, rows) for name in moving},
        "fixed": _fixed(rows, moving),
        "effects": mutation_effects(lineage),
        "commands": _commands(directory),
        "warnings": [state.problem] if state.problem else _warnings(measured, rows),
    }


def _configured(directory: RunDirectory, options: dict[str, Any]) -> dict[str, Any]:
    """What a report shows of config.yaml."""
    path = directory.path / CONFIG
    try:
        return {
            "env": field(options, "env.id", str),
            "seed": field(options, "seed", int),
            "method": field(options, "evolution.method", str),
            "budget": field(options, "budget.env_steps", int),
            "counts": field(options, "budget.counts", str),
            "population": field(options, "population.size", int),
            "config": read_bytes(path).decode(),
        }
    except ValueError as error:
        raise run_error(path, f"not a configuration of this version: {error}") from None


def _lineage(directory: RunDirectory, begins: bool) -> Lineage:
    """All births; none of a run that only just `begins` to write."""
    try:
        return directory.lineage()
    except RunError:
        if begins:
            return Lineage()
        raise


def _headline(
    directory: RunDirectory, rows: list[MetricsLine], seconds: list[float]
) -> dict[str, Any]:
    last = rows[-1] if rows else None
    found: dict[str, Any] = {
        "score": None,
        "env_steps": last.env_steps if last else 0,
        "evaluation_steps": last.evaluation_steps if last else 0,
        "updates": last.updates if last else 0,
        "seconds": short(seconds[-1]) if seconds else None,
        "shares": last.shares if last else {},
        "versions": {},
    }
    if not directory.finished:
        return found
    summary, values = directory.summary(), _read_object(directory.path / SUMMARY)
    found["env_steps"], found["evaluation_steps"] = summary.env_steps, summary.evaluation_steps
    mean, iqm = shorts(summary.mean), shorts(summary.iqm)
    found["score"] = {"mean": mean, "iqm": iqm, "episodes": summary.episodes}
    if isinstance(values.get("updates"), int):
        found["updates"] = values["updates"]
    if isinstance(took := values.get("seconds"), int | float):
        before = seconds[-1] - rows[-1].seconds if rows else 0.0  # until the run was resumed
        found["seconds"] = short(before + took)
    if isinstance(versions := values.get("versions"), dict):
        found["versions"] = {name: str(version) for name, version in versions.items()}
    return found


def _best(directory: RunDirectory, lineage: Lineage) -> dict[str, Any] | None:
    """Whose line a report follows: the confirmed best. None if there is none, or none just now."""
    path = directory.path / BEST_AGENT
    try:
        values = _read_object(path)
    except RunError:
        if not path.exists():  # none yet, or it is just being replaced
            return None
        raise
    try:
        id, facts = field(values, "genome.id", int), field(values, "facts", dict)
        generation = field(facts, "generation", int)
    except ValueError as error:
        raise run_error(path, f"not an agent of this version: {error}") from None
    if id not in lineage.births:
        return None
    numbers = {key: facts.get(key) for key in ("fitness", "confirmed", "own_steps")}
    known = {k: short(v) if isinstance(v, int | float) else None for k, v in numbers.items()}
    return {"id": id, "generation": generation} | known


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        return field({"it": parse_json(read_bytes(path))}, "it", dict)
    except ValueError as error:
        raise run_error(path, f"not JSON as it was written: {error}") from None


def _rows(rows: list[MetricsLine], seconds: list[float]) -> dict[str, Any]:
    """By generation."""
    rates, steps, time = [], 0, 0.0
    for row, until in zip(rows, seconds, strict=True):
        rates.append((row.env_steps - steps) / max(until - time, 1e-9))
        steps, time = row.env_steps, until
    return {
        "generation": [row.generation for row in rows],
        "env_steps": [row.env_steps for row in rows],
        "seconds": shorts(seconds),
        "rate": shorts(rates),
        "best": shorts(row.best for row in rows),
        "ids": [row.ids for row in rows],
    }


def _axis(name: str, options: dict[str, Any], rows: list[MetricsLine]) -> str:
    """The axis that fits a hyperparameter: as it was drawn, or by how far its values span."""
    values = [v for row in rows for v in row.hyperparameters.get(name, ()) if v is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    try:
        kind = field(options, f"evolution.spaces.{name}.kind", str)
    except ValueError:  # it does not evolve
        return "log" if low > 0 and high > WIDE * low else "linear"
    axis = AXES.get(kind, "linear")
    fits = axis == "linear" or (high < 1 if axis == "reverse_log" else low > 0)
    return axis if fits else "linear"


def _fixed(rows: list[MetricsLine], moving: list[str]) -> dict[str, Any]:
    """The hyperparameters that all agents have in common, at all times."""
    known = rows[0].hyperparameters if rows else {}
    return {name: short(each[0]) for name, each in known.items() if name not in moving and each}


def _commands(directory: RunDirectory) -> dict[str, str]:
    """How to train it again, to resume it, and to look into it."""
    run, config, schedule = (
        shlex.quote(str(path))
        for path in (directory.path, directory.path / CONFIG, directory.path / SCHEDULE)
    )
    replayed = f" --replay-schedule {schedule}" if (directory.path / SCHEDULE).exists() else ""
    return {
        "again": f"evorl train {config} name=again{replayed}",
        "resume": f"evorl resume {run}",
        "lineage": f"evorl lineage {run}",
        "schedule": f"evorl schedule {run} > schedule.yaml",
    }


def _warnings(measured: list[MetricsLine], rows: list[MetricsLine]) -> list[str]:
    left_out = len(measured) - len(rows)
    if not left_out:
        return []
    return [
        f'the last {left_out} generation{"s" * (left_out != 1)} of "{METRICS}" left out:'
        f" {LINEAGE} does not know all of their agents"
    ]


def read_payload(paths: Sequence[Path]) -> dict[str, Any]:
    """What a page of these runs is given; RunError if one is damaged, or given twice."""
    directories = [RunDirectory.open(path) for path in paths]
    seen: set[Path] = set()
    for directory in directories:
        if (real := directory.path.resolve()) in seen:
            raise run_error(directory.path, "given twice")
        seen.add(real)
    names = unique_names(paths)
    runs = {name: read_run(d, name) for name, d in zip(names, directories, strict=True)}
    for run in runs.values():
        if run["state"] == "stopped" and not run["rows"]["generation"]:
            raise run_error(
                Path(run["path"]),
                "stopped before its first generation ended, so there is nothing to report;"
                f" {run['commands']['resume']} resumes it",
            )
    return payload(runs)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The folders' own names, or their whole paths where these are alike."""
    names = [path.resolve().name for path in paths]
    pairs = zip(names, paths, strict=True)
    return [name if names.count(name) == 1 else str(path) for name, path in pairs]


def payload(runs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Runs by the names that they are shown under, and how the finished ones compare."""
    finished = {Path(run["path"]): n for n, run in runs.items() if run["state"] == "finished"}
    comparison = None
    if len(runs) > 1 and finished:
        comparison = _comparison(compare_runs(read_runs(finished)), finished)
    return {"runs": list(runs.values()), "comparison": comparison}


def _comparison(comparison: Comparison, names: Mapping[Path, str]) -> dict[str, Any]:
    return {
        "groups": [
            {
                "env": env,
                "label": group.label,
                "runs": [names[run.path] for run in group.runs],
                "iqm": shorts(group.summary.iqm),
                "mean": shorts(group.summary.mean),
                "steps": short(group.steps),
            }
            for env, groups in comparison.groups.items()
            for group in groups
        ],
        "improvements": [
            {"x": one.x, "y": one.y, "probability": shorts(one.probability), "envs": one.envs}
            for one in comparison.improvements
        ],
        "warnings": comparison.warnings,
    }
