"""What one rank of a run has: its agents, their environments and replay, and the stages on them."""

from contextlib import ExitStack
from dataclasses import dataclass

from evorl.config import RunConfig
from evorl.distributed.launch import local_ranks
from evorl.distributed.replicas import Copies
from evorl.distributed.world import World
from evorl.envs import EnvSpec, Episodes, VectorEnv, make_episodes, make_vector_env, slots_for
from evorl.evolution.schedule import Schedule
from evorl.experience import PrioritisedSampler, Replays, Sampler
from evorl.machine import set_threads
from evorl.pipeline.broadcast import Inherit, Spread
from evorl.pipeline.collect import Collect
from evorl.pipeline.evaluate import Evaluate
from evorl.pipeline.everybody import Everybody
from evorl.pipeline.exchange import Exchange
from evorl.pipeline.gather import Gather
from evorl.pipeline.generation import NextGeneration
from evorl.pipeline.learn import AnnealBeta, Learn
from evorl.population.population import Population
from evorl.training.build import make_genomes, make_networks, make_population, make_replay


@dataclass(frozen=True)
class Rank:
    """The parts of this process; in a world of one, all there is."""

    env: VectorEnv
    episodes: Episodes
    population: Population  # the agents of this rank
    everybody: Everybody  # all agents of the run, on the main rank between generations
    sampler: Sampler
    replays: Replays
    anneal: AnnealBeta  # how much of the bias of prioritised replay is corrected
    collect: Collect  # one step of every environment
    learn: Learn  # the updates that new steps call for
    evaluate: Evaluate  # the generation's fitness
    gather: Gather  # all ranks tell the main rank
    turn: NextGeneration  # running episodes are cut
    inherit: Inherit  # children take over their parents' replays
    spread: Spread  # the main rank tells all


def make_rank(
    config: RunConfig,
    world: World,
    spec: EnvSpec,
    stack: ExitStack,
    schedule: Schedule | None = None,
) -> Rank:
    """The parts of this rank, closed by the stack; agents start as configured, or on a schedule."""
    own = world.places(config.population.size)
    env = make_vector_env(spec, len(own), config.env.num_envs)
    stack.callback(env.close)
    share = -(-config.evaluation.episodes // world.data)  # episodes that are this rank's to play
    episodes = make_episodes(spec, slots_for(spec, len(own), share))
    stack.callback(episodes.close)
    networks = make_networks(config, env.observation, env.action)
    genomes = make_genomes(config, networks, schedule)
    average = world.average_ if world.data > 1 else None
    population = make_population(config, networks, genomes, own, world.device, average, world.half)
    buffer, sampler = make_replay(config, env.observation, own, world.device)
    copies, algorithm = Copies(world), config.algorithm
    if isinstance(sampler, PrioritisedSampler):
        sampler.highest = copies.highest
    set_threads(population.widest, population.pixels, local_ranks())
    everybody = Everybody(genomes, networks, population.algorithm)
    collect = Collect(
        population,
        env,
        buffer,
        sampler,
        n_step=algorithm.n_step,
        seed=config.seed,
        first=own.start,
        copy=world.data_rank,
        copies=copies,
        exchange=Exchange(world) if config.replay.share == "world" else None,
    )
    return Rank(
        env,
        episodes,
        population,
        everybody,
        sampler,
        Replays(buffer, sampler, own, world.data_rank, world.rank, (world.population, world.data)),
        AnnealBeta(
            sampler,
            config.replay,
            config.budget,
            config.population.size * config.env.num_envs * world.data,
        ),
        collect,
        Learn(population, buffer, sampler, algorithm.learning_starts, algorithm.updates, copies),
        Evaluate(
            population,
            episodes,
            config.evaluation,
            config.seed,
            slice(world.data_rank, None, world.data),
        ),
        Gather(world, population, everybody),
        NextGeneration(collect),
        Inherit(world, everybody, sampler),
        Spread(world, population, everybody),
    )
