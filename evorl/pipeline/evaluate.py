"""Evaluate: all agents play the same seeded episodes. PlayTogether: one agent's, by all ranks.

Legend: P agents, E episodes of each.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from evorl.config import EvaluationConfig
from evorl.distributed import Team, World
from evorl.envs import Episodes, steps_limit
from evorl.evolution import Fitness
from evorl.genome import Genome
from evorl.networks import Parameters
from evorl.pipeline.collect import EpisodeReturns
from evorl.pipeline.snapshot import Progress, Snapshot, from_message, to_message
from evorl.pipeline.training_context import Scored, TrainingContext, count_failures, warn_dead
from evorl.population import Population
from evorl.seeding import integers

# A product of less than a dozen rows takes another kernel, with other last bits: an episode would
# depend on how many others are played beside it.
COLUMNS = 16

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Played(NamedTuple):
    """What playing showed."""

    returns: Floats  # [P, E] undiscounted
    lengths: Ints  # [P, E] environment steps

    @property
    def steps(self) -> int:
        """Environment steps of all episodes."""
        return int(self.lengths.sum())


def play(
    population: Population,
    episodes: Episodes,
    seeds: Sequence[int],
    max_steps: int,
    on_end: Callable[[int], None] | None = None,
) -> Played:
    """Each living agent plays one episode per seed, the next one in whatever slot is free.

    What an episode gives depends on its agent and seed alone. `on_end` is told how many are over,
    for a progress bar. What the environments raised is left to be counted in episodes.failures.
    """
    living = np.flatnonzero(population.alive)
    agent, seed = np.tile(living, len(seeds)), np.repeat(np.arange(len(seeds)), len(living))
    returns, lengths, begun = np.zeros(len(agent)), np.zeros(len(agent), np.int64), 0  # of a queue
    playing = np.full(episodes.num_envs, -1)  # which of them each slot plays; -1: it is free
    acting: Acting | None = None
    while begun < len(agent) or (playing >= 0).any():
        free = np.flatnonzero(playing < 0)
        if begun < len(agent) and len(free) >= (1 if episodes.seeds_some else len(playing)):
            new = np.arange(begun, min(begun + len(free), len(agent)))
            begun, free = begun + len(new), free[: len(new)]
            playing[free], acting = new, None
            episodes.start([seeds[i] for i in seed[new]], free)
        if acting is None:
            busy = np.flatnonzero(playing >= 0)
            acting = Acting(population, episodes, busy, agent[playing[busy]])
        reward, ended = episodes.step(acting(), busy)
        returns[playing[busy]] += reward
        lengths[playing[busy]] += 1
        over = busy[ended | (lengths[playing[busy]] >= max_steps)]
        if over.size:
            playing[over], acting = -1, None
            if on_end is not None:
                on_end(len(over))
    shape = (population.size, len(seeds))
    found = Played(np.zeros(shape), np.zeros(shape, np.int64))
    found.returns[agent, seed], found.lengths[agent, seed] = returns, lengths
    return found


class Acting:
    """The greedy actions of some agents, in the slots [K] in which they play.

    A population acts on agents × columns. They are filled from the left, by the busy slots alone.
    """

    def __init__(
        self, population: Population, episodes: Episodes, slots: Ints, agents: Ints
    ) -> None:
        self.population, self.episodes = population, episodes
        self.slots, self.agents = slots, agents
        counts, order = np.bincount(agents), np.argsort(agents, kind="stable")
        self.columns = np.empty_like(agents)
        self.columns[order] = np.concatenate([np.arange(count) for count in counts])
        width = -(-int(counts.max()) // COLUMNS) * COLUMNS
        some = episodes.obs[slots[0]]  # any will do where nobody plays
        self.obs = np.broadcast_to(some, (population.size, width, *some.shape)).copy()

    def __call__(self) -> npt.NDArray[Any]:
        """For the latest observations, [K, …]."""
        self.obs[self.agents, self.columns] = self.episodes.obs[self.slots]
        actions = self.population.greedy(self.obs)
        return actions[self.agents, self.columns]


class Evaluate:
    """Lets all agents play at the end of a generation; their fitness follows in Gather."""

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
        self.count, self.seed, self.share = config.episodes, seed, share
        self.max_steps = steps_limit(config.max_steps, episodes.max_episode_steps)

    def __call__(self, context: TrainingContext) -> None:
        """The returns of this rank's agents on its share of the episodes."""
        mark_dead(self.population)
        with context.timer("evaluate"):
            seeds = integers(self.seed, "evaluation", context.generation, count=self.count)
            played = play(self.population, self.episodes, seeds[self.share], self.max_steps)
        count_failures(context, self.episodes.failures)
        context.evaluation_steps += played.steps
        tell_endless(self.population, played.returns)
        context.returns = np.where(self.population.alive[:, None], played.returns, -np.inf)


class Race(Protocol):
    """What EvaluateApart needs of Champion, whose module imports this one."""

    crowned: int | None
    returns: Floats | None

    def play_race(self, context: TrainingContext, snapshot: Snapshot | None) -> None:
        """Play the race for the champion; the first rank of the team has the snapshot."""


class EvaluateApart:
    """On evaluators, ranks that score all agents while the others train: agents play and race.

    They play with the weights with which the generation began, so that evaluation is exactly one
    generation behind, however fast or slow they are. At the generation's end what they have found
    is gathered with everything else. A checkpoint holds the weights under evaluation: a run that
    resumes from there evaluates them again.
    """

    def __init__(self, world: World, evaluate: Evaluate, champion: Race, fitness: Fitness) -> None:
        """`evaluate` lets all agents play this rank's share of the episodes."""
        self.team, self.evaluate, self.champion = world.evaluators, evaluate, champion
        self.fitness = fitness

    def __call__(self, context: TrainingContext) -> None:
        """Play this rank's share; the first evaluator gathers the returns and decides the race."""
        self.evaluate(context)
        sent = self.team.gather(to_message({}, {"returns": torch.from_numpy(context.returns)}))
        if sent is None:
            self.champion.play_race(context, None)
            return
        snapshot = context.snapshot
        snapshot.returns = interleaved([from_message(own)[1]["returns"].numpy() for own in sent])
        snapshot.fitness = self.fitness(snapshot.returns)
        self.champion.play_race(context, snapshot)
        context.scored = Scored(snapshot.returns, self.champion.crowned, self.champion.returns)


class TakeReturns:
    """Returns from the episodes of training, which cost nothing: exploration is in them."""

    def __init__(self, population: Population, returns: EpisodeReturns) -> None:
        self.population, self.training = population, returns

    def __call__(self, context: TrainingContext) -> None:
        """The returns of this rank's agents, filled up with NaN."""
        mark_dead(self.population)
        found = [np.array(own) for own in self.training.ended]
        tell_endless(self.population, found)
        for agent, own in enumerate(found):
            if not (self.population.alive[agent] and np.isfinite(own).all()):
                found[agent] = np.array([-np.inf])
        context.returns = filled_up(found)


def mark_dead(population: Population) -> None:
    """Agents that died are named once; the others carry on."""
    before = population.alive.copy()
    population.mark_dead()
    for agent in np.flatnonzero(before & ~population.alive):
        warn_dead(population.genomes[agent].id, "its weights are no longer finite")


def tell_endless(population: Population, returns: Sequence[Floats] | Floats) -> None:
    """Living agents with a return that is no finite number are named, with the return."""
    for agent, own in enumerate(returns):
        if population.alive[agent] and not (known := np.isfinite(own)).all():
            what = f"a return of its episodes is {own[~known][0]:g}; look at the rewards"
            warn_dead(population.genomes[agent].id, what)


def interleaved(parts: Sequence[Floats]) -> Floats:
    """The returns [P, E] of ranks that share episodes: rank d of D played d, d + D, …"""
    agents, episodes = len(parts[0]), sum(part.shape[1] for part in parts)
    found = np.empty((agents, episodes))
    for d, part in enumerate(parts):
        found[:, d :: len(parts)] = part
    return found


def filled_up(returns: Sequence[Floats]) -> Floats:
    """As many returns of every agent as the most that one has: [P, E], NaN where it has none."""
    own = [each[~np.isnan(each)] for each in returns]
    found = np.full((len(own), max(1, *map(len, own))), np.nan)
    for row, each in zip(found, own, strict=True):
        row[: len(each)] = each
    return found


class PlayTogether:
    """One agent's episodes, dealt out to a team of ranks: the first one asks, the others follow."""

    def __init__(
        self, team: Team, population: Population, episodes: Episodes, max_steps: int
    ) -> None:
        """Of the population it takes the networks and the algorithm only."""
        self.team, self.episodes, self.max_steps = team, episodes, max_steps
        self.networks, self.algorithm = population.networks, population.algorithm

    def __call__(
        self, progress: Progress, genome: Genome, weights: Parameters, seeds: Sequence[int]
    ) -> Floats:
        """Its returns [E] by seed, on the first rank; steps and failures of all are counted."""
        team, failures = self.team, self.episodes.failures
        if team.size > 1:
            team.broadcast(to_message({"genome": genome.to_json(), "seeds": list(seeds)}, weights))
        played = self._share(genome, weights, seeds)
        progress.evaluation_steps += played.steps
        returns = np.empty(len(seeds))
        returns[:: team.size] = played.returns[0]
        for place, sent in enumerate(team.gather(b"") or []):
            if place > 0:
                facts, tensors = from_message(sent)
                returns[place :: team.size] = tensors["returns"].numpy()
                progress.evaluation_steps += facts["steps"]
                for slot, trace in facts["failures"]:
                    failures.add(slot, [trace])
        count_failures(progress, failures)
        return returns

    def follow(self) -> None:
        """On the other ranks: play what the first one asks for, until it asks for no more."""
        while request := self.team.broadcast(None):
            facts, weights = from_message(request)
            played = self._share(Genome.from_json(facts["genome"]), weights, facts["seeds"])
            failures = [list(failure) for failure in self.episodes.failures.take()]
            told = {"steps": played.steps, "failures": failures}
            returns = torch.from_numpy(played.returns[0])
            self.team.gather(to_message(told, {"returns": returns}))

    def end(self) -> None:
        """On the first rank: the others need not follow any longer."""
        if self.team.size > 1:
            self.team.broadcast(b"")

    def _share(self, genome: Genome, weights: Parameters, seeds: Sequence[int]) -> Played:
        """What this rank plays of it."""
        alone = Population.of_one(genome, weights, self.networks, self.algorithm)
        own = seeds[self.team.place :: self.team.size]
        return play(alone, self.episodes, own, self.max_steps)
