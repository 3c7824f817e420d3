"""The turn of a generation: when it ends, what ends with it, and who may not go on."""

import warnings
from pathlib import Path

import numpy as np

from evorl.errors import RunError
from evorl.pipeline.collect import Collect
from evorl.pipeline.context import Context
from evorl.runs.directory import BEST, CHECKPOINTS, RunDirectory


def generation_ends(context: Context) -> bool:
    """True in the last iteration of a generation."""
    return context.iteration + 1 >= context.ends


class NextGeneration:
    """Cuts the running episodes; from here on it is the next generation's turn."""

    def __init__(self, collect: Collect) -> None:
        self.collect = collect

    def __call__(self, context: Context) -> None:
        """After selection, before anything is handed on."""
        self.collect.end_generation()
        context.generation += 1


class RefuseAllDead:
    """Ends a run that nobody survives; if they died at its very end, it may not go on."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    def __call__(self, context: Context) -> None:
        """After the evaluation of all ranks."""
        if np.isfinite(context.fitness).any():
            return
        if context.finished:
            warnings.warn(
                f"all agents are dead in generation {context.generation}, the last: what the run"
                " returns is the best agent from before; to train on, start anew with a smaller"
                " algorithm.lr",
                stacklevel=2,
            )
            return
        best, last = self.directory.path / BEST, self._last_good(context.generation)
        left = f"{best} has the best agent there was" if best.exists() else "none was kept"
        left += f", {last} is the last good checkpoint" if last else ""
        raise RunError(
            f"{self.directory.path}: all agents are dead in generation {context.generation},"
            " their loss, weights or returns are not finite; try a smaller algorithm.lr"
            f" ({left})"
        )

    def _last_good(self, generation: int) -> Path | None:
        """The newest checkpoint from before this generation: if it was the last, it has its own."""
        found = (self.directory.path / CHECKPOINTS).glob("generation-" + "[0-9]" * 6)
        last = f"generation-{generation:06}"
        return max((path for path in found if path.name <= last), default=None)
