"""Which of several configurations does better: runs grouped by configuration, and their scores.

The unit is the run, by the held-out mean score of its best agent: agents of one run are no
independent samples. A schedule that runs follow is part of their configuration.

Intervals are 95 % bootstrap intervals by the percentile method, not by BCa, which divides by zero
when all samples are alike (CartPole's 500). On a handful of samples they are too narrow.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from os.path import exists  # False for a name that is too long, too
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from evorl.errors import EvorlError, RunError
from evorl.runs.directory import SCHEDULE, RunDirectory, Summary
from evorl.runs.estimates import Estimate
from evorl.runs.files import read_bytes
from evorl.runs.status import state_of

if TYPE_CHECKING:  # here and below: whoever reads figures need not load what computes them
    import numpy as np
    import numpy.typing as npt

RESAMPLES = 10_000
BATCH = 1000  # resamples in memory at once
CONFIDENCE = 0.95
TOLERANCE = 0.05  # by which budgets may differ before a comparison says so
# Options in which runs of one group may differ: they do not change what agents learn.
APART = ("name", "seed", "run", "compile", "tracking", "checkpoint")

Floats: TypeAlias = "npt.NDArray[np.float64]"


class GroupSummary(NamedTuple):
    """The scores of a group's runs, summed up."""

    runs: int
    iqm: Estimate  # mean of the middle half: outliers on either side don't move it
    mean: Estimate


class Run(NamedTuple):
    """A run, as far as it is compared."""

    path: Path
    name: str
    env: str
    seed: int
    options: dict[str, Any]  # its configuration without what is in APART, and its schedule
    score: float  # held-out mean; NaN if it is not finished
    steps: int  # environment steps of training and evaluation


class RunGroup(NamedTuple):
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

    env: str
    x: str
    y: str
    probability: Estimate  # of X > Y, plus half of that of X = Y


class Comparison(NamedTuple):
    """Groups in every environment, and each against each."""

    groups: dict[str, list[RunGroup]]  # by environment
    improvements: list[Improvement]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        groups = [
            {
                "env": env,
                "label": group.label,
                "runs": [
                    {"path": str(run.path), "seed": run.seed, "score": run.score}
                    for run in group.runs
                ],
                "iqm": group.summary.iqm._asdict(),
                "mean": group.summary.mean._asdict(),
                "steps": group.steps,
            }
            for env, groups in self.groups.items()
            for group in groups
        ]
        pairs = [
            pair._asdict() | {"probability": pair.probability._asdict()}
            for pair in self.improvements
        ]
        return {"groups": groups, "improvements": pairs, "warnings": self.warnings}


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The finished runs of these directories; RunError if one is not finished."""
    opened = [RunDirectory.open(path) for path in paths]
    return [_read_run(directory, directory.summary()) for directory in opened]


def read_begun(paths: Iterable[str | Path]) -> list[Run]:
    """The runs of these directories; without score and steps those that are not finished."""
    opened = [RunDirectory.open(path) for path in paths]
    return [_read_run(own, own.summary() if own.finished else None) for own in opened]


def read_finished(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Those of the paths that are finished runs, and why the others are left out.

    RunError if none is left, or where there is nothing at all.
    """
    runs, left_out = [], []
    for path in paths:
        try:
            directory = RunDirectory.open(path)
            if directory.finished:
                runs.append(_read_run(directory, directory.summary()))
            else:
                left_out.append(f"{path}: {state_of(path).state}, not finished")
        except EvorlError as error:
            if not exists(path):
                raise
            left_out.append(str(error))
    if not runs:
        others = "; nor is any other of these" if len(left_out) > 1 else ""
        raise RunError(f"{left_out[0]}{others}")
    return runs, left_out


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Sum up the runs by group; the same runs always give the same figures."""
    found = group_runs(runs)
    improvements = [
        Improvement(env, x.label, y.label, probability_of_improvement(x.scores, y.scores))
        for env, groups in found.items()
        for x, y in combinations(groups, 2)
    ]
    warnings = [line for env, groups in found.items() for line in _warnings(env, groups)]
    return Comparison(found, improvements, warnings)


def group_runs(runs: Sequence[Run]) -> dict[str, list[RunGroup]]:
    """Runs by environment and configuration."""
    by_env: dict[str, dict[str, list[Run]]] = {}  # by configuration
    for run in runs:
        same = json.dumps(run.options, sort_keys=True, default=str)
        by_env.setdefault(run.env, {}).setdefault(same, []).append(run)
    different = dict.fromkeys(
        place
        for groups in by_env.values()
        for place, _ in differences([group[0].options for group in groups.values()])
    )
    return {
        env: [RunGroup(_label(group[0], different), group) for group in groups.values()]
        for env, groups in by_env.items()
    }


def _read_run(directory: RunDirectory, summary: Summary | None) -> Run:
    options = directory.options()
    known = {name: value for name, value in options.items() if name not in APART}
    if known["env"].get("backend") == "async":  # chosen by a timing, and the same to the byte
        known["env"] = known["env"] | {"backend": "sync"}
    if (schedule := directory.path / SCHEDULE).exists():
        known["schedule"] = hashlib.sha256(read_bytes(schedule)).hexdigest()[:8]
    name, score, steps = str(options.get("name", "")), math.nan, 0
    if summary is not None:
        score, steps = summary.mean.value, summary.env_steps + summary.evaluation_steps
    env, seed = known["env"]["id"], options.get("seed", 0)
    return Run(directory.path, name, env, seed, known, score, steps)


def _warnings(env: str, groups: Sequence[RunGroup]) -> Iterator[str]:
    least, most = (edge(group.steps for group in groups) for edge in (min, max))
    if most > (1 + TOLERANCE) * least:
        more = 100 * (most / max(1, least) - 1)
        yield f"{env}: one group had {more:.0f} % more environment steps than another"
    for group in groups:
        for seed, count in Counter(run.seed for run in group.runs).items():
            if count > 1:
                what = f"{count} runs of {group.label} have seed {seed}"
                yield f"{env}: {what}, so they count too often"


def differences(values: Sequence[Any], place: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The deepest places at which mappings differ, such as `algorithm.lr`, and what is there."""
    if all(isinstance(one, Mapping) for one in values):
        for key in dict.fromkeys(key for one in values for key in one):
            inner = [one.get(key) for one in values]
            yield from differences(inner, f"{place}.{key}" if place else key)
    elif any(one != values[0] for one in values):
        yield place, list(values)


def _label(run: Run, places: Iterable[str]) -> str:
    """The options in which groups differ; if there is but one group, the name of its runs."""
    values = []
    for place in places:
        value: Any = run.options
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        # numbers, names, lists and mappings as YAML on one line
        text = json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
        values.append(f"{place}={'none' if value is None else text}")
    return " ".join(values) or re.sub(r"-seed\d+$", "", run.name)


def interquartile_mean(samples: Floats, axis: int = -1) -> Floats:
    """The mean without the lowest and the highest quarter."""
    import numpy as np

    ordered = np.moveaxis(samples, axis, -1)
    count = ordered.shape[-1]
    cut = count // 4
    middle = np.partition(ordered, (cut, count - cut - 1), axis=-1)[..., cut : count - cut]
    mean: Floats = middle.mean(-1)
    return mean


def interval(
    samples: Sequence[Floats], random: "np.random.Generator", statistic: Callable[..., Any]
) -> Estimate:
    """A statistic of one or several samples, each of which is resampled by itself."""
    import numpy as np

    value = float(statistic(*samples, axis=-1))
    if min(len(sample) for sample in samples) < 2:
        return Estimate(value, math.nan, math.nan)
    found = []
    for done in range(0, RESAMPLES, BATCH):
        rows = min(BATCH, RESAMPLES - done)
        drawn = [own[random.integers(0, len(own), (rows, len(own)))] for own in samples]
        found.append(statistic(*drawn, axis=-1))
    ordered, tail = np.sort(np.concatenate(found)), (1 - CONFIDENCE) / 2
    return Estimate(value, _quantile(ordered, tail), _quantile(ordered, 1 - tail))


def _quantile(ordered: Floats, share: float) -> float:
    """Between two of them, linearly."""
    place = share * len(ordered) + (1 - share)
    after, rest = int(place), place % 1
    return float((1 - rest) * ordered[after - 1] + rest * ordered[after])


def summarise_group(scores: "npt.ArrayLike") -> GroupSummary:
    """The scores of one group, one a run; the same scores always give the same intervals."""
    import numpy as np

    from evorl.seeding import generator

    samples, random = np.asarray(scores, dtype=np.float64), generator(0, "summarise")
    iqm = interval([samples], random, interquartile_mean)
    return GroupSummary(len(samples), iqm, interval([samples], random, np.mean))


def probability_of_improvement(x: "npt.ArrayLike", y: "npt.ArrayLike") -> Estimate:
    """P(X > Y) + ½ P(X = Y) for one run of each: 1 if every x is higher, ½ if they are alike."""
    import numpy as np

    from evorl.seeding import generator

    def wins(x: Floats, y: Floats, axis: int) -> Floats:
        """Of samples [..., N], over the last dimension."""
        left, right = x[..., :, None], y[..., None, :]
        mean: Floats = ((left > right) + 0.5 * (left == right)).mean((-2, -1))
        return mean

    samples = [np.asarray(sample, dtype=np.float64) for sample in (x, y)]
    return interval(samples, generator(0, "compare"), wins)
