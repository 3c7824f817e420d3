"""From a configuration to its agents: networks, genomes, and the population of this rank."""

import math
from collections.abc import Mapping, Sequence

from evorl.algorithms import Algorithm, Trained
from evorl.config import NetworkConfig, RunConfig, did_you_mean
from evorl.distributed import World
from evorl.envs import ActionSpec, EnvSpec, ObservationSpec
from evorl.errors import ConfigError
from evorl.evolution import Schedule, Space
from evorl.genome import Architecture, Genome
from evorl.machine import check_fits
from evorl.networks import NORMALIZER, NetworkSpec, NormalizerSpec, row_shapes
from evorl.population import Population, kinds_of, wants_compiling
from evorl.seeding import generator

# What learning asks of an algorithm, by its experience: options, hyperparameters, who has them.
NEEDED = {
    "replay": (
        ("n_step", "updates", "learning_starts"),
        ("gamma", "batch_size", "learn_step"),
        "OffPolicy",
    ),
    "rollout": (("rollout_steps",), ("gamma", "gae_lambda"), "OnPolicy"),
    "unrolls": (("rollout_steps", "replay_unrolls"), ("gamma",), "IMPALA"),
}


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
        env.timeout,
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


def checked_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm that the configuration names; ConfigError if training needs more of it."""
    algorithm: Algorithm = config.algorithm
    who = f"algorithm.name: {algorithm.name!r}"
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"{who} only declares options; make it a subclass of evorl.Algorithm")
    needed, per_agent, base = NEEDED[algorithm.experience]
    options, own = type(algorithm).model_fields, algorithm.hyperparameters
    missing = [name for name in needed if name not in options]
    missing += [name for name in per_agent if name not in own]
    if missing:
        what = f"has experience {algorithm.experience!r}, but no {', '.join(missing)}"
        hint = f"make it a subclass of evorl.{base}, too, which declares them"
        raise ConfigError(f"{who} {what}; {hint}")
    return algorithm


def make_networks(
    config: RunConfig, observation: ObservationSpec, action: ActionSpec
) -> dict[str, Trained]:
    """The networks of every agent, for this environment."""
    algorithm, normalize = checked_algorithm(config), config.env.normalize
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


def make_genomes(
    config: RunConfig, networks: Mapping[str, Trained], schedule: Schedule | None = None
) -> list[Genome]:
    """All agents that the configuration starts from, or that start on a schedule.

    ConfigError if their networks don't fit.
    """
    genomes = []
    specs = {name: own.spec for name, own in networks.items()}
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
        random = generator(config.seed, "spaces", agent)
        values |= {name: Space.of(own).sample(random) for name, own in config.drawn.items()}
        if schedule is not None:
            architectures, values = dict(schedule.architectures), schedule.at(0)
        genomes.append(Genome(agent, architectures, values))
    return genomes


def make_population(
    config: RunConfig, world: World, networks: Mapping[str, Trained], genomes: Sequence[Genome]
) -> Population:
    """Those of all agents that are this rank's."""
    own = world.own_agents(len(genomes))
    ours = slice(own.start, own.stop)
    specs = {name: own.spec for name, own in networks.items()}
    numbers = sum(
        math.prod(s) for g in genomes[ours] for s in row_shapes(specs, g.architectures).values()
    )
    compiled = compiles(config, world)
    # weights, targets, two moments, gradient and scratch, and as much again while they are packed;
    # compiled, what a round begins with, and what an update makes of it
    check_fits(
        (17 if compiled else 10) * 4 * numbers,
        f"population.size={config.population.size}",
        "use fewer agents or a smaller network.hidden",
    )
    return Population(
        genomes[ours],
        networks,
        checked_algorithm(config),
        seed=config.seed,
        compiled=compiled,
        kinds=kinds_of(specs, genomes, compiled)[ours],
        average=world.average_ if world.data > 1 else None,
        half=world.half,
        device=world.device,
    )


def compiles(config: RunConfig, world: World) -> bool:
    """Whether updates are compiled: never with gradients from elsewhere, else if it is wanted."""
    if world.data > 1:
        if config.compile is True:
            raise ConfigError(
                "compile: must be auto or false with mesh.data > 1, whose ranks meet within an"
                " update"
            )
        return False
    if config.has_actors and config.algorithm.sends == "gradients":
        return False
    return wants_compiling(config.compile, expected_updates(config), world.device.type)


def expected_updates(config: RunConfig) -> int:
    """Updates over the whole run of the busiest agent that evolution can make."""

    ratio = config.replay.samples_per_insert if config.algorithm.experience == "replay" else None

    def rate(values: Mapping[str, float]) -> float:
        if ratio is not None:
            return ratio / values["batch_size"]
        return float(config.algorithm.update_rate(values, config.env.num_envs))

    rates = []
    for agent in range(config.population.size):
        values = config.agent_hyperparameters(agent)
        for name, space in (config.drawn | config.mutated).items():
            values = max((values, *(values | {name: edge} for edge in space.bounds)), key=rate)
        rates.append(rate(values))
    fewest = 1 if config.replay.counts == "all" else config.population.size
    if config.evolves and config.evolution.halving.survivors is not None:
        fewest = min(fewest, config.evolution.halving.survivors)
    return int(config.budget.env_steps // fewest * max(rates))


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
