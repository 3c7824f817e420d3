"""A run directory as plain data for a page, while the run goes on as well.

metrics.jsonl is read before lineage.jsonl, which is always the further one: agents are born in the
lineage before they are measured.
"""

import json
import shlex
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evorl.config import RunConfig, dump_config
from evorl.errors import RunError, one_line
from evorl.evolution.lineage import Lineage
from evorl.reporting.report.agents import agents, known_rows, moving_hyperparameters
from evorl.reporting.report.effects import mutation_effects
from evorl.reporting.report.metrics import MetricsLine, read_metrics, running_seconds
from evorl.reporting.report.numbers import interval, short, shorts
from evorl.runs.directory import BEST, LINEAGE, METRICS, SCHEDULE, SUMMARY, RunDirectory
from evorl.runs.saved_agent import FACTS
from evorl.runs.status import state_of

AXES = {"log": "log", "reverse_log": "reverse_log", "power_of_two": "log2"}
WIDE = 8.0  # a range that spans so many times its least value is drawn on a log axis
_OBJECT = TypeAdapter(dict[str, Any])


def read_run(directory: RunDirectory, name: str | None = None) -> dict[str, Any]:
    """Everything that a report shows of a run; RunError if the directory is damaged."""
    config = directory.config()
    state = state_of(directory.path)
    measured = read_metrics(directory.path / METRICS)
    if state.problem is not None and not measured:
        raise RunError(state.problem)
    lineage = _lineage(directory, begins=state.state == "running" and not measured)
    rows = known_rows(measured, lineage)
    moving = moving_hyperparameters(rows)
    seconds = running_seconds(rows)
    return {
        "name": config.name if name is None else name,
        "path": str(directory.path),
        "env": config.env.id,
        "seed": config.seed,
        "method": config.evolution.method,
        "state": state.state,
        "updated": round(state.changed, 3),
        "budget": config.budget.env_steps,
        "counts": config.budget.counts,
        "population": config.population.size,
        "headline": _headline(directory, rows, seconds),
        "best": _best(directory, lineage),
        "rows": _rows(rows, seconds),
        "agents": agents(rows, lineage, moving),
        "hyperparameters": {name: _axis(name, config, rows) for name in moving},
        "fixed": _fixed(rows, moving),
        "effects": mutation_effects(lineage),
        "config": dump_config(config),
        "commands": _commands(directory),
        "warnings": [state.problem] if state.problem else _warnings(measured, rows),
    }


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
    if directory.finished:
        score = directory.summary().score
        found["score"] = {
            "mean": interval(score.mean),
            "iqm": interval(score.iqm),
            "episodes": score.episodes,
        }
        found |= _of_summary(directory.path / SUMMARY, rows, seconds)
    return found


def _of_summary(path: Path, rows: list[MetricsLine], seconds: list[float]) -> dict[str, Any]:
    """What only a report reads of summary.json, as far as it is there."""
    values = _read_object(path)
    found: dict[str, Any] = {"env_steps": values["env_steps"]}
    found["evaluation_steps"] = values["evaluation_steps"]
    if isinstance(values.get("updates"), int):
        found["updates"] = values["updates"]
    if isinstance(took := values.get("seconds"), int | float):
        before = seconds[-1] - rows[-1].seconds if rows else 0.0  # until the run was resumed
        found["seconds"] = short(before + took)
    if isinstance(versions := values.get("versions"), dict):
        found["versions"] = {str(name): str(version) for name, version in versions.items()}
    return found


def _best(directory: RunDirectory, lineage: Lineage) -> dict[str, Any] | None:
    """Whose line a report follows: the confirmed best. None if there is none, or none just now."""
    path = directory.path / BEST / FACTS
    try:
        values = _read_object(path)
    except FileNotFoundError:
        return None
    try:
        id, facts = values["genome"]["id"], values["facts"]
        numbers = {key: facts.get(key) for key in ("fitness", "confirmed", "own_steps")}
        generation = facts["generation"]
        if not (isinstance(id, int) and isinstance(generation, int)):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise RunError(one_line(f"{path}: not an agent of this version")) from None
    if id not in lineage.births:
        return None
    return {"id": id, "generation": generation} | {k: _number(v) for k, v in numbers.items()}


def _number(value: object) -> float | None:
    return short(value) if isinstance(value, int | float) else None


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; FileNotFoundError if it is not there."""
    try:
        return _OBJECT.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(one_line(f"{path}: cannot be read: {reason}")) from None
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise RunError(one_line(f"{path}: not JSON as it was written: {reason}")) from None


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


def _axis(name: str, config: RunConfig, rows: list[MetricsLine]) -> str:
    """The axis that fits a hyperparameter: as it was drawn, or by how far its values span."""
    space = config.evolution.spaces.evolving.get(name)
    values = [v for row in rows for v in row.hyperparameters.get(name, ()) if v is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if space is not None and (axis := AXES.get(space.kind)):
        fits = high < 1 if axis == "reverse_log" else low > 0
        return axis if fits else "linear"
    if space is None and low > 0 and high > WIDE * low:
        return "log"
    return "linear"


def _fixed(rows: list[MetricsLine], moving: list[str]) -> dict[str, Any]:
    """The hyperparameters that all agents have in common, at all times."""
    known = rows[0].hyperparameters if rows else {}
    return {name: short(each[0]) for name, each in known.items() if name not in moving and each}


def _commands(directory: RunDirectory) -> dict[str, str]:
    """How to train it again, to go on with it, and to look into it."""
    run = shlex.quote(str(directory.path))
    config = shlex.quote(str(directory.path / "config.yaml"))
    again = f"evorl train {config} name=again"
    if (directory.path / SCHEDULE).exists():
        again += f" --replay-schedule {shlex.quote(str(directory.path / SCHEDULE))}"
    return {
        "again": again,
        "resume": f"evorl resume {run}",
        "lineage": f"evorl lineage {run}",
        "schedule": f"evorl schedule {run} > schedule.yaml",
    }


def _warnings(measured: list[MetricsLine], rows: list[MetricsLine]) -> list[str]:
    left_out = len(measured) - len(rows)
    if not left_out:
        return []
    what = json.dumps(METRICS)
    return [
        f"the last {left_out} generation{'s' * (left_out != 1)} of {what} left out:"
        f" {LINEAGE} does not know all of their agents"
    ]
