"""Which of several configurations does better: runs grouped by configuration, and their scores.

A schedule that runs follow is part of their configuration.

The unit is the run, by the held-out mean score of its best agent: agents of one run are no
independent samples.

    comparison = compare(read_runs(["runs/a", "runs/b", "runs/c"]))
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evorl.errors import RunError, one_line
from evorl.evolution.schedule import Schedule, flow_text
from evorl.runs.directory import RunDirectory
from evorl.runs.statistics import (
    Estimate,
    Floats,
    GroupSummary,
    average_improvement,
    summarise_group,
)
from evorl.seeding import generator

TOLERANCE = 0.05  # by which budgets may differ before a comparison says so
# Options in which runs of one group may differ: they do not change what agents learn.
APART = ("name", "seed", "run", "compile", "tracking", "checkpoint")


class Run(NamedTuple):
    """A finished run, as far as it is compared."""

    path: Path
    name: str
    env: str
    seed: int
    options: dict[str, Any]  # its configuration without what is in APART, and its schedule
    score: float  # held-out mean
    steps: int  # environment steps of training and evaluation


class Group(NamedTuple):
    """Runs of one configuration in one environment."""

    label: str
    runs: list[Run]

    @property
    def scores(self) -> Floats:
        """The score of every run [N]."""
        return np.array([run.score for run in self.runs])

    @property
    def summary(self) -> GroupSummary:
        """The scores, summed up."""
        return summarise_group(self.scores)

    @property
    def steps(self) -> float:
        """Environment steps of a run, on average."""
        return float(np.mean([run.steps for run in self.runs]))


class Improvement(NamedTuple):
    """How probably a run of one group beats a run of another."""

    x: str
    y: str
    probability: Estimate  # of X > Y, plus half of that of X = Y
    envs: list[str]  # over which it is averaged


class Comparison(NamedTuple):
    """Groups in every environment, and each against each."""

    groups: dict[str, list[Group]]  # by environment
    improvements: list[Improvement]
    warnings: list[str]


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The finished runs of these directories; RunError if one is not finished, or given twice."""
    runs: dict[Path, Run] = {}
    for path in paths:
        run = _read_run(RunDirectory.open(path))
        if (real := run.path.resolve()) in runs:
            raise RunError(one_line(f"{path}: given twice"))
        runs[real] = run
    return list(runs.values())


def compare(runs: Sequence[Run]) -> Comparison:
    """Sum up the runs by group; the same runs always give the same figures."""
    by_env: dict[str, list[list[Run]]] = {}
    for run in runs:
        _put(by_env.setdefault(run.env, []), run)
    labels = _Labels(by_env)
    groups = {
        env: [Group(labels(same), same) for same in together] for env, together in by_env.items()
    }
    warnings = [line for env, found in groups.items() for line in _warnings(env, found)]
    return Comparison(groups, list(_improvements(groups)), warnings)


def _read_run(directory: RunDirectory) -> Run:
    summary, config = directory.summary(), directory.config()
    if summary.env != config.env.id or summary.seed != config.seed:
        raise RunError(one_line(f"{directory.path}: summary and configuration are of two runs"))
    options = config.model_dump(exclude=set(APART))
    if config.env.backend == "async":  # chosen by a measurement, and the same to the byte
        options["env"]["backend"] = "sync"
    if not config.evolves:  # the rest of the section has no effect, but for what is drawn at first
        spaces = {"spaces": options["evolution"]["spaces"]} if config.drawn else {}
        options["evolution"] = {"method": config.evolution.method, **spaces}
    options["schedule"] = _changes(directory.schedule())
    steps = summary.env_steps + summary.evaluation_steps
    score = summary.score.mean.value
    return Run(directory.path, config.name, config.env.id, config.seed, options, score, steps)


def _changes(schedule: Schedule | None) -> dict[str, str]:
    """What a schedule says that no configuration can: values by the step from which they hold."""
    if schedule is None:
        return {}
    found = {}
    for name, value in schedule.at(0).items():
        changes = {0: value}
        for step, values in schedule.segments:
            if values[name] != value:
                changes[step] = value = values[name]
        if len(changes) > 1:
            found[name] = flow_text(changes)
    gated = {
        name: list(own.gated) for name, own in schedule.architectures.items() if any(own.gated)
    }
    return found | ({"gated": flow_text(gated)} if gated else {})


def _put(groups: list[list[Run]], run: Run) -> None:
    for same in groups:
        if same[0].options == run.options:
            same.append(run)
            return
    groups.append([run])


def _improvements(groups: Mapping[str, Sequence[Group]]) -> Iterator[Improvement]:
    scores = {env: {group.label: group.scores for group in found} for env, found in groups.items()}
    labels = dict.fromkeys(label for found in scores.values() for label in found)
    for x, y in combinations(labels, 2):
        envs = [env for env, found in scores.items() if x in found and y in found]
        if envs:
            pairs = [(scores[env][x], scores[env][y]) for env in envs]
            yield Improvement(x, y, average_improvement(pairs, generator(0, "compare")), envs)


def _warnings(env: str, groups: Sequence[Group]) -> Iterator[str]:
    least, most = (edge(group.steps for group in groups) for edge in (min, max))
    if most > (1 + TOLERANCE) * least:
        more = 100 * (most / least - 1) if least else math.inf
        yield f"{env}: one group had {more:.0f} % more environment steps than another"
    for group in groups:
        seeds = [run.seed for run in group.runs]
        for seed in sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            count = seeds.count(seed)
            yield f"{env}: {count} runs of {group.label} have seed {seed}, so they count too often"


class _Labels:
    """Names groups by the options in which the groups of some environment differ."""

    def __init__(self, by_env: Mapping[str, Sequence[Sequence[Run]]]) -> None:
        paths = (
            path
            for groups in by_env.values()
            for path in _differences([same[0].options for same in groups])
        )
        self.paths = list(dict.fromkeys(paths))

    def __call__(self, runs: Sequence[Run]) -> str:
        options = runs[0].options
        if self.paths:
            return " ".join(f"{'.'.join(path)}={_value(options, path)}" for path in self.paths)
        return re.sub(r"-seed\d+$", "", runs[0].name)


def _differences(options: Sequence[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The deepest paths at which the mappings differ; without evolution its section says less."""
    if all(isinstance(one, Mapping) for one in options):
        for key in dict.fromkeys(key for one in options for key in one):
            known = [one.get(key) for one in options if key in one or path != ("evolution",)]
            yield from _differences(known, (*path, key))
    elif any(one != options[0] for one in options):
        yield path


def _value(options: Any, path: Sequence[str]) -> str:
    for key in path:
        options = options.get(key) if isinstance(options, Mapping) else None
    return "none" if options is None else flow_text(options)
