"""Evaluate: all agents play the same seeded episodes, greedily.

Legend: P agents, E episodes of each.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evorl.config import EvaluationConfig
from evorl.envs import Episodes
from evorl.pipeline.context import Context
from evorl.pipeline.learn import warn_dead
from evorl.population import Population
from evorl.seeding import integers

Floats = npt.NDArray[np.float64]


class Played(NamedTuple):
    """What playing showed."""

    returns: Floats  # [P, E] undiscounted
    steps: int  # environment steps taken


def play(
    population: Population,
    episodes: Episodes,
    seeds: Sequence[int],
    max_steps: int,
    on_end: Callable[[int], None] | None = None,
) -> Played:
    """Each agent plays one episode per seed; only episodes still running are stepped.

    `on_end` is told how many episodes ended, for a progress bar.
    """
    agents, count = population.size, len(seeds)
    obs = episodes.reset(list(seeds) * agents)
    greedy = np.zeros((agents, count), dtype=bool)
    unused = np.zeros((agents, count), dtype=np.int64)
    active = np.repeat(population.alive, count)
    returns = np.zeros(agents * count)
    steps = 0
    for _ in range(max_steps):
        if not active.any():
            break
        grid = obs.reshape(agents, count, *obs.shape[1:])
        actions = population.act(grid, greedy, unused).reshape(-1)
        obs, reward, ended = episodes.step(actions, active)
        returns += reward
        steps += int(active.sum())
        if on_end is not None:
            on_end(int((ended & active).sum()))
        active &= ~ended
    return Played(returns.reshape(agents, count), steps)


class Evaluate:
    """Scores the population at the end of a generation."""

    def __init__(
        self,
        population: Population,
        episodes: Episodes,
        config: EvaluationConfig,
        seed: int,
    ) -> None:
        self.population, self.episodes = population, episodes
        self.count, self.max_steps, self.seed = config.episodes, config.max_steps, seed

    def __call__(self, context: Context) -> None:
        """Fitness is the mean return; -inf for a dead agent, or if a return is no number."""
        before = self.population.alive.copy()
        self.population.mark_dead()
        for agent in np.flatnonzero(before & ~self.population.alive):
            warn_dead(int(agent), "its weights are no longer finite")
        with context.timer("evaluate"):
            seeds = integers(self.seed, "evaluation", context.generation, count=self.count)
            played = play(self.population, self.episodes, seeds, self.max_steps)
        context.evaluation_steps += played.steps
        fitness = np.where(self.population.alive, played.returns.mean(1), -np.inf)
        context.fitness = np.where(np.isfinite(fitness), fitness, -np.inf)
