"""Ratios on a noisy machine: the candidates take turns, so that a disturbance hits them alike."""

import time
from collections.abc import Callable

Candidates = dict[str, Callable[[], object]]


def seconds_by_turn(candidates: Candidates, calls: int, turns: int = 9) -> dict[str, list[float]]:
    """Seconds per call of each candidate in each turn, after a few calls to warm up."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        for _ in range(max(2, calls // 4)):
            run()
    for _ in range(turns):
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(calls):
                run()
            found[name].append((time.perf_counter() - start) / calls)
    return found


def best_seconds(candidates: Candidates, calls: int, turns: int = 9) -> dict[str, float]:
    """Seconds per call of each candidate in its best turn."""
    turns_of = seconds_by_turn(candidates, calls, turns)
    return {name: min(seconds) for name, seconds in turns_of.items()}
