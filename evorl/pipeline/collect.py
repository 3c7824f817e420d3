"""Collect: every agent acts once in each of its environments, and the replay takes it in.

Legend: P agents, N environments of an agent, M = P*N.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load

from evorl.algorithms import NoiseStreams
from evorl.distributed import ActorWorld, World
from evorl.envs import Step, VectorEnv
from evorl.experience import (
    NStep,
    ReplayBuffer,
    RolloutSampler,
    Sampler,
    Transitions,
    UnrollSampler,
)
from evorl.networks import NORMALIZER
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.training_context import TrainingContext, count_failures, warn_dead
from evorl.pipeline.training_log import TrainingLog
from evorl.population import Population, first_errors
from evorl.runs import serialise
from evorl.seeding import generator, integers

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
ENDLESS = "its actions are no longer finite"
SEEN = 64  # steps whose observations enter the statistics together


class Collect:
    """One step of all environments; after `end_generation` with fresh episodes, keyed by agent."""

    def __init__(
        self,
        world: World | ActorWorld,
        population: Population,
        env: VectorEnv,
        buffer: ReplayBuffer,
        sampler: Sampler,
        *,
        n_step: int,
        seed: int,
        first: int = 0,
        first_errors: bool = False,
    ) -> None:
        """`first` is the number of this rank's first agent.

        With `first_errors` new transitions come with the TD errors of who collected them.
        """
        self.first_errors = first_errors
        self.world, self.population, self.n_step = world, population, n_step
        self.buffer, self.sampler, self.seed = buffer, sampler, seed
        self.num_envs = env.num_envs // population.size
        self.noise = NoiseStreams(population.algorithm, self.num_envs, env.action)
        self._normalizes = NORMALIZER in population.specs
        self.returns = EpisodeReturns(population.size, self.num_envs)
        self.resize(env, first)

    def resize(self, env: VectorEnv, first: int) -> None:
        """Between two generations: others are this rank's agents now, in these environments."""
        self.env, self.first = env, first
        obs, action = env.observation, env.action
        kinds = (obs.shape, obs.dtype, action.shape, action.dtype)
        self.windows = NStep(env.num_envs, self.n_step, *kinds)
        self._agent_of = np.arange(env.num_envs) // self.num_envs
        self._seen: list[tuple[Array, Bools]] = []  # what is not in the statistics yet
        self._wait = 1  # steps until it is
        self._obs: npt.NDArray[np.generic] | None = None
        self.returns.resize(env.num_envs // self.num_envs)

    def __call__(self, context: TrainingContext) -> None:
        """Act, step, store."""
        if self._obs is None:
            self._obs = self._begin(context.generation)
        obs, shape = self._obs, (self.population.size, self.num_envs)
        with context.timer("act"):
            context.exploration = self._exploration(context)
            grid = obs.reshape(*shape, *obs.shape[1:])
            actions = self.population.act(grid, self.noise.draw(), context.exploration)
            if actions.dtype.kind == "f":
                self._refuse_endless(actions)
            actions = actions.reshape(len(obs), *actions.shape[2:])
        with context.timer("step"):
            step = self.env.step(actions)
        self._count_failures(context)
        context.env_steps += len(step.reward) if step.valid is None else int(step.valid.sum())
        step = self._of_the_living(step)
        if self._normalizes:
            valid = None if step.valid is None else step.valid.reshape(shape)
            self._observe(grid, valid, generation_ends(context))
            ended = (step.terminated | step.truncated).reshape(shape)
            self.population.observe_rewards(step.reward.reshape(shape), ended, valid)
        with context.timer("store"):
            self._keep(obs, actions, step)
        self._count(context, step)
        self._obs = step.obs

    def end_generation(self) -> None:
        """Cut the running episodes: what is pending enters the replay as truncated."""
        pending = self.windows.flush()
        living = np.flatnonzero(self.population.alive[self._agent_of[pending.env]])
        self._store(pending.take(living), cut=True)
        self._obs = None

    def _begin(self, generation: int) -> npt.NDArray[np.generic]:
        """Keyed by agent and not by rank: on which rank an agent trains changes nothing for it."""
        agents = range(self.first, self.first + self.population.size)
        keys = [(generation, agent, *self.world.replica) for agent in agents]
        self._wait = 1
        self.returns.clear()
        for purpose, part in (("explore", self.noise), ("sample", self.sampler)):
            part.reseed([generator(self.seed, purpose, *key) for key in keys])
        seeds = [integers(self.seed, "environment", *key, count=self.num_envs) for key in keys]
        return self.env.reset([seed for own in seeds for seed in own])

    def _exploration(self, context: TrainingContext) -> npt.NDArray[np.float64]:
        return self.population.exploration(context.agent_steps)

    def _of_the_living(self, step: Step) -> Step:
        """A dead agent's steps are paid for, but teach nobody and are nobody's."""
        if self.population.alive.all():
            return step
        living = self.population.alive[self._agent_of]
        return step._replace(valid=living if step.valid is None else living & step.valid)

    def _observe(self, obs: Array, valid: Bools | None, last: bool) -> None:
        """Many at once, as a few beside a million would be lost in rounding; but the first soon."""
        there = np.ones(obs.shape[:2], np.bool_) if valid is None else valid
        self._seen.append((obs.copy(), there))
        if last or len(self._seen) == self._wait:
            seen, valid = (np.concatenate(own, 1) for own in zip(*self._seen, strict=True))
            self.population.observe(seen, valid)
            self._seen.clear()
            self._wait = min(2 * self._wait, SEEN)

    def _refuse_endless(self, actions: Array) -> None:
        """An agent whose actions [P, N, A] are not finite is dead, before anybody learns by it."""
        known = np.isfinite(actions)
        if self.world.data == 1 and known.all():
            return
        endless = np.logical_not(known.all((1, 2)))
        finite = self.world.sum_over_replicas(endless.astype(np.int64)) == 0  # on any of its ranks
        for agent in np.flatnonzero(~finite & self.population.alive):
            self._warn_dead(int(agent))
        self.population.alive &= finite

    def _warn_dead(self, agent: int) -> None:
        warn_dead(self.population.genomes[agent].id, ENDLESS)

    def _count_failures(self, context: TrainingContext) -> None:
        count_failures(context, self.env.failures)

    def _keep(self, obs: Array, actions: Array, step: Step) -> None:
        if step.failed is not None:
            self.windows.forget(step.failed)
        new = (step.reward, step.next_obs, step.terminated, step.truncated, step.valid)
        self._store(self.windows.push(obs, actions, *new))

    def _store(self, transitions: Transitions, cut: bool = False) -> None:
        """Those that are cut come without errors: weights have moved on since."""
        if self.sampler.share == "world" and self.world.trainers.size > 1:
            transitions = share_transitions(self.world, transitions)
        agents = self._agent_of[transitions.env]
        errors = None if cut else self.td_errors(transitions, agents)
        self.sampler.insert(transitions, agents, errors)

    def td_errors(
        self, transitions: Transitions, agents: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32] | None:
        """What new transitions come with, [K]: the errors of who collected them, or nothing.

        Where updates are noisy, without any noise.
        """
        if not self.first_errors:
            return None
        numbers = self.population.algorithm.loss_noise(self.env.action)
        noise = np.zeros((len(agents), numbers), np.float32)
        return first_errors(self.population, transitions, agents, noise)

    def _count(self, context: TrainingContext, step: Step) -> None:
        valid = np.ones(len(step.reward), dtype=bool) if step.valid is None else step.valid
        # an agent's own steps are those on all ranks that train it
        own = valid.reshape(-1, self.num_envs).sum(1)
        context.count_steps(self.world.sum_over_replicas(own))
        context.episodes += int(((step.terminated | step.truncated) & valid).sum())
        self.returns.add(step, valid, context.log)


class EpisodeReturns:
    """The returns of this rank's training episodes that ended in the current generation."""

    def __init__(self, agents: int, num_envs: int) -> None:
        self.num_envs = num_envs
        self.resize(agents)

    def resize(self, agents: int) -> None:
        """Nothing has ended yet of so many agents."""
        self._running = np.zeros(agents * self.num_envs)
        self._lengths = np.zeros(agents * self.num_envs, np.int64)
        self.ended: list[list[float]] = [[] for _ in range(agents)]  # of each agent, in order

    def clear(self) -> None:
        """A generation begins: episodes that were running are cut, and do not count."""
        self._running[:] = self._lengths[:] = 0
        self.ended = [[] for _ in self.ended]

    def take(self) -> list[list[float]]:
        """Those that ended since the last time, of each agent; running episodes run on."""
        ended, self.ended = self.ended, [[] for _ in self.ended]
        return ended

    def add(self, step: Step, valid: Bools, log: TrainingLog) -> None:
        """Count a step of every slot, where it is one."""
        self._running += np.where(valid, step.reward, 0)
        self._lengths += 1 if step.valid is None else valid
        over = step.terminated | step.truncated
        if over.any():
            for slot in np.flatnonzero(over & valid):
                agent, total = int(slot) // self.num_envs, float(self._running[slot])
                self.ended[agent].append(total)
                log.episode(agent, total, int(self._lengths[slot]))
            self._running[over] = self._lengths[over] = 0


class CollectRollout(Collect):
    """The same for algorithms that learn from rollouts: what agents do is kept until they learn."""

    def __init__(
        self,
        world: World | ActorWorld,
        population: Population,
        env: VectorEnv,
        sampler: RolloutSampler | UnrollSampler,
        *,
        seed: int,
        first: int = 0,
    ) -> None:
        buffer: Any = sampler.rollout
        super().__init__(world, population, env, buffer, sampler, n_step=1, seed=seed, first=first)
        self.rollout = sampler.rollout

    def _observe(self, obs: Array, valid: Bools | None, last: bool) -> None:
        """When the rollout is learned from: until then all of it is seen alike."""

    def _keep(self, obs: Array, actions: Array, step: Step) -> None:
        ends = (step.next_obs, step.terminated, step.truncated)
        self.rollout.push(obs, actions, step.reward, *ends, step.valid)

    def end_generation(self) -> None:
        """Cut the running episodes; what they did is learned from already."""
        self._obs = None


class CollectUnrolls(CollectRollout):
    """The same for algorithms that learn from unrolls: a full rollout is handed over.

    With it goes how likely its actions were, by the weights that took them.
    """

    def __init__(
        self,
        world: World,
        population: Population,
        env: VectorEnv,
        sampler: UnrollSampler,
        *,
        seed: int,
        first: int = 0,
    ) -> None:
        super().__init__(world, population, env, sampler, seed=seed, first=first)
        self.store = sampler.store

    def __call__(self, context: TrainingContext) -> None:
        """Act, step, store; at a generation's end half a rollout is enough."""
        super().__call__(context)
        rollout = self.rollout
        if not rollout.full and not generation_ends(context):
            return
        if rollout.enough:
            with context.timer("store"):
                obs, action = rollout.field("obs"), rollout.field("action")
                likely = self.population.log_prob(obs.flatten(1, 2), action.flatten(1, 2))
                self.store.add(rollout.unrolls(likely.view(obs.shape[:3])))
        rollout.clear()


def of_the_living(
    windows: Transitions, errors: npt.NDArray[np.float32], alive: Bools, num_envs: int
) -> tuple[Transitions, npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """What a replay takes in of an actor's windows, of whom, and with which TD errors, if any."""
    agents = windows.env // num_envs
    living = np.flatnonzero(alive[agents])
    known = None if np.isnan(errors).all() else errors[living]
    return windows.take(living), agents[living], known


def share_transitions(world: World | ActorWorld, own: Transitions) -> Transitions:
    """What all that train have collected in this iteration, in the order of ranks."""
    fields = {
        name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in own._asdict().items()
    }
    parts = [load(payload) for payload in world.trainers.all_gather(serialise(fields))]
    joined = {name: torch.cat([part[name] for part in parts]).numpy() for name in fields}
    return Transitions(**joined)
