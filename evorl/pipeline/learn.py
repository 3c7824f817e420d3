"""Learn: every agent makes the updates that its new environment steps call for.

Legend: P agents, U updates of a round, B batch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms import advantages
from evorl.config import BudgetConfig, ReplayConfig
from evorl.distributed import ActorWorld, World
from evorl.experience import (
    ReplayBuffer,
    ReplayLoader,
    RolloutSampler,
    Sampler,
    SampleRequest,
    Samples,
    UnrollSampler,
    linear_beta,
    scaled_rewards,
)
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.training_context import TrainingContext, warn_dead
from evorl.population import Population
from evorl.seeding import generator

DIVERGED = "its loss is no longer finite"
MOST_BYTES = 256 * 2**20  # of one gather: images are gathered in several parts


class Learn:
    """A round of updates, fed by a DataLoader that Accelerate prepared."""

    def __init__(
        self,
        world: World,
        population: Population,
        buffer: ReplayBuffer,
        sampler: Sampler,
        *,
        learning_starts: int = 0,
        updates: int = 1,
        samples_per_insert: float | None = None,
        counts_all: bool = False,
        seed: int = 0,
    ) -> None:
        """With a ratio of samples to inserts updates follow from that, not from `learn_step`.

        If all steps count that enter a replay, agents learn as much from those of others.
        """
        self.seed = seed
        self._all_ready, self._least = False, 1  # items of a replay that can be learned from
        self.world, self.population = world, population
        self.buffer, self.sampler = buffer, sampler
        self.learning_starts, self.updates = learning_starts, updates
        self.samples_per_insert, self.counts_all = samples_per_insert, counts_all
        self.loader = ReplayLoader(sampler, population.device)

    def __call__(self, context: TrainingContext) -> None:
        """Sample and update until no agent owes an update."""
        self._learn(context, self.updates_owed(context))

    def _learn(self, context: TrainingContext, owed: npt.NDArray[np.int64]) -> None:
        total, loss = np.zeros_like(owed), np.zeros(len(owed))
        most = self._updates_at_once()
        while max(owed.tolist()) > 0:
            now = np.minimum(owed, most)
            loss += np.where(now > 0, now * self._round(context, now), 0)
            total += now
            owed = np.where(self.population.alive, owed - now, 0)
        if made := sum(total.tolist()):
            context.updates += made
            context.loss = np.where(total > 0, loss / np.maximum(total, 1), context.loss)
            context.log.update(total, loss)

    def measure(self, context: TrainingContext) -> None:
        """At a generation's end: what agents think of one batch each, drawn for nothing else."""
        population = self.population
        if not (self._all_ready and self.sampler.lasting):
            return
        keys = (
            (context.generation, genome.id, *self.world.replica) for genome in population.genomes
        )
        streams = [generator(self.seed, "measure", *key) for key in keys]
        requests = population.requests(np.ones(population.size, np.int64))
        with context.timer("update"):
            samples = self.sampler.peek(requests, streams)
            samples = Samples(*(own.to(population.device) for own in samples))
            context.log.measured = population.measure(samples, requests)

    def refill(self, context: TrainingContext) -> None:
        """Before a run resumes: replays that were not kept fill up first, as when it began.

        Its agents are past their start already, and would learn from the first few steps alone.
        """
        if context.agent_steps.any() and not self.buffer.sizes.any():
            self._least = self._enough()

    def updates_owed(self, context: TrainingContext) -> npt.NDArray[np.int64]:
        """So many for each `learn_step` steps after the start; fractions are carried on."""
        every: npt.NDArray[Any] = self.population.hyperparameter("learn_step").astype(np.int64)
        each = self.updates
        if self.samples_per_insert is not None:
            every, each = self._samples_of_an_update() / self.samples_per_insert, 1
        steps, new = context.agent_steps, context.new_steps
        if self.counts_all:
            writers = self._writers()
            steps, new = steps * writers, new * writers
        after = np.maximum(steps - self.learning_starts, 0)
        before = np.maximum(steps - new - self.learning_starts, 0)
        owed = each * (after // every - before // every)
        return np.where(self._ready(), owed, 0).astype(np.int64)

    def _samples_of_an_update(self) -> npt.NDArray[np.int64]:
        """[P] of all ranks that train an agent together."""
        return self.population.hyperparameter("batch_size").astype(np.int64) * self.world.data

    def _ready(self) -> npt.NDArray[np.bool_]:
        """Who has something to learn from, on every rank that trains it: all update together."""
        alive = self.population.alive
        if self._all_ready and self.sampler.lasting:  # it stays so
            return alive
        few = (self.buffer.sizes < self._least).astype(np.int64)
        lacking = self.world.sum_over_replicas(few) > 0
        if lacking.any() and self._all_ready:  # what there was has gone with its actors
            self._least = self._enough()
        self._all_ready = not lacking.any()
        return np.asarray(alive & ~lacking)

    def _enough(self) -> int:
        """Items with which a replay begins again."""
        starts = self.learning_starts * (1 if self.counts_all else self._writers())
        return max(1, min(starts, self.buffer.capacity))

    def _writers(self) -> int:
        """Agents whose steps enter a replay."""
        if self.sampler.share == "world":
            return self.population.size * self.world.trainers.size // self.world.data
        return self.population.size // self.buffer.num_replays

    def _round(
        self, context: TrainingContext, updates: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        requests = self.population.requests(updates)
        alive = self.population.alive.copy()
        with context.timer("sample"):
            samples = self.loader.draw(requests)
        with context.timer("update"):
            learned = self.population.learn(samples, requests)
        bury(self.world, self.population, alive)
        with context.timer("sample"):
            self.sampler.update_priorities(learned.priorities, self.population.alive)
        return learned.loss

    def _updates_at_once(self) -> int:
        width = int(self.population.hyperparameter("batch_size").max())
        each = self.population.size * width * self.buffer.item_bytes
        return max(1, math.floor(MOST_BYTES / each))


class LearnRollout:
    """All epochs of a rollout as one round of updates, when it is full.

    At a generation's end half a rollout is enough; less is dropped.
    """

    def __init__(
        self,
        world: World | ActorWorld,
        population: Population,
        sampler: RolloutSampler | UnrollSampler,
    ) -> None:
        self.world, self.population, self.sampler = world, population, sampler
        self.rollout = sampler.rollout
        # Accelerate's state would wait for all ranks, of which an actor is none
        self.loader = (
            None if isinstance(world, ActorWorld) else ReplayLoader(sampler, population.device)
        )

    def __call__(self, context: TrainingContext) -> None:
        """Judge what was done, and learn from it."""
        population = self.population
        drawn = self._drawn(context)
        if drawn is None:
            return
        alive = population.alive.copy()
        with context.timer("update"):
            if not context.log.measured:  # the first of a generation
                context.log.measured = population.measure(*drawn)
            learned = population.learn(*drawn)
        self._forget()
        bury(self.world, population, alive)
        context.updates += int(learned.updates.sum())
        context.loss = np.where(learned.updates > 0, learned.loss, context.loss)
        total = np.where(learned.updates > 0, learned.loss * learned.updates, 0)
        context.log.update(learned.updates, total)

    def _drawn(self, context: TrainingContext) -> tuple[Any, Sequence[SampleRequest]] | None:
        """What a rollout has to teach; None if it is not full, or not to be learned from."""
        population, items = self.population, self._items(context)
        if not items:
            return None
        if population.unobserved:  # the first rollout only shows what observations are like
            self._forget()
            return None
        values = {name: population.hyperparameter(name) for name in population.groups[0].names}
        requests = population.requests(*population.algorithm.minibatches(values, items))
        with context.timer("sample"):
            self._judge()
            draw = self.sampler.sample if self.loader is None else self.loader.draw
            return draw(requests), requests

    def _items(self, context: TrainingContext) -> int:
        """How many of each agent are to be learned from now."""
        rollout = self.rollout
        if not rollout.full and not generation_ends(context):
            return 0
        if not rollout.enough:  # for epochs of their own
            rollout.clear()
            return 0
        return int(rollout.sizes[0])

    def _forget(self) -> None:
        """Only now do its observations change what agents see."""
        self._observe(self.rollout.field("obs"), self.rollout.field("valid"))
        self.rollout.clear()

    def _observe(self, obs: Tensor, valid: Tensor) -> None:
        """Observations [P, T, N, ...], or [P, N, T, ...], enter the agents' statistics."""
        seen, there = (own.flatten(1, 2).cpu().numpy() for own in (obs, valid))
        self.population.observe(seen, there)

    def refill(self, context: TrainingContext) -> None:
        """A rollout begins with every generation: there is nothing to fill first."""

    def _judge(self) -> None:
        """Values and advantages by the agents as they acted."""
        rollout, population = self.rollout, self.population
        obs, action, next_obs = map(rollout.field, ("obs", "action", "next_obs"))
        shape = obs.shape[:3]  # [P, T, N]
        log_prob = population.log_prob(obs.flatten(1, 2), action.flatten(1, 2))
        value, next_value = (population.value(own.flatten(1, 2)) for own in (obs, next_obs))
        gamma, lam = (
            torch.from_numpy(population.hyperparameter(name)[:, None].astype(np.float32)).to(value)
            for name in ("gamma", "gae_lambda")
        )

        def by_time(own: Tensor) -> Tensor:
            return own.reshape(shape).transpose(0, 1)  # [T, P, N]

        advantage = advantages(
            scaled_rewards(by_time(rollout.field("reward")), population.reward_scale()),
            by_time(value),
            by_time(next_value),
            by_time(rollout.field("terminated")),
            by_time(rollout.field("ended")),
            gamma,
            lam,
        )
        advantage = advantage.transpose(0, 1).reshape(value.shape)
        rollout.attach(log_prob=log_prob, advantage=advantage, returns=advantage + value)


class LearnUnrolls(LearnRollout):
    """The updates that new unrolls call for, whoever has collected them.

    The loss judges them by itself, at every update by the agents of then.
    """

    def __init__(self, world: World, population: Population, sampler: UnrollSampler) -> None:
        super().__init__(world, population, sampler)
        self.store = sampler.store

    def _items(self, context: TrainingContext) -> int:
        return self.store.new

    def _judge(self) -> None:
        """Nothing is known before the update."""

    def _forget(self) -> None:
        """They are not new any more."""
        self._observe(self.store.field("obs"), self.store.field("valid"))
        self.store.new = 0


def bury(world: World | ActorWorld, population: Population, alive: npt.NDArray[np.bool_]) -> None:
    """Agents dead since `alive` are dead on all ranks that train them, and a warning says so."""
    if world.data == 1 and population.alive.tobytes() == alive.tobytes():  # nobody, as mostly
        return
    dead = world.sum_over_replicas((~population.alive).astype(np.int64))
    population.alive &= dead == 0
    for agent in np.flatnonzero(alive & ~population.alive):
        warn_dead(population.genomes[agent].id, DIVERGED)


class AnnealBeta:
    """Importance weights correct more and more of the bias as training proceeds."""

    def __init__(
        self, sampler: Sampler, config: ReplayConfig, budget: BudgetConfig, per_iteration: int
    ) -> None:
        """`per_iteration` are the environment steps of all ranks: they all anneal alike."""
        self.sampler, self.budget, self.per_iteration = sampler, budget, per_iteration
        self.start, self.end = config.beta_start, config.beta_end

    def __call__(self, context: TrainingContext) -> None:
        """Set the exponent for this iteration's batches."""
        before = context.before  # counts of all ranks when the generation began
        spent = self.budget.spent(before["env_steps"], before["evaluation_steps"])
        spent += self.per_iteration * (context.iteration - context.begins)
        self.sampler.beta = linear_beta(self.start, self.end, spent / self.budget.env_steps)
