"""Evaluate: all agents play the same seeded episodes, greedily.

Legend: P agents, E episodes of each.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evorl.config import EvaluationConfig
from evorl.envs import Episodes
from evorl.evolution import Fitness
from evorl.pipeline.context import Context, count_failures
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

    With fewer slots than episodes they play in waves. `on_end` is told how many episodes ended, for
    a progress bar. What the environments raised is left to be counted in episodes.failures.
    """
    agents, count = population.size, episodes.num_envs // population.size  # slots of each
    waves, steps = list[Floats](), 0
    for start in range(0, len(seeds), count):
        wave = seeds[start : start + count]
        playing = np.repeat(population.alive[:, None], count, 1)
        playing[:, len(wave) :] = False  # slots that the last wave does not use
        active = playing.reshape(-1)
        obs = episodes.reset([*wave, *[0] * (count - len(wave))] * agents, active)
        returns = np.zeros(agents * count)
        for _ in range(max_steps):
            if not active.any():
                break
            actions = population.greedy(obs.reshape(agents, count, *obs.shape[1:]))
            actions = actions.reshape(len(obs), *actions.shape[2:])
            obs, reward, ended = episodes.step(actions, active)
            returns += reward
            steps += int(active.sum())
            if on_end is not None:
                on_end(int((ended & active).sum()))
            active &= ~ended
        waves.append(returns.reshape(agents, count)[:, : len(wave)])
    return Played(np.concatenate(waves, 1), steps)


class Evaluate:
    """Scores the population at the end of a generation."""

    def __init__(
        self,
        population: Population,
        episodes: Episodes,
        config: EvaluationConfig,
        seed: int,
        share: slice = slice(None),
    ) -> None:
        """`share` are the episodes that this rank plays, of those that its agents are to play."""
        self.population, self.episodes = population, episodes
        self.count, self.max_steps, self.seed = config.episodes, config.max_steps, seed
        self.share, self.fitness = share, Fitness.named(config.fitness)

    def __call__(self, context: Context) -> None:
        """The returns of this rank's agents on its share of the episodes."""
        before = self.population.alive.copy()
        self.population.mark_dead()
        for agent in np.flatnonzero(before & ~self.population.alive):
            warn_dead(self.population.genomes[agent].id, "its weights are no longer finite")
        with context.timer("evaluate"):
            seeds = integers(self.seed, "evaluation", context.generation, count=self.count)
            played = play(self.population, self.episodes, seeds[self.share], self.max_steps)
        count_failures(context, self.episodes.failures)
        context.evaluation_steps += played.steps
        context.returns = np.where(self.population.alive[:, None], played.returns, -np.inf)
        context.fitness = self.fitness(context.returns)
