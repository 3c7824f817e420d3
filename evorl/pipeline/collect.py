"""Collect: every agent acts once in each of its environments, and the replay takes it in.

Legend: P agents, N environments of an agent, M = P*N.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load

from evorl.algorithms import NoiseStreams
from evorl.distributed import World
from evorl.envs import Step, VectorEnv
from evorl.experience import NStep, ReplayBuffer, RolloutSampler, Sampler, Transitions
from evorl.networks import NORMALIZER
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.context import Context, count_failures
from evorl.population import Population
from evorl.runs import serialise
from evorl.seeding import generator, integers

Array = npt.NDArray[Any]
SEEN = 64  # steps whose observations enter the statistics together


class Collect:
    """One step of all environments; after `end_generation` with fresh episodes, keyed by agent."""

    def __init__(
        self,
        world: World,
        population: Population,
        env: VectorEnv,
        buffer: ReplayBuffer,
        sampler: Sampler,
        *,
        n_step: int,
        seed: int,
        first: int = 0,
    ) -> None:
        """`first` is the number of this rank's first agent."""
        self.world, self.population, self.env = world, population, env
        self.buffer, self.sampler, self.seed, self.first = buffer, sampler, seed, first
        self.num_envs = env.num_envs // population.size
        self.noise = NoiseStreams(population.algorithm, self.num_envs, env.action)
        spec = env.observation
        action = env.action
        self.windows = NStep(
            env.num_envs, n_step, spec.shape, spec.dtype, action.shape, action.dtype
        )
        self._agent_of = np.arange(env.num_envs) // self.num_envs
        self._seen: list[Array] = []  # observations that are not in the statistics yet
        self._normalizes = NORMALIZER in population.specs
        self._obs: npt.NDArray[np.generic] | None = None

    def __call__(self, context: Context) -> None:
        """Act, step, store."""
        if self._obs is None:
            self._obs = self._begin(context.generation)
        obs, shape = self._obs, (self.population.size, self.num_envs)
        with context.timer("act"):
            context.exploration = self.population.exploration(context.agent_steps)
            grid = obs.reshape(*shape, *obs.shape[1:])
            if self._normalizes:
                self._observe(grid, generation_ends(context))
            actions = self.population.act(grid, self.noise.draw(), context.exploration)
            actions = actions.reshape(len(obs), *actions.shape[2:])
        with context.timer("step"):
            step = self.env.step(actions)
        count_failures(context, self.env.failures)
        context.env_steps += len(step.reward) if step.valid is None else int(step.valid.sum())
        step = self._of_the_living(step)
        if self._normalizes:
            valid = None if step.valid is None else step.valid.reshape(shape)
            ended = (step.terminated | step.truncated).reshape(shape)
            self.population.observe_rewards(step.reward.reshape(shape), ended, valid)
        with context.timer("store"):
            self._keep(obs, actions, step)
        self._count(context, step)
        self._obs = step.obs

    def end_generation(self) -> None:
        """Cut the running episodes: what is pending enters the replay as truncated."""
        pending = self.windows.flush()
        living = np.flatnonzero(self.population.alive[self._agent_of[pending.slot]])
        self._store(pending.take(living))
        self._obs = None

    def _begin(self, generation: int) -> npt.NDArray[np.generic]:
        """Keyed by agent and not by rank: on which rank an agent trains changes nothing for it."""
        keys = [
            (generation, agent, *([self.world.data_rank] if self.world.data_rank else []))
            for agent in range(self.first, self.first + self.population.size)
        ]
        for purpose, part in (("explore", self.noise), ("sample", self.sampler)):
            part.reseed([generator(self.seed, purpose, *key) for key in keys])
        seeds = [integers(self.seed, "environment", *key, count=self.num_envs) for key in keys]
        return self.env.reset([seed for own in seeds for seed in own])

    def _of_the_living(self, step: Step) -> Step:
        """A dead agent's steps are paid for, but teach nobody and are nobody's."""
        if self.population.alive.all():
            return step
        living = self.population.alive[self._agent_of]
        return step._replace(valid=living if step.valid is None else living & step.valid)

    def _observe(self, obs: Array, last: bool) -> None:
        """Many at once: a few beside a million would be lost in rounding."""
        self._seen.append(obs.copy())
        if last or len(self._seen) == SEEN:
            self.population.observe(np.concatenate(self._seen, 1))
            self._seen.clear()

    def _keep(self, obs: Array, actions: Array, step: Step) -> None:
        if step.failed is not None:
            self.windows.forget(step.failed)
        new = (step.reward, step.next_obs, step.terminated, step.truncated, step.valid)
        self._store(self.windows.push(obs, actions, *new))

    def _store(self, transitions: Transitions) -> None:
        if self.sampler.share == "world" and self.world.size > 1:
            transitions = share_transitions(self.world, transitions)
        replay = self._agent_of[transitions.slot] if self.buffer.num_replays > 1 else None
        self.sampler.inserted(self.buffer.add(transitions, replay))

    def _count(self, context: Context, step: Step) -> None:
        valid = np.ones(len(step.reward), dtype=bool) if step.valid is None else step.valid
        # an agent's own steps are those on all ranks that train it
        context.new_steps = self.world.total(valid.reshape(-1, self.num_envs).sum(1))
        context.agent_steps = context.agent_steps + context.new_steps
        context.episodes += int(((step.terminated | step.truncated) & valid).sum())


class CollectRollout(Collect):
    """The same for algorithms that learn from rollouts: what agents do is kept until they learn."""

    def __init__(
        self,
        world: World,
        population: Population,
        env: VectorEnv,
        sampler: RolloutSampler,
        *,
        seed: int,
        first: int = 0,
    ) -> None:
        buffer: Any = sampler.rollout
        super().__init__(world, population, env, buffer, sampler, n_step=1, seed=seed, first=first)
        self.rollout = sampler.rollout

    def _observe(self, obs: Array, last: bool) -> None:
        """When the rollout is learned from: until then all of it is seen alike."""

    def _keep(self, obs: Array, actions: Array, step: Step) -> None:
        ends = (step.next_obs, step.terminated, step.truncated)
        self.rollout.push(obs, actions, step.reward, *ends, step.valid)

    def end_generation(self) -> None:
        """Cut the running episodes; what they did is learned from already."""
        self._obs = None


def share_transitions(world: World, own: Transitions) -> Transitions:
    """What all ranks have collected in this round, in the order of ranks."""
    fields = {
        name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in own._asdict().items()
    }
    parts = [load(payload) for payload in world.share(serialise(fields))]
    joined = {name: torch.cat([part[name] for part in parts]).numpy() for name in fields}
    return Transitions(**joined)
