"""A run directory as plain data for a page, while the run trains as well; or several, compared.

A row is a line of metrics.jsonl, and an agent's lists begin with its first row, `start`.
metrics.jsonl is read before lineage.jsonl, which is always the further one: agents are born in the
lineage before they are measured. Neither torch nor the classes of a configuration are loaded.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evorl.errors import EvorlError
from evorl.evolution import Lineage, describe_architectures, left
from evorl.reporting.importance import find_importance, sizes_of
from evorl.reporting.metrics_row import read_row
from evorl.reporting.page import plain
from evorl.reporting.seed_bands import seed_bands
from evorl.reporting.training_data import measured, measured_names, training_curves
from evorl.runs import (
    CONFIG,
    METRICS,
    SCHEDULE,
    SUMMARY,
    RunDirectory,
    RunState,
    compare_runs,
    parse_json,
    read_bytes,
    read_lines,
    read_runs,
    run_error,
    state_of,
    total_seconds,
)

AXES = {"log": "log", "reverse_log": "reverse_log", "power_of_two": "log2"}
WIDE = 8.0  # a range that spans this many times its least value is drawn on a log axis

# What a line of metrics tells of actors, beside what was refused.
ACTORS = ("alive", "messages", "lag", "max_lag", "queue", "frames_per_second", "lost", "gone")

Rows = Sequence[dict[str, Any]]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a file lacks or has of another kind is a RunError that names the file."""
    try:
        yield
    except EvorlError:
        raise
    except Exception as error:  # somebody else may have written it
        problem = f"damaged, or not of this version: {type(error).__name__}: {error}"
        raise run_error(path, problem) from error


def read_run(directory: RunDirectory) -> dict[str, Any]:
    """Everything that a report shows of a run; RunError if the directory is damaged."""
    path, state = directory.path, state_of(RunDirectory.open(directory.path).path)
    with _reading(path / CONFIG):
        options = directory.options()
        configured = {
            "env": options["env"]["id"],
            "seed": options["seed"],
            "method": options["evolution"]["method"],
            "budget": options["budget"]["env_steps"],
            "counts": options["budget"]["counts"],
            "population": options["population"]["size"],
            "config": read_bytes(path / CONFIG).decode(),
        }
        spaces = options["evolution"]["spaces"]
    with _reading(path / METRICS):
        rows = [read_row(line) for line in read_lines(path / METRICS)]
        lineage = directory.lineage()
        fixed, moving = _hyperparameters(rows, spaces)
        points, curves = training_curves(rows)
        measured = {
            "headline": _headline(directory, rows),
            "rows": _columns(rows),
            "actors": _actors(rows, state.actors),
            "points": points,
            "agents": [
                own | {"training": curves.get(own["id"])} for own in _agents(rows, lineage, moving)
            ],
            "importance": _importance(rows, lineage, list(moving)),
        }
    best = _best(directory, lineage)
    return {
        "path": str(path),
        "state": state.state,
        **configured,
        **measured,
        "best": best,
        "hyperparameters": moving,
        "fixed": fixed,
        "effects": mutation_effects(lineage),
        "commands": _commands(path, state, bool(best)),
        "warnings": list(_warnings(state)),
    }


def _columns(rows: Rows) -> dict[str, Any]:
    names = ("generation", "env_steps", "best", "ids", "steps_per_second")
    seconds = total_seconds([row["seconds"] for row in rows])
    return {name: [row[name] for row in rows] for name in names} | {"seconds": seconds}


def _actors(rows: Rows, wanted: int) -> dict[str, Any] | None:
    """What the learner has told of its actors, by row; None of a run without any.

    A run that resumes may have others, or none: then a row has None.
    """
    told = [row.get("actors") or {} for row in rows]
    if not any(told):
        return None
    return {
        "wanted": wanted,
        "figures": {
            name: [float(one[name]) if name in one else None for one in told] for name in ACTORS
        },
        "refused": dict(sum((Counter(one.get("refused", {})) for one in told), Counter[str]())),
    }


def _headline(directory: RunDirectory, rows: Rows) -> dict[str, Any]:
    last = rows[-1] if rows else {"env_steps": 0, "evaluation_steps": 0, "shares": {}}
    found = {name: last[name] for name in ("env_steps", "evaluation_steps", "shares")}
    if not directory.finished:
        return found | {"score": None, "versions": {}}
    summary = directory.summary()
    return found | {
        "score": {"mean": summary.mean, "iqm": summary.iqm, "episodes": summary.episodes},
        "env_steps": summary.env_steps,
        "evaluation_steps": summary.evaluation_steps,
        "versions": parse_json(read_bytes(directory.path / SUMMARY)).get("versions", {}),
    }


def _best(directory: RunDirectory, lineage: Lineage) -> dict[str, Any] | None:
    """The confirmed best agent; None if there is none, or if it is just being replaced."""
    best = directory.best_agent()
    return None if best is None or best.id not in lineage.births else best._asdict()


def _agents(rows: Rows, lineage: Lineage, moving: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every agent that was born, with what was measured of it."""
    lives: dict[int, list[tuple[dict[str, Any], int]]] = defaultdict(list)  # rows, and its place
    starts: dict[int, int] = {}
    for number, row in enumerate(rows):
        for place, id in enumerate(row["ids"]):
            starts.setdefault(id, number)
            lives[id].append((row, place))
    names = measured_names(rows)
    if unborn := lives.keys() - lineage.births.keys():
        raise ValueError(f"agent {min(unborn)} is not in the lineage")
    for id, birth in lineage.births.items():
        life, genome = lives[id], birth.genome
        errors = {line.generation: line.error for line in lineage.fitness[id]}
        yield {
            "id": id,
            "parent": genome.parent,
            "born": birth.generation,
            # the generation at whose end it left its parent
            "left": None if genome.parent is None else left(birth),
            "place": birth.place,
            "mutation": genome.mutation,
            "change": birth.change,
            "architecture": describe_architectures(genome),
            "sizes": sizes_of(genome),
            "start": starts.get(id),
            "fitness": [row["fitness"][place] for row, place in life],
            "error": [errors.get(row["generation"]) for row, _ in life],
            "loss": [row["loss"][place] for row, place in life],
            "exploration": [row["exploration"][place] for row, place in life],
            "measured": {
                name: [measured(row, name, place) for row, place in life] for name in names
            },
            "hyperparameters": {
                name: _constant([row["hyperparameters"][name][place] for row, place in life])
                for name in moving
            },
        }


def _importance(rows: Rows, lineage: Lineage, names: Sequence[str]) -> dict[str, Any]:
    """What each hyperparameter tells of fitness, and of what was gained in a generation."""
    found = find_importance(rows, lineage, names)
    return {what: None if own is None else own._asdict() for what, own in found.items()}


def _constant(values: list[float]) -> list[float] | float:
    """One value if it never changes, as most do not: that keeps the page small."""
    return values[0] if len(set(values)) == 1 else values


def _hyperparameters(rows: Rows, spaces: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The value of those that all agents have in common at all times, the axis of the others."""
    fixed, moving = {}, {}
    for name in rows[0]["hyperparameters"] if rows else ():
        values = [value for row in rows for value in row["hyperparameters"][name]]
        if len(set(values)) == 1:
            fixed[name] = values[0]
        else:
            moving[name] = _axis(spaces.get(name), min(values), max(values))
    return fixed, moving


def _axis(space: dict[str, Any] | None, low: float, high: float) -> str:
    """As values were drawn; of one that does not evolve, by how far they span."""
    wide = "log" if high > WIDE * low else "linear"
    axis = AXES.get(space["kind"], "linear") if space else wide
    fits = high < 1 if axis == "reverse_log" else low > 0
    return axis if fits else "linear"


def mutation_effects(lineage: Lineage) -> dict[str, Any]:
    """Which mutations helped, by kind, the best mean first.

    Between a parent's fitness and its child's lies a generation of training, and a parent is chosen
    for a fitness that may have been luck: so `parents` is what these gained over the same time.
    """
    kinds: dict[str, dict[int, float]] = defaultdict(dict)
    parents: list[float] = []
    for id, birth in lineage.births.items():
        effect = lineage.effect(birth)
        if effect.change is None or effect.parent is None:
            continue  # not evaluated, or dead
        kinds[birth.genome.mutation][id] = effect.change
        if effect.stayed is not None:
            parents.append(effect.stayed - effect.parent)
    found = [
        {"kind": kind, "ids": list(children)} | _summary(list(children.values()))
        for kind, children in kinds.items()
    ]
    found.sort(key=lambda one: (-one["mean"], one["kind"]))
    return {"kinds": found, "parents": _summary(parents) if parents else None}


def _summary(changes: list[float]) -> dict[str, Any]:
    count = len(changes)
    return {
        "mean": fmean(changes),
        "error": stdev(changes) / count**0.5 if count > 1 else None,
        "helped": sum(change > 0 for change in changes),
        "changes": changes,
    }


def _warnings(state: RunState) -> Iterator[str]:
    if state.problem is not None:
        yield ("The run has failed: " if state.state == "failed" else "") + state.problem


def _commands(path: Path, state: RunState, has_best: bool) -> dict[str, str]:
    """How to train it again, to resume it, and to look into it: those that this run is fit for."""
    run, config, schedule = (shlex.quote(str(path / name)) for name in ("", CONFIG, SCHEDULE))
    follows = (path / SCHEDULE).exists()
    replayed = f" --replay-schedule {schedule}" if follows else ""
    known = {
        "again": (f"evorl train {config} name=again{replayed}", state.state != "failed"),
        "resume": (f"evorl resume {run}", state.resumable),
        "lineage": (f"evorl lineage {run}", has_best),
        "schedule": (f"evorl schedule {run} > schedule.yaml", has_best and not follows),
    }
    return {name: command for name, (command, fits) in known.items() if fits}


def read_payload(paths: Sequence[Path]) -> dict[str, Any]:
    """What a page of these runs is given; RunError if one is damaged."""
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return payload(dict(zip(names, map(RunDirectory.open, paths), strict=True)))


def payload(directories: Mapping[str, RunDirectory]) -> dict[str, Any]:
    """Runs by the names that they are shown under, and how the finished ones compare."""
    runs = [{"name": name} | read_run(directory) for name, directory in directories.items()]
    finished = [run["path"] for run in runs if run["state"] == "finished"]
    comparison = _comparison(finished) if len(runs) > 1 and finished else None
    bands = seed_bands(runs) if len(runs) > 1 else []
    return {"runs": plain(runs), "comparison": plain(comparison), "bands": plain(bands)}


def _comparison(paths: Sequence[str]) -> dict[str, Any]:
    found = compare_runs(read_runs(paths))
    return {
        "groups": [
            {
                "env": env,
                "label": group.label,
                "runs": len(group.runs),
                "iqm": group.summary.iqm,
                "mean": group.summary.mean,
                "steps": group.steps,
            }
            for env, groups in found.groups.items()
            for group in groups
        ],
        "improvements": [improvement._asdict() for improvement in found.improvements],
        "warnings": found.warnings,
    }
