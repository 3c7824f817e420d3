"""From a configuration to the parts of a run; each part can also be made by hand, without one."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from evorl import pipeline
from evorl.algorithms import Algorithm, Trained
from evorl.config import NetworkConfig, RunConfig, did_you_mean
from evorl.distributed import World, local_ranks
from evorl.envs import (
    ActionSpec,
    EnvSpec,
    ObservationSpec,
    VectorEnv,
    make_episodes,
    make_vector_env,
    slots_for,
)
from evorl.errors import ConfigError
from evorl.evolution import Mutation, Schedule, Space, Spaces, make_explore
from evorl.experience import (
    PrioritisedSampler,
    ReplayBuffer,
    Replays,
    RolloutBuffer,
    RolloutSampler,
    Sampler,
    UniformSampler,
)
from evorl.genome import Architecture, Genome
from evorl.machine import check_fits, set_threads
from evorl.networks import NORMALIZER, NetworkSpec, NormalizerSpec, row_shapes
from evorl.population import Population, kinds_of, wants_compiling
from evorl.reporting import Console, Tracking
from evorl.runs import RunDirectory
from evorl.seeding import generator

# What learning from a replay asks of an algorithm: options, and hyperparameters.
OPTIONS = ("n_step", "updates", "learning_starts")
PER_AGENT = ("gamma", "batch_size", "learn_step")


class Parts:
    """What this rank has: its agents, their environments and replay; closed by the stack."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        spec: EnvSpec,
        stack: ExitStack,
        schedule: Schedule | None = None,
    ) -> None:
        """Agents start as configured, or on a schedule."""
        self.spec, self.own = spec, world.places(config.population.size)
        self.env = make_vector_env(spec, len(self.own), config.env.num_envs)
        stack.callback(self.env.close)
        share = -(-config.evaluation.episodes // world.data)  # episodes for this rank to play
        self.episodes = make_episodes(spec, slots_for(spec, len(self.own), share))
        stack.callback(self.episodes.close)
        networks = make_networks(config, self.env.observation, self.env.action)
        self.genomes = make_genomes(config, networks, schedule)  # of all agents
        self.population = make_population(config, world, networks, self.genomes)  # this rank's
        set_threads(self.population.widest, self.population.pixels, local_ranks())
        self.sampler = make_experience(config, world, self.env)
        mesh = (world.population, world.data)
        self.replays = Replays(  # as files
            self.sampler.buffer, self.sampler, self.own, world.data_rank, world.rank, mesh
        )


class Stages:
    """The stages of a run, on every rank; which of them run where, their labels say."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        parts: Parts,
        directory: RunDirectory,
        console: Console,
    ) -> None:
        population, sampler = parts.population, parts.sampler
        steps = config.population.size * config.env.num_envs * world.data  # of an iteration
        played = (parts.episodes, config.evaluation, config.seed)
        share = slice(world.data_rank, None, world.data)  # episodes that this rank plays
        # every iteration: a step of every environment, and the updates that it calls for
        self.anneal = pipeline.AnnealBeta(sampler, config.replay, config.budget, steps)
        self.collect, self.learn = make_learning(config, world, parts)
        # at a generation's end, on every rank: fitness, one snapshot of all, and back to each
        self.evaluate = pipeline.Evaluate(population, *played, share)
        self.confirm = confirm = pipeline.Confirm(population, parts.episodes, directory, config)
        self.gather = pipeline.Gather(world, population, confirm.fitness)
        self.inherit = pipeline.Inherit(world, sampler)
        self.broadcast = pipeline.Broadcast(world, population)
        # on the main rank, on all agents
        every = config.evaluation.every
        self.budget = pipeline.Budget(config.budget, console, every=every, per_iteration=steps)
        self.record = pipeline.Record(directory, confirm.fitness)
        self.show = pipeline.Show(console, confirm.fitness)
        self.refuse_all_dead = pipeline.refuse_all_dead
        self.evolve = make_evolve(config, parts, confirm)
        self.tracking = Tracking(config, directory, console)

    def end_episodes(self, context: pipeline.Context) -> None:
        """At a generation's end the running episodes are cut."""
        self.collect.end_generation()

    def track(self, context: pipeline.Context) -> None:
        """W&B and TensorBoard read what was recorded."""
        self.tracking.follow()


def env_spec(config: RunConfig) -> EnvSpec:
    """What the environment section asks for."""
    env = config.env
    return EnvSpec(
        env.id,
        env.backend,
        env.kwargs,
        env.wrappers,
        config.network.channels_last,
        env.max_failures,
    )


def observation_spec(observation: ObservationSpec, normalize: bool = False) -> NetworkSpec:
    """The inputs of networks that read such observations; outputs are the algorithm's to say."""
    if normalize and observation.kind != "vector":
        raise ConfigError(
            "env.normalize.observations: must be false, as the environment's observations are"
            f" {observation.kind}; only vectors are normalised"
        )
    if observation.kind == "image":
        channels, height, width = observation.shape
        return NetworkSpec(0, 0, image=(channels, height, width), scale=observation.scale)
    if observation.kind == "discrete":
        assert observation.n is not None
        return NetworkSpec(observation.n, 0, one_hot=True)
    inputs, scale = observation.shape[0] - observation.mask, observation.scale
    return NetworkSpec(inputs, 0, scale=scale, mask=observation.mask, normalize=normalize)


def make_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm that the configuration names; ConfigError if training needs more of it."""
    algorithm: Algorithm = config.algorithm
    who = f"algorithm.name: {algorithm.name!r}"
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"{who} only declares options; make it a subclass of evorl.Algorithm")
    if algorithm.experience == "rollout":
        return algorithm
    options, own = type(algorithm).model_fields, algorithm.hyperparameters
    missing = [name for name in OPTIONS if name not in options]
    missing += [name for name in PER_AGENT if name not in own]
    if missing:
        hint = "make it a subclass of evorl.OffPolicy, too, which declares them"
        raise ConfigError(f"{who} learns from a replay, but has no {', '.join(missing)}; {hint}")
    return algorithm


def make_networks(
    config: RunConfig, observation: ObservationSpec, action: ActionSpec
) -> dict[str, Trained]:
    """The networks of every agent, for this environment."""
    algorithm, normalize = make_algorithm(config), config.env.normalize
    reads = observation_spec(observation, normalize.observations)
    networks = algorithm.networks(reads, action)
    known = algorithm.hyperparameters
    for name, own in networks.items():
        used = [own.lr, own.max_grad_norm, own.tau, own.period, own.every]
        for unknown in (each for each in used if each is not None and each not in known):
            what = f"network {name!r} is trained by {unknown!r}, which is no hyperparameter"
            hint = did_you_mean(unknown, known)
            raise ConfigError(f"algorithm.name: {algorithm.name!r}: {what}{hint}")
    if not (normalize.observations or normalize.rewards):
        return networks
    if NORMALIZER in networks:
        what = f"network {NORMALIZER!r} has the name of env.normalize's statistics; rename it"
        raise ConfigError(f"algorithm.name: {algorithm.name!r}: {what}")
    size = reads.inputs if normalize.observations else 0
    return networks | {NORMALIZER: Trained(NormalizerSpec(size, normalize.rewards))}


def make_evolve(
    config: RunConfig, parts: Parts, confirm: pipeline.Confirm
) -> pipeline.Evolve | None:
    """The stage that selects and mutates; None if the configuration wants none."""
    if config.evolution.method != "evolution":
        return None
    specs, evolution = parts.population.specs, config.evolution
    explore = make_explore(evolution.explore, _spaces(config))
    mutation = Mutation(evolution.mutation, specs, explore, config.algorithm)
    return pipeline.Evolve(evolution.selection, mutation, confirm, parts.genomes, config.seed)


def make_genomes(
    config: RunConfig, networks: Mapping[str, Trained], schedule: Schedule | None = None
) -> list[Genome]:
    """All agents that the configuration starts from, or that start on a schedule.

    ConfigError if their networks don't fit.
    """
    genomes = []
    specs = {name: own.spec for name, own in networks.items()}
    draws = config.population.init == "sample" or config.evolution.method == "random_search"
    for agent in range(config.population.size):
        network = config.agent_network(agent)
        architectures = {
            name: _architecture(network, spec)
            for name, spec in specs.items()
            if isinstance(spec, NetworkSpec)
        }
        try:
            row_shapes(specs, architectures)
        except ValueError as error:
            raise ConfigError(f"network.kernels: {error}; use smaller kernels or strides") from None
        values = config.agent_hyperparameters(agent)
        if draws:
            random = generator(config.seed, "spaces", agent)
            values |= {name: space.sample(random) for name, space in _spaces(config).items()}
        if schedule is not None:
            architectures, values = dict(schedule.architectures), schedule.at(0)
        genomes.append(Genome(agent, architectures, values))
    return genomes


def make_population(
    config: RunConfig, world: World, networks: Mapping[str, Trained], genomes: Sequence[Genome]
) -> Population:
    """Those of all agents that are this rank's."""
    own = world.places(len(genomes))
    ours = slice(own.start, own.stop)
    specs = {name: own.spec for name, own in networks.items()}
    numbers = sum(
        math.prod(s) for g in genomes[ours] for s in row_shapes(specs, g.architectures).values()
    )
    compiled = world.data == 1 and wants_compiling(
        config.compile, expected_updates(config), world.device.type
    )
    # weights, targets, two moments, gradient and scratch, and as much again while they are packed;
    # compiled, what a round begins with, and what an update makes of it
    check_fits(
        (17 if compiled else 10) * 4 * numbers,
        f"population.size={config.population.size}",
        "use fewer agents or a smaller network.hidden",
    )
    if world.data > 1 and config.compile is True:
        raise ConfigError(
            "compile: must be auto or false with mesh.data > 1, whose ranks meet within an update"
        )
    return Population(
        genomes[ours],
        networks,
        make_algorithm(config),
        seed=config.seed,
        compiled=compiled,
        kinds=kinds_of(specs, genomes, compiled)[ours],
        average=world.average_ if world.data > 1 else None,
        half=world.half,
        device=world.device,
    )


def make_experience(config: RunConfig, world: World, env: VectorEnv) -> Sampler:
    """What this rank's agents learn from: rollouts, one replay for all, or one for each."""
    agents, algorithm = world.places(config.population.size), config.algorithm
    replay = config.replay
    streams = [generator(config.seed, "sample", 0, agent) for agent in agents]
    obs, action = env.observation, env.action
    if algorithm.experience == "rollout":
        sizes = (algorithm.rollout_steps, len(agents), config.env.num_envs)
        kinds = ((obs.shape, obs.dtype), (action.shape, action.dtype))
        rollout = RolloutBuffer(*sizes, *kinds, world.device)
        each = math.prod(obs.shape) * obs.dtype.itemsize  # bytes
        for agent in agents:  # as if all were like it
            values = {n: np.array([v]) for n, v in config.agent_hyperparameters(agent).items()}
            updates, batch = algorithm.minibatches(values, rollout.capacity)
            draws = int(updates[0] * batch[0]) * len(agents)
            check_fits(draws * each, f"algorithm.rollout_steps={sizes[0]}", "use fewer, or epochs")
        return RolloutSampler(rollout, streams)
    buffer = ReplayBuffer(
        replay.capacity,
        obs.shape,
        obs.dtype,
        algorithm.n_step,
        num_replays=len(agents) if replay.share == "agent" else 1,
        device=world.device,
        action_shape=action.shape,
        action_dtype=action.dtype,
    )
    noise = algorithm.loss_noise(action)
    if replay.kind == "uniform":
        return UniformSampler(buffer, streams, replay.share, noise)
    alpha, epsilon = replay.alpha, replay.priority_eps
    sampler = PrioritisedSampler(buffer, streams, alpha, epsilon, replay.share, noise)
    sampler.highest = world.highest
    return sampler


def make_learning(
    config: RunConfig, world: World, parts: Parts
) -> tuple[pipeline.Collect, pipeline.Learn | pipeline.LearnRollout]:
    """The stages that step every environment, and make the updates that this calls for."""
    sampler, algorithm, population = parts.sampler, config.algorithm, parts.population
    keys = {"seed": config.seed, "first": parts.own.start}
    if isinstance(sampler, RolloutSampler):
        collect = pipeline.CollectRollout(world, population, parts.env, sampler, **keys)
        return collect, pipeline.LearnRollout(world, population, sampler)
    given = (population, sampler.buffer, sampler)
    return pipeline.Collect(
        world, population, parts.env, sampler.buffer, sampler, n_step=algorithm.n_step, **keys
    ), pipeline.Learn(
        world, *given, learning_starts=algorithm.learning_starts, updates=algorithm.updates
    )


def expected_updates(config: RunConfig) -> int:
    """Updates of the busiest agent over the whole run."""
    rates = []
    spaces = config.drawn | config.mutated
    for agent in range(config.population.size):
        values = config.agent_hyperparameters(agent)
        if space := spaces.get("learn_step"):
            values["learn_step"] = min(values["learn_step"], Space.of(space).low)
        rates.append(config.algorithm.update_rate(values, config.env.num_envs))
    return int(config.budget.env_steps // config.population.size * max(rates))


def _spaces(config: RunConfig) -> Spaces:
    """The hyperparameters that evolve, and where."""
    return {name: Space.of(space) for name, space in config.spaces.items()}


def _architecture(network: NetworkConfig, spec: NetworkSpec) -> Architecture:
    image = spec.image is not None
    return Architecture(
        hidden=tuple(network.hidden),
        activation=network.activation,
        layer_norm=network.layer_norm,
        dueling=network.dueling and spec.dueling,
        channels=tuple(network.channels) if image else (),
        kernels=tuple(network.kernels) if image else (),
        strides=tuple(network.strides) if image else (),
    )
