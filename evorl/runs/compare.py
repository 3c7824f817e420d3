"""Which of several configurations does better: runs grouped by configuration, and their scores.

A schedule that runs follow is part of their configuration.

The unit is the run, by the held-out mean score of its best agent: agents of one run are no
independent samples.

    comparison = compare(read_runs(["runs/a", "runs/b", "runs/c"]))
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from evorl.runs.directory import CONFIG, RunDirectory
from evorl.runs.files import field, run_error
from evorl.runs.statistics import (
    Estimate,
    GroupSummary,
    probability_of_improvement,
    summarise_group,
)

if TYPE_CHECKING:
    from evorl.evolution import Schedule

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
    def scores(self) -> list[float]:
        """The score of every run."""
        return [run.score for run in self.runs]

    @property
    def summary(self) -> GroupSummary:
        """The scores, summed up."""
        return summarise_group(self.scores)

    @property
    def steps(self) -> float:
        """Environment steps of a run, on average."""
        return fmean(run.steps for run in self.runs)


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
    for path in map(Path, paths):
        directory = RunDirectory.open(path)
        if (real := path.resolve()) in runs:
            raise run_error(path, "given twice")
        try:
            runs[real] = _read_run(directory)
        except ValueError as error:
            raise run_error(path / CONFIG, str(error)) from None
    return list(runs.values())


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Sum up the runs by group; the same runs always give the same figures."""
    by_env: dict[str, list[list[Run]]] = {}
    for run in runs:
        groups = by_env.setdefault(run.env, [])
        same = next((group for group in groups if group[0].options == run.options), None)
        groups.append([run]) if same is None else same.append(run)
    different = dict.fromkeys(
        place
        for groups in by_env.values()
        for place in _differences([group[0].options for group in groups])
    )
    found = {
        env: [Group(_label(group[0], different), group) for group in groups]
        for env, groups in by_env.items()
    }
    warnings = [line for env, groups in found.items() for line in _warnings(env, groups)]
    return Comparison(found, list(_improvements(found)), warnings)


def _read_run(directory: RunDirectory) -> Run:
    """ValueError if something is missing in the configuration."""
    summary, options = directory.summary(), directory.options()
    env, seed, name = options["env"]["id"], field(options, "seed", int), options.get("name", "")
    if (summary.env, summary.seed) != (env, seed):
        raise run_error(directory.path, "summary and configuration are of two runs")
    known = _effective(options) | {"schedule": _changes(directory.schedule())}
    steps = summary.env_steps + summary.evaluation_steps
    return Run(directory.path, str(name), env, seed, known, summary.score.mean.value, steps)


def _effective(options: dict[str, Any]) -> dict[str, Any]:
    """The options that change what agents learn."""
    kept = {name: value for name, value in options.items() if name not in APART}
    if options["env"].get("backend") == "async":  # chosen by a timing, and the same to the byte
        kept["env"] = options["env"] | {"backend": "sync"}
    method = field(options, "evolution.method", str)
    if method != "evolution" or field(options, "population.size", int) == 1:
        # nothing evolves: the rest of the section has no effect, but for what is drawn at first
        drawn = method == "random_search" or field(options, "population.init", str) == "sample"
        spaces = field(options, "evolution.spaces", dict) if drawn else {}
        kept["evolution"] = {"method": method} | ({"spaces": spaces} if spaces else {})
    return kept


def _changes(schedule: "Schedule | None") -> dict[str, Any]:
    """What a schedule says that no configuration can: values by the step from which they hold."""
    if schedule is None:
        return {}
    found: dict[str, Any] = {}
    for name, value in schedule.at(0).items():
        changes = {0: value}
        for step, values in schedule.segments:
            if values[name] != value:
                changes[step] = value = values[name]
        if len(changes) > 1:
            found[name] = _text(changes)
    gated = {
        name: list(own.gated) for name, own in schedule.architectures.items() if any(own.gated)
    }
    return found | ({"gated": gated} if gated else {})


def _improvements(groups: Mapping[str, Sequence[Group]]) -> Iterator[Improvement]:
    from evorl.seeding import generator

    scores = {env: {group.label: group.scores for group in found} for env, found in groups.items()}
    labels = dict.fromkeys(label for found in scores.values() for label in found)
    for x, y in combinations(labels, 2):
        if envs := [env for env, found in scores.items() if x in found and y in found]:
            pairs = [(scores[env][x], scores[env][y]) for env in envs]
            chance = probability_of_improvement(pairs, generator(0, "compare"))
            yield Improvement(x, y, chance, envs)


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


def _differences(options: Sequence[Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The deepest places at which mappings differ; without evolution its section says less."""
    if all(isinstance(one, Mapping) for one in options):
        for key in dict.fromkeys(key for one in options for key in one):
            known = [one.get(key) for one in options if key in one or place != ("evolution",)]
            yield from _differences(known, (*place, key))
    elif any(one != options[0] for one in options):
        yield place


def _label(run: Run, places: Iterable[tuple[str, ...]]) -> str:
    """The options in which groups differ; if there is but one group, the name of its runs."""
    values = []
    for place in places:
        value: Any = run.options
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        values.append(f"{'.'.join(place)}={'none' if value is None else _text(value)}")
    return " ".join(values) or re.sub(r"-seed\d+$", "", run.name)


def _text(value: Any) -> str:
    """Numbers, names, lists and mappings as YAML on one line."""
    return json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
