"""What a person sees while a run goes on: one progress bar and a line per generation."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from evorl.genome import Genome


class Console:
    """A bar over environment steps, and lines above it; `quiet` shows warnings only."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._bar: tqdm[Any] | None = None  # tqdm is generic in its stubs only

    def say(self, line: str) -> None:
        """One line above the bar."""
        if not self.quiet:
            tqdm.write(line)

    def start(self, total: int, what: str, unit: str) -> None:
        """Open a bar over so many units."""
        self.close()
        self._bar = tqdm(
            total=total,
            desc=what,
            unit=unit,
            unit_scale=True,
            disable=True if self.quiet else None,  # None: no bar in a log file
            leave=False,
            dynamic_ncols=True,
            mininterval=0.2,
            smoothing=0.05,
        )

    def advance(self, steps: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(steps)

    def show(self, text: str) -> None:
        """Put a short text at the bar's end."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def warn(self, message: Warning | str, *_: object, **__: object) -> None:
        """A warning as one line, with --quiet too; takes warnings.showwarning's arguments."""
        tqdm.write(f"warning: {message}", file=sys.stderr)


def show_warnings_on(console: Console) -> None:
    """Send Python's warnings to the console, and those of evorl each once."""
    warnings.showwarning = console.warn
    warnings.filterwarnings("default", module="evorl")


def ranking(
    genomes: Sequence[Genome],
    fitness: npt.NDArray[np.float64],
    errors: npt.NDArray[np.float64],
) -> list[str]:
    """All agents of a generation as a table, the best first."""
    lines = ["  rank  agent  parent  mutation         fitness ± error         lr  layers"]
    order = np.argsort(-np.nan_to_num(fitness, nan=-np.inf), kind="stable")
    for place, agent in enumerate(order, 1):
        genome = genomes[agent]
        parent = "—" if genome.parent is None else genome.parent
        layers = "-".join(map(str, genome.architecture.hidden))
        lines.append(
            f"  {place:4d}  {genome.id:5d}  {parent!s:>6}  {genome.mutation:15}"
            f"  {fitness[agent]:7.1f} ± {errors[agent]:5.1f}  {genome.hyperparameters['lr']:9.2g}"
            f"  {layers} {genome.architecture.activation}"
        )
    return lines


def generation_line(
    generation: int,
    env_steps: int,
    fitness: npt.NDArray[np.float64],
    ids: Sequence[int],
    best_ever: float,
) -> str:
    """What one evaluation showed; `best_ever` is the score of the best agent so far, confirmed."""
    alive = fitness[np.isfinite(fitness)]
    dead = f", {len(fitness) - len(alive)} dead" if len(alive) < len(fitness) else ""
    if not len(alive):
        return f"generation {generation:3d}  {env_steps:>11,} steps  all agents are dead"
    return (
        f"generation {generation:3d}  {env_steps:>11,} steps  best {alive.max():8.1f} "
        f"(agent {ids[int(np.argmax(fitness))]})  mean {alive.mean():8.1f}  "
        f"worst {alive.min():8.1f}  best so far {best_ever:8.1f}{dead}"
    )
