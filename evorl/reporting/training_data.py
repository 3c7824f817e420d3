"""Training curves of a run as a page wants them: points within generations, by agent.

`rows` are lines of metrics.jsonl, of which those of older versions have no curves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

CURVES = ("return", "length", "loss", "updates_per_step")
MOST_POINTS = 1500  # of a run; of more every second is left out, or two of three, …

Rows = Sequence[Mapping[str, Any]]


def training_curves(rows: Rows) -> tuple[dict[str, list[float]], dict[int, dict[str, Any]]]:
    """All points: in which row, and how much of its steps were made; and the curves by agent.

    An agent's lists begin with its `first` point.
    """
    told = [(row.get("training") or {}).get("env_steps", []) for row in rows]
    stride = -(-sum(map(len, told)) // MOST_POINTS) or 1
    places: dict[str, list[float]] = {"row": [], "share": []}
    agents: dict[int, dict[str, Any]] = {}
    seen, before = 0, 0
    for number, (row, steps) in enumerate(zip(rows, told, strict=True)):
        for k, step in enumerate(steps):
            seen += 1
            if seen % stride:
                continue
            places["row"].append(number)
            places["share"].append((step - before) / max(row["env_steps"] - before, 1))
            _add(agents, row, k, len(places["row"]) - 1)
        before = row["env_steps"]
    return places, agents


def _add(agents: dict[int, dict[str, Any]], row: Mapping[str, Any], k: int, point: int) -> None:
    for place, id in enumerate(row["ids"]):
        own = agents.setdefault(id, {"first": point, **{name: [] for name in CURVES}})
        for name in CURVES:
            own[name].append(row["training"][name][k][place])


def measured_names(rows: Rows) -> list[str]:
    """What was measured once a generation, in any of them."""
    return list({name: None for row in rows for name in _measured(row)})


def measured(row: Mapping[str, Any], name: str, place: int) -> float | None:
    """Of the agent in a place; None where it is not known."""
    own = _measured(row).get(name)
    return None if own is None else own[place]


def _measured(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (row.get("training") or {}).get("measured", {})
    return found
