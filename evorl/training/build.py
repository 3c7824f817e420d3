"""From a configuration to the parts of a run; each part can also be made by hand, without one."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evorl.algorithms.dqn import DQN
from evorl.config import NetworkConfig, RunConfig
from evorl.envs import EnvSpec, ObservationSpec
from evorl.errors import ConfigError
from evorl.evolution.explore import make_explore
from evorl.evolution.mutation import Mutation
from evorl.evolution.schedule import Schedule
from evorl.evolution.selection import Selection
from evorl.evolution.spaces import Space, Spaces
from evorl.experience import PrioritisedSampler, ReplayBuffer, Sampler, UniformSampler
from evorl.genome import Architecture, Genome
from evorl.machine import check_fits
from evorl.networks.layout import Problem, shapes
from evorl.pipeline.champion import HallOfFame
from evorl.pipeline.everybody import Everybody
from evorl.pipeline.evolve import Evolve
from evorl.population.compiled import wants_compiling
from evorl.population.grouping import kinds_of
from evorl.population.population import Population
from evorl.runs.directory import RunDirectory
from evorl.seeding import generator


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


def make_problem(observation: ObservationSpec, num_actions: int) -> Problem:
    """What networks for this environment must fit."""
    if observation.kind == "image":
        channels, height, width = observation.shape
        image = (channels, height, width)
        return Problem(0, num_actions, image=image, scale=observation.scale)
    if observation.kind == "discrete":
        assert observation.n is not None
        return Problem(observation.n, num_actions, one_hot=True)
    return Problem(observation.shape[0], num_actions, scale=observation.scale)


def make_spaces(config: RunConfig) -> Spaces:
    """The hyperparameters that evolve, and where."""
    unused = "tau" if config.algorithm.target_update == "periodic" else "target_period"
    given = config.evolution.spaces.evolving
    return {name: Space.of(space) for name, space in given.items() if name != unused}


def make_evolve(
    config: RunConfig, everybody: Everybody, hall: HallOfFame, directory: RunDirectory
) -> Evolve:
    """The stage that selects and mutates."""
    explore = make_explore(config.evolution.explore, make_spaces(config))
    return Evolve(
        everybody,
        hall,
        Selection(config.evolution.selection),
        Mutation(config.evolution.mutation, everybody.problem, explore),
        directory,
        seed=config.seed,
    )


def make_genome(config: RunConfig, problem: Problem, agent: int) -> Genome:
    """The agent that the configuration starts from; ConfigError if it doesn't fit its problem."""
    network = config.agent_network(agent)
    architecture = _architecture(network, problem)
    try:
        shapes(problem, architecture)
    except ValueError as error:
        raise ConfigError(f"network.kernels: {error}; use smaller kernels or strides") from None
    hyperparameters = config.agent_hyperparameters(agent).model_dump()
    if config.population.init == "sample" or config.evolution.method == "random_search":
        random = generator(config.seed, "spaces", agent)
        spaces = make_spaces(config)
        hyperparameters |= {name: space.sample(random) for name, space in spaces.items()}
    return Genome(agent, {"q": architecture}, hyperparameters)


def make_genomes(
    config: RunConfig, problem: Problem, schedule: Schedule | None = None
) -> list[Genome]:
    """All agents that the configuration starts from, or that start on a schedule."""
    genomes = [make_genome(config, problem, agent) for agent in range(config.population.size)]
    if schedule is None:
        return genomes
    architecture, values = schedule.architecture, schedule.at(0)
    return [
        dataclasses.replace(genome, architectures={"q": architecture}, hyperparameters=values)
        for genome in genomes
    ]


def make_population(
    config: RunConfig,
    problem: Problem,
    genomes: Sequence[Genome] | None = None,
    own: range | None = None,
    device: torch.device | str = "cpu",
    reduce: Callable[[Tensor], None] | None = None,
    half: torch.dtype | None = None,
) -> Population:
    """All agents as the configuration describes them, or as the genomes do; or `own` of them."""
    if genomes is None:
        genomes = make_genomes(config, problem)
    own = range(len(genomes)) if own is None else own
    ours = slice(own.start, own.stop)
    numbers = sum(
        math.prod(s) for g in genomes[ours] for s in shapes(problem, g.architecture).values()
    )
    compiled = reduce is None and wants_compiling(
        config.compile, expected_updates(config), torch.device(device).type
    )
    # weights, targets, two moments, gradient and scratch, and as much again while they are packed;
    # compiled, what a round begins with, and what an update makes of it
    check_fits(
        (17 if compiled else 10) * 4 * numbers,
        f"population.size={config.population.size}",
        "use fewer agents or a smaller network.hidden",
    )
    if reduce is not None and config.compile is True:
        raise ConfigError(
            "compile: must be auto or false with mesh.data > 1, whose ranks meet within an update"
        )
    return Population(
        genomes[ours],
        problem,
        DQN(double=config.algorithm.double, loss_kind=config.algorithm.loss),
        seed=config.seed,
        periodic_target=config.algorithm.target_update == "periodic",
        compiled=compiled,
        kinds=kinds_of(problem, genomes, compiled)[ours],
        reduce=reduce,
        half=half,
        device=device,
    )


def make_replay(
    config: RunConfig,
    observation: ObservationSpec,
    own: range | None = None,
    device: torch.device | str = "cpu",
) -> tuple[ReplayBuffer, Sampler]:
    """One replay for all agents or one each, and what draws from it."""
    agents, replay = range(config.population.size) if own is None else own, config.replay
    alone = replay.share == "agent"
    buffer = ReplayBuffer(
        replay.capacity,
        observation.shape,
        observation.dtype,
        config.algorithm.n_step,
        num_replays=len(agents) if alone else 1,
        device=device,
    )
    streams = [generator(config.seed, "sample", 0, agent) for agent in agents]
    sampler: UniformSampler = UniformSampler(buffer, streams, own=alone)
    if replay.kind == "prioritized":
        eps = replay.priority_eps
        sampler = PrioritisedSampler(buffer, streams, replay.alpha, eps, own=alone)
    sampler.common = replay.share == "world"
    return buffer, sampler


def expected_updates(config: RunConfig) -> int:
    """Updates of the busiest agent over the whole run."""
    agents = range(config.population.size)
    often = min(config.agent_hyperparameters(agent).learn_step for agent in agents)
    if space := (config.drawn | config.mutated).get("learn_step"):
        often = int(min(often, Space.of(space).low))
    steps = config.budget.env_steps // config.population.size
    return steps // often * config.algorithm.updates


def _architecture(network: NetworkConfig, problem: Problem) -> Architecture:
    image = problem.image is not None
    return Architecture(
        hidden=tuple(network.hidden),
        activation=network.activation,
        layer_norm=network.layer_norm,
        dueling=network.dueling,
        channels=tuple(network.channels) if image else (),
        kernels=tuple(network.kernels) if image else (),
        strides=tuple(network.strides) if image else (),
    )
