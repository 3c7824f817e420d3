"""Track: after every evaluation, keep the best agent, write the metrics and tell the user."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from evorl.agent_file import SavedAgent
from evorl.console import Console, generation_line
from evorl.pipeline.context import Context
from evorl.population import Population
from evorl.run_directory import RunDirectory


class Track:
    """Writes one line of metrics.jsonl per evaluation, and best/ when an agent is the best yet."""

    def __init__(
        self, population: Population, directory: RunDirectory, console: Console, env_id: str
    ) -> None:
        self.population, self.directory, self.console = population, directory, console
        self.env_id = env_id
        self.best: SavedAgent | None = None
        self.best_fitness = -np.inf
        self._started = self._last = time.perf_counter()
        self._last_steps = 0

    def __call__(self, context: Context) -> None:
        """Of equals the later one is kept: it has learned longer."""
        best = int(np.argmax(np.nan_to_num(context.fitness, nan=-np.inf)))
        if np.isfinite(context.fitness[best]) and context.fitness[best] >= self.best_fitness:
            self.best_fitness = float(context.fitness[best])
            self.best = self._snapshot(context, best)
            self.directory.save_best(self.best)
        self.directory.append_metrics(self._metrics(context))
        self.console.show(f"best {self.best_fitness:.1f}")
        self.console.say(
            generation_line(
                context.generation, context.env_steps, context.fitness, self.best_fitness
            )
        )

    def _snapshot(self, context: Context, agent: int) -> SavedAgent:
        facts = {
            "env": self.env_id,
            "agent": agent,
            "fitness": float(context.fitness[agent]),
            "generation": context.generation,
            "env_steps": context.env_steps,
        }
        state = self.population.state(agent)
        return SavedAgent(
            self.population.genomes[agent], self.population.problem, state.online, facts
        )

    def _metrics(self, context: Context) -> dict[str, Any]:
        now = time.perf_counter()
        rate = (context.env_steps - self._last_steps) / max(now - self._last, 1e-9)
        self._last, self._last_steps = now, context.env_steps
        genomes = self.population.genomes
        return {
            "generation": context.generation,
            "env_steps": context.env_steps,
            "evaluation_steps": context.evaluation_steps,
            "updates": context.updates,
            "episodes": context.episodes,
            "seconds": round(now - self._started, 3),
            "steps_per_second": round(rate, 1),
            "fitness": _floats(context.fitness),
            "alive": [bool(alive) for alive in self.population.alive],
            "loss": _floats(context.loss),
            "exploration": _floats(context.epsilon),
            "hyperparameters": {
                name: [genome.hyperparameters[name] for genome in genomes]
                for name in genomes[0].hyperparameters
            },
            "hidden": [list(genome.architecture.hidden) for genome in genomes],
            "shares": {name: round(share, 4) for name, share in context.timer.shares().items()},
        }


def _floats(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(value) for value in values]
