"""Track: after every evaluation, write the metrics and the lineage.

Legend: P agents, E episodes.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from evorl.evolution.lineage import fitness_line
from evorl.pipeline.champion import HallOfFame
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import standard_errors
from evorl.pipeline.everybody import Everybody
from evorl.runs.directory import RunDirectory


class Track:
    """Writes one line of metrics.jsonl per evaluation, and one of lineage.jsonl per agent."""

    def __init__(self, everybody: Everybody, hall: HallOfFame, directory: RunDirectory) -> None:
        self.everybody, self.hall, self.directory = everybody, hall, directory
        self._started = self._last = time.perf_counter()
        self._last_steps = 0

    def begin(self, context: Context) -> None:
        """Before the first generation of a run, or of what is left of one."""
        self._last, self._last_steps = time.perf_counter(), context.env_steps

    def __call__(self, context: Context) -> None:
        """After the hall of fame has seen the evaluation."""
        self.directory.append_metrics(self._metrics(context))
        self.directory.append_lineage(self._fitness_lines(context))

    def _metrics(self, context: Context) -> dict[str, Any]:
        now = time.perf_counter()
        rate = (context.env_steps - self._last_steps) / max(now - self._last, 1e-9)
        self._last, self._last_steps = now, context.env_steps
        genomes = self.everybody.genomes
        return {
            "generation": context.generation,
            "env_steps": context.env_steps,
            "evaluation_steps": context.evaluation_steps,
            "updates": context.updates,
            "episodes": context.episodes,
            "failures": context.failures,
            "seconds": round(now - self._started, 3),
            "steps_per_second": round(rate, 1),
            "best": self.hall.score,
            "ids": [genome.id for genome in genomes],
            "fitness": _floats(context.fitness),
            "alive": [bool(alive) for alive in self.everybody.alive],
            "loss": _floats(context.loss),
            "exploration": _floats(context.epsilon),
            "hyperparameters": {
                name: [genome.hyperparameters[name] for genome in genomes]
                for name in genomes[0].hyperparameters
            },
            "hidden": {
                name: [list(genome.architectures[name].hidden) for genome in genomes]
                for name in genomes[0].architectures
            },
            "shares": {name: round(share, 4) for name, share in context.timer.shares().items()},
        }

    def _fitness_lines(self, context: Context) -> list[dict[str, Any]]:
        errors = standard_errors(context.returns)
        return [
            fitness_line(
                genome.id,
                place,
                generation=context.generation,
                env_steps=context.env_steps,
                own_steps=int(context.agent_steps[place]),
                fitness=float(context.fitness[place]),
                error=float(errors[place]),
            )
            for place, genome in enumerate(self.everybody.genomes)
        ]


def _floats(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(value) for value in values]
