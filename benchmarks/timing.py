"""Ratios on a noisy machine: the candidates take turns, and each is judged by its best turn."""

import time
from collections.abc import Callable


def best_seconds(
    candidates: dict[str, Callable[[], object]], calls: int, turns: int = 9
) -> dict[str, float]:
    """Seconds per call of each candidate; all take turns, so that a disturbance hits them alike."""
    best = dict.fromkeys(candidates, float("inf"))
    for run in candidates.values():
        for _ in range(max(2, calls // 4)):
            run()
    for _ in range(turns):
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(calls):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / calls)
    return best
