"""Evaluate: all agents play the same seeded episodes. Confirm: who is the best ever seen.

The highest of many noisy fitnesses is biased upward. So a generation's best becomes the best of the
run, its champion, only if it also wins on further seeds, the same for all candidates, played in
waves until it is clearly behind. Agents decay after their peak: what is kept is a snapshot.

Legend: P agents, E episodes of each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.config import EvaluationConfig, RunConfig
from evorl.envs import Episodes
from evorl.errors import RunError
from evorl.evolution import Fitness
from evorl.genome import Genome
from evorl.pipeline.context import Context, count_failures
from evorl.pipeline.learn import warn_dead
from evorl.pipeline.snapshot import Snapshot, pack, unpack
from evorl.population import AgentState, Population, newborn
from evorl.runs import Interface, RunDirectory, SavedAgent
from evorl.seeding import integers

FIRST_WAVE = 5  # episodes before a candidate is first judged; every later wave doubles their number

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

    `on_end` is told how many episodes ended, for a progress bar. What the environments raised is
    left to be counted in episodes.failures.
    """
    agents, count = population.size, episodes.num_envs // population.size  # slots of each
    waves, steps = list[Floats](), 0
    for start in range(0, len(seeds), count):
        wave = seeds[start : start + count]
        playing = np.repeat(population.alive[:, None], count, 1)
        playing[:, len(wave) :] = False  # slots that the last wave does not use
        active = playing.reshape(-1)
        obs = episodes.reset([*wave, *[0] * (count - len(wave))] * agents)
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


class Champion(NamedTuple):
    """The best agent ever seen as it was then, with everything that a child inherits."""

    genome: Genome
    state: AgentState
    generation: int  # at whose end it was seen
    own_steps: int
    own_updates: int
    facts: Mapping[str, Any] = {}  # what its file says of it


class Confirm:
    """Lets the best of each evaluation play further, and keeps best/ in the run's directory."""

    name = "champion"

    def __init__(
        self, population: Population, episodes: Episodes, directory: RunDirectory, config: RunConfig
    ) -> None:
        """Of the population it takes the networks and the algorithm only."""
        self.networks, self.specs = population.networks, population.specs
        self.algorithm = population.algorithm
        self.episodes, self.directory, self.env_id = episodes, directory, config.env.id
        self.max_steps, self.stop_at = config.evaluation.max_steps, config.budget.stop_at
        self.fitness = Fitness.named(config.evaluation.fitness)
        count = config.evaluation.confirm_episodes
        self.seeds = integers(config.seed, "confirmation", count=count)
        self.champion: Champion | None = None  # the best, ready to have children
        self.returns: Floats | None = None  # [E] of the best, on the further seeds

    @property
    def score(self) -> float:
        """The champion's fitness on the further seeds; -inf if there is none."""
        return -np.inf if self.returns is None else self._score(self.returns)

    def _score(self, returns: Floats) -> float:
        return float(self.fitness(returns[None])[0])

    @property
    def reached(self) -> bool:
        """Whether the champion is as good as the run was to become."""
        return self.stop_at is not None and self.score >= self.stop_at

    def __call__(self, context: Context) -> None:
        """Only an agent that may beat the confirmed score plays the further episodes.

        They are other seeds, so a standard error is allowed for. Of equals the later one is kept.
        """
        snapshot = context.snapshot
        snapshot.best = self.score
        agent = int(np.argmax(np.nan_to_num(snapshot.fitness, nan=-np.inf)))
        fitness = snapshot.fitness[agent]
        error = np.nan_to_num(self.fitness.errors(snapshot.returns)[agent])
        if not np.isfinite(fitness) or fitness + error < self.score:
            return
        with context.timer("evaluate"):
            returns = self._confirm(snapshot, agent)
        if returns is not None and self._score(returns) >= self.score:
            self.returns = returns
            self._keep(snapshot, agent)

    def _keep(self, snapshot: Snapshot, agent: int) -> None:
        """This agent is the champion from now on."""
        snapshot.best = self.score
        own_steps, own_updates = snapshot.agent_steps[agent], snapshot.agent_updates[agent]
        facts = {
            "env": self.env_id,
            "place": agent,
            "fitness": float(snapshot.fitness[agent]),
            "confirmed": self.score if np.isfinite(self.score) else None,
            "generation": snapshot.ended,
            "env_steps": snapshot.env_steps,
            "own_steps": int(own_steps),
        }
        genome, state = snapshot.genomes[agent], snapshot.states[agent]
        counts = (snapshot.ended, int(own_steps), int(own_updates))
        self.champion = Champion(genome, state, *counts, facts)
        self.directory.save_best(self.returned())
        snapshot.finished |= self.reached

    def returned(self) -> SavedAgent:
        """The champion, which the run returns; RunError if no agent was ever any good."""
        if self.champion is None:
            raise RunError(
                f"{self.directory.path}: no agent ever had a finite fitness;"
                " look at the rewards that the environment gives"
            )
        return SavedAgent(
            self.champion.genome,
            self.specs,
            self.champion.state.online,
            self.algorithm.model_dump(mode="json"),
            Interface.of(self.episodes.spaces),
            dict(self.champion.facts),
        )

    def _confirm(self, snapshot: Snapshot, agent: int) -> Floats | None:
        """Its returns on the further seeds; None if it was clearly behind before the last."""
        alone = Population([snapshot.genomes[agent]], self.networks, self.algorithm)
        alone.rebuild(alone.genomes, [newborn(snapshot.states[agent].online)])
        returns = np.zeros(0)
        while len(returns) < len(self.seeds):
            if self._clearly_behind(returns):
                return None
            wave = self.seeds[len(returns) : max(FIRST_WAVE, 2 * len(returns))]
            played = play(alone, self.episodes, wave, self.max_steps)
            count_failures(snapshot, self.episodes.failures)
            snapshot.evaluation_steps += played.steps
            returns = np.append(returns, played.returns[0])
        return returns

    def _clearly_behind(self, returns: Floats) -> bool:
        """By more than a standard error of the difference on the seeds played so far."""
        if not len(returns) or self.returns is None or not np.isfinite(self.returns).all():
            return False
        lead, error = self.fitness.lead(returns, self.returns[: len(returns)])
        return bool(lead + np.nan_to_num(error) < 0)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs, as JSON and tensors."""
        if self.champion is None or self.returns is None:
            return {}, {}
        genome, state = self.champion.genome.to_json(), self.champion.state
        values = self.champion._asdict() | {"genome": genome, "state": state.steps}
        return values, pack([state]) | {"returns": torch.from_numpy(self.returns)}

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from an earlier `state`; best/ becomes what it was then."""
        if not values:
            return
        genome, (state,) = Genome.from_json(values["genome"]), unpack(tensors, [values["state"]])
        self.champion = Champion(**values | {"genome": genome, "state": state})
        self.returns = tensors["returns"].numpy().copy()
        self.directory.save_best(self.returned())
