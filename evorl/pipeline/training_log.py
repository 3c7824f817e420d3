"""What training shows of itself within a generation, by steps: returns, lengths, losses, updates.

A generation is some parts of equal length, and each of them a point of every curve. All of it is
counted on the host, where it is known anyway. Gradient norms, values and entropies are not: they
are measured once a generation, on one batch (`Population.measure`), beside the updates.

Legend: K parts of a generation, P agents.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

PARTS = 5
DIGITS = 5  # significant ones of a number that is written down
# what is added up: of episodes that ended, of own steps, of updates and of their losses
SUMS = ("episodes", "return", "known", "length", "steps", "updates", "loss")
COUNTED = ("episodes", "known", "steps", "updates")
PLAYED = SUMS[:4]  # each of the ranks that train an agent together plays its own

Floats = npt.NDArray[np.float64]


class TrainingLog:
    """Of this rank's agents, since the generation began."""

    def __init__(self, agents: int) -> None:
        self.sums: dict[str, npt.NDArray[Any]] = {
            name: np.zeros((PARTS, agents), np.int64 if name in COUNTED else np.float64)
            for name in SUMS
        }
        self._begin(0)
        self.measured: dict[str, Floats] = {}  # [P] by name

    def step(self, done: int, length: int, new_steps: npt.NDArray[np.int64]) -> None:
        """An iteration, after as many of the generation's length, with own steps [P]."""
        part = PARTS * done // length if 0 <= done < length else PARTS - 1
        if part != self.part:
            self._begin(part)
        self._steps += new_steps

    def _begin(self, part: int) -> None:
        """Everything is of this part from now on; its rows are at hand for every iteration."""
        self.part, sums = part, self.sums
        self._steps, self._updates = sums["steps"][part], sums["updates"][part]
        self._loss = sums["loss"][part]

    def episode(self, agent: int, total: float, length: int | None = None) -> None:
        """A training episode has ended by itself; of some only the return is known."""
        at = self.part, agent
        self.sums["episodes"][at] += 1
        self.sums["return"][at] += total
        if length is not None:
            self.sums["known"][at] += 1
            self.sums["length"][at] += length

    def update(self, updates: npt.NDArray[np.int64], loss: Floats) -> None:
        """Updates [P] that were made, with their losses [P], added up; 0 where there is none."""
        self._updates += updates
        self._loss += loss

    def to_bytes(self) -> bytes:
        """For the main rank."""
        kinds = {"sums": self.sums, "measured": self.measured}
        found = {
            kind: {name: own.tolist() for name, own in each.items()} for kind, each in kinds.items()
        }
        return json.dumps(found).encode()


def join_logs(sent: Sequence[bytes], data: int) -> TrainingLog:
    """One log of all agents, from those of all ranks, `data` of which train the same agents."""
    logs = [json.loads(one) for one in sent]
    rows = [logs[row : row + data] for row in range(0, len(logs), data)]
    joined = TrainingLog(0)
    for name in SUMS:
        of_all = (row if name in PLAYED else row[:1] for row in rows)
        each = [np.sum([own["sums"][name] for own in row], 0) for row in of_all]
        joined.sums[name] = np.concatenate(each, 1)
    agents = [len(row[0]["sums"]["steps"][0]) for row in rows]
    for name in {name: None for row in rows for name in row[0]["measured"]}:
        own = (row[0]["measured"].get(name) for row in rows)
        parts = [np.full(p, np.nan) if o is None else o for o, p in zip(own, agents, strict=True)]
        joined.measured[name] = np.concatenate(parts)
    return joined


def curves_of(log: TrainingLog, before: int, after: int) -> dict[str, Any]:
    """Points for metrics.jsonl, of a generation from `before` environment steps to `after`.

    Parts without a step are left out, as of a generation of less than so many iterations.
    """
    sums, steps = log.sums, log.sums["steps"].sum(1)
    there = np.flatnonzero(steps)
    ends = before + np.cumsum(steps) / max(steps.sum(), 1) * (after - before)
    shown = {
        "return": _ratio(sums["return"], sums["episodes"]),
        "length": _ratio(sums["length"], sums["known"]),
        "loss": _ratio(sums["loss"], sums["updates"]),
        "updates_per_step": _ratio(sums["updates"], sums["steps"]),
    }
    points: Mapping[str, Any] = {name: _short(own[there]) for name, own in shown.items()}
    measured = {name: _short(own) for name, own in log.measured.items()}
    return {"env_steps": np.rint(ends[there]).astype(int).tolist(), **points, "measured": measured}


def _ratio(total: Floats, count: Floats) -> Floats:
    found: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def _short(values: Floats) -> Any:
    """As lists, with as many digits as a curve can show; None for what is not known."""
    if values.ndim > 1:
        return [_short(own) for own in values]
    return [float(f"{own:.{DIGITS}g}") if np.isfinite(own) else None for own in values.tolist()]
