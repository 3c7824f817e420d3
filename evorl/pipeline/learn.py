"""Learn: every agent makes the updates that its new environment steps call for.

Legend: P agents, U updates of a round, B batch.
"""

import math
import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms import advantages
from evorl.config import BudgetConfig, ReplayConfig
from evorl.distributed import World
from evorl.experience import (
    ReplayBuffer,
    ReplayLoader,
    RolloutSampler,
    Sampler,
    linear_beta,
    scaled_rewards,
)
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.context import Context
from evorl.population import Population

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
    ) -> None:
        self._all_ready, self._least = False, 1  # items of a replay that can be learned from
        self.world, self.population = world, population
        self.buffer, self.sampler = buffer, sampler
        self.learning_starts, self.updates = learning_starts, updates
        self.loader = ReplayLoader(sampler, population.device)

    def __call__(self, context: Context) -> None:
        """Sample and update until no agent owes an update."""
        owed = self.updates_owed(context)
        total, loss = np.zeros_like(owed), np.zeros(len(owed))
        most = self._updates_at_once()
        while owed.any():
            now = np.minimum(owed, most)
            loss += np.where(now > 0, now * self._round(context, now), 0)
            total += now
            owed = np.where(self.population.alive, owed - now, 0)
        context.agent_updates = context.agent_updates + total
        context.updates += int(total.sum())
        context.loss = np.where(total > 0, loss / np.maximum(total, 1), context.loss)

    def refill(self, context: Context) -> None:
        """Before a run resumes: replays that were not kept fill up first, as when it began.

        Its agents are past their start already, and would learn from the first few steps alone.
        """
        if context.agent_steps.any() and not self.buffer.sizes.any():
            writers = self.population.size // self.buffer.num_replays
            self._least = max(1, min(self.learning_starts * writers, self.buffer.capacity))

    def updates_owed(self, context: Context) -> npt.NDArray[np.int64]:
        """So many for each `learn_step` own steps after the start; fractions are carried on."""
        every = self.population.hyperparameter("learn_step").astype(np.int64)
        after = np.maximum(context.agent_steps - self.learning_starts, 0)
        before = np.maximum(context.agent_steps - context.new_steps - self.learning_starts, 0)
        owed: npt.NDArray[np.int64] = self.updates * (after // every - before // every)
        return np.where(self.population.alive & self._ready(), owed, 0)

    def _ready(self) -> npt.NDArray[np.bool_]:
        """Who has something to learn from, on every rank that trains it: all update together."""
        if not self._all_ready:
            lacking = self.world.total((self.buffer.sizes < self._least).astype(np.int64)) > 0
            self._all_ready = not lacking.any()  # and stays so: replays never shrink
            return np.asarray(~lacking)
        return np.ones(self.population.size, dtype=bool)

    def _round(self, context: Context, updates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
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

    def __init__(self, world: World, population: Population, sampler: RolloutSampler) -> None:
        self.world, self.population, self.sampler = world, population, sampler
        self.rollout = sampler.rollout
        self.loader = ReplayLoader(sampler, population.device)

    def __call__(self, context: Context) -> None:
        """Judge what was done, and learn from it."""
        population, rollout = self.population, self.rollout
        if not rollout.full and not generation_ends(context):
            return
        if 2 * rollout.length < rollout.steps:  # too few for epochs of their own
            rollout.clear()
            return
        if population.unobserved:  # the first rollout only shows what observations are like
            self._forget()
            return
        values = {name: population.hyperparameter(name) for name in population.groups[0].names}
        items = int(rollout.sizes[0])
        requests = population.requests(*population.algorithm.minibatches(values, items))
        alive = population.alive.copy()
        with context.timer("sample"):
            self._judge()
            samples = self.loader.draw(requests)
        with context.timer("update"):
            learned = population.learn(samples, requests)
        self._forget()
        bury(self.world, population, alive)
        context.agent_updates = context.agent_updates + learned.updates
        context.updates += int(learned.updates.sum())
        context.loss = np.where(learned.updates > 0, learned.loss, context.loss)

    def _forget(self) -> None:
        """Only now do its observations change what agents see."""
        self.population.observe(self.rollout.field("obs").flatten(1, 2).cpu().numpy())
        self.rollout.clear()

    def refill(self, context: Context) -> None:
        """A rollout begins with every generation: there is nothing to fill first."""

    def _judge(self) -> None:
        """Values and advantages by the agents as they acted."""
        rollout, population = self.rollout, self.population
        obs, action, next_obs = map(rollout.field, ("obs", "action", "next_obs"))
        shape = obs.shape[:3]  # [P, T, N]
        log_prob, value = population.judge(obs.flatten(1, 2), action.flatten(1, 2))
        _, next_value = population.judge(next_obs.flatten(1, 2), action.flatten(1, 2))
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
        rollout.judge(log_prob=log_prob, advantage=advantage, returns=advantage + value)


def bury(world: World, population: Population, alive: npt.NDArray[np.bool_]) -> None:
    """Agents that have died since `alive` are dead on all ranks that train them; it is said."""
    dead = world.total((~population.alive).astype(np.int64))
    population.alive &= dead == 0
    for agent in np.flatnonzero(alive & ~population.alive):
        warn_dead(population.genomes[agent].id, "its loss is no longer finite")


class AnnealBeta:
    """Importance weights correct more and more of the bias as training proceeds."""

    def __init__(
        self, sampler: Sampler, config: ReplayConfig, budget: BudgetConfig, per_iteration: int
    ) -> None:
        """`per_iteration` are the environment steps of all ranks: they all anneal alike."""
        self.sampler, self.budget, self.per_iteration = sampler, budget, per_iteration
        self.start, self.end = config.beta_start, config.beta_end

    def __call__(self, context: Context) -> None:
        """Set the exponent for this iteration's batches."""
        before = context.before  # counts of all ranks when the generation began
        spent = self.budget.spent(before["env_steps"], before["evaluation_steps"])
        spent += self.per_iteration * (context.iteration - context.begins)
        self.sampler.beta = linear_beta(self.start, self.end, spent / self.budget.env_steps)


def warn_dead(agent: int, reason: str) -> None:
    """Say once that an agent is out; the others carry on."""
    warnings.warn(f"agent {agent} is dead: {reason}; its fitness is -inf", stacklevel=2)
