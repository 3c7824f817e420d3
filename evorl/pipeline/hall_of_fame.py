"""The hall of fame: the best agent ever seen, chosen by episodes that selection did not see.

The highest of many noisy fitnesses is biased upward. So a generation's best becomes the best of the
run only if it also wins on further seeds, the same for all candidates. DQN agents decay after their
peak: what is kept is a snapshot.
"""

from typing import NamedTuple

import numpy as np

from evorl.agent_file import SavedAgent
from evorl.config import EvaluationConfig
from evorl.envs import Episodes
from evorl.genome import Genome
from evorl.group import AgentState, newborn
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import play, standard_errors
from evorl.population import Population
from evorl.run_directory import RunDirectory
from evorl.seeding import integers


class Champion(NamedTuple):
    """The best agent ever seen as it was then, with everything that a child inherits."""

    genome: Genome
    state: AgentState
    generation: int  # at whose end it was seen
    own_steps: int
    own_updates: int


class HallOfFame:
    """Confirms the best of each evaluation, and keeps best/ in the run's directory."""

    def __init__(
        self,
        population: Population,
        episodes: Episodes,
        directory: RunDirectory,
        config: EvaluationConfig,
        *,
        env_id: str,
        seed: int,
        stop_at: float | None = None,
    ) -> None:
        self.population, self.episodes, self.directory = population, episodes, directory
        self.env_id, self.max_steps, self.stop_at = env_id, config.max_steps, stop_at
        self.seeds = integers(seed, "confirmation", count=config.confirm_episodes)
        self.best: SavedAgent | None = None
        self.champion: Champion | None = None  # the best, ready to have children
        self.score = -np.inf  # of the best, on the further seeds

    def __call__(self, context: Context) -> None:
        """Only an agent that may beat the confirmed score plays the further episodes.

        Fitness and score come from different seeds, so a standard error is allowed for. Of equals
        the later one is kept: it has learned longer.
        """
        agent = int(np.argmax(np.nan_to_num(context.fitness, nan=-np.inf)))
        error = np.nan_to_num(standard_errors(context.returns)[agent])
        if not np.isfinite(context.fitness[agent]) or context.fitness[agent] + error < self.score:
            return
        with context.timer("evaluate"):
            confirmed = self._confirm(context, agent)
        if confirmed < self.score:
            return
        self.score = confirmed
        self.best = self._snapshot(context, agent)
        self.champion = Champion(
            self.best.genome,
            self.population.state(agent),
            context.generation,
            int(context.agent_steps[agent]),
            int(context.agent_updates[agent]),
        )
        self.directory.save_best(self.best)
        if self.stop_at is not None and confirmed >= self.stop_at:
            context.finished = True

    def _confirm(self, context: Context, agent: int) -> float:
        population = self.population
        alone = Population([population.genomes[agent]], population.problem, population.algorithm)
        alone.rebuild(alone.genomes, [newborn(population.state(agent).online)])
        played = play(alone, self.episodes, self.seeds, self.max_steps)
        context.evaluation_steps += played.steps
        score = float(played.returns.mean())
        return score if np.isfinite(score) else -np.inf

    def _snapshot(self, context: Context, agent: int) -> SavedAgent:
        facts = {
            "env": self.env_id,
            "place": agent,
            "fitness": float(context.fitness[agent]),
            "confirmed": self.score if np.isfinite(self.score) else None,
            "generation": context.generation,
            "env_steps": context.env_steps,
            "own_steps": int(context.agent_steps[agent]),
        }
        state = self.population.state(agent)
        genome = self.population.genomes[agent]
        return SavedAgent(genome, self.population.problem, state.online, facts)
