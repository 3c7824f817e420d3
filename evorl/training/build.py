"""From a configuration to the parts and stages of a run; trainer.py has the stages in their order.

Each part can also be made by hand, without a configuration.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from evorl import pipeline
from evorl.actors import ActorShards, BusExchange, ChildProcesses, Exchange
from evorl.config import RunConfig
from evorl.distributed import World, local_ranks
from evorl.envs import (
    EnvSpec,
    Episodes,
    Failures,
    VectorEnv,
    make_episodes,
    make_vector_env,
    slots_for,
)
from evorl.errors import ConfigError
from evorl.evolution import Fitness, Halving, Mutation, Schedule, Space, make_explore
from evorl.experience import (
    Replays,
    RolloutBuffer,
    RolloutSampler,
    Sampler,
    SamplesPerInsert,
    UnrollSampler,
    UnrollStore,
)
from evorl.machine import check_fits, set_threads
from evorl.reporting import Console, Tracking
from evorl.runs import RunDirectory
from evorl.seeding import generator
from evorl.training.actor_setup import actors_of, message_steps, open_exchange
from evorl.training.agents import env_spec as env_spec, make_genomes, make_networks, make_population
from evorl.training.make_replay import make_actor_shards, make_replay


class Parts:
    """What this rank has: its agents, their environments and replay; closed by the stack.

    Evaluators have a copy of all agents, and nothing to train them with. Where actors play, there
    is an exchange with them instead of environments.
    """

    env: VectorEnv  # not set on evaluators, nor where actors play
    sampler: Sampler  # not set on evaluators
    exchange: Exchange | None = None
    shards: ActorShards | None = None  # what its actors keep
    replays: Replays | None = None

    def __init__(
        self,
        config: RunConfig,
        world: World,
        spec: EnvSpec,
        stack: ExitStack,
        schedule: Schedule | None = None,
        children: ChildProcesses | None = None,
    ) -> None:
        """Agents start as configured, or on a schedule; `children` are to be this rank's actors."""
        refuse_too_few(config, world)
        self.spec, self.own = spec, world.own_agents(config.population.size)
        self.episodes = make_episodes(spec, slots_for(spec, most_episodes(config, world)))
        stack.callback(self.episodes.close)
        networks = make_networks(config, self.episodes.observation, self.episodes.action)
        self.genomes = make_genomes(config, networks, schedule)  # of all agents
        self.population = make_population(config, world, networks, self.genomes)  # this rank's
        set_threads(self.population.widest, self.population.pixels, local_ranks())
        if world.trainers.joined:
            if config.has_actors:
                shared = (spec, self.population, children, stack)
                kinds = (self.episodes.observation, self.episodes.action)
                self.exchange = open_exchange(config, world, *shared, *kinds)
            else:
                self.env = make_vector_env(spec, len(self.own), config.env.num_envs)
                stack.callback(lambda: self.env.close())
            if self.exchange is not None and config.replay_at_actors:
                self.shards = make_actor_shards(self.exchange, stack)
            self.sampler = make_experience(config, world, self.episodes, self.shards)
            mesh = (world.population, world.data)
            self.replays = Replays(  # as files
                self.sampler.buffer, self.sampler, self.own, world.data_rank, world.rank, mesh
            )


class AbsentStage:
    """Stands for a stage that this rank does not have."""

    def __call__(self, context: pipeline.TrainingContext) -> None:
        """Nothing to do here."""


ABSENT: Any = AbsentStage()


class Stages:
    """The stages of a run, made on every rank; `make_task` in trainer.py puts them in order."""

    # on ranks that train
    anneal: pipeline.AnnealBeta = ABSENT
    collect: pipeline.Collect | pipeline.Receive = ABSENT
    learn: pipeline.Learn | pipeline.LearnRollout | pipeline.ApplyGradients = ABSENT
    inherit: pipeline.Inherit = ABSENT
    report_training: pipeline.ReportTraining = ABSENT
    # on those that evaluate: evaluators, or if there are none, all
    evaluate: pipeline.Evaluate | pipeline.TakeReturns | pipeline.EvaluateApart = ABSENT

    def __init__(
        self,
        config: RunConfig,
        world: World,
        parts: Parts,
        directory: RunDirectory,
        console: Console,
    ) -> None:
        self.parts, population = parts, parts.population
        self.pace = pace = pace_of(config, world)
        seeded = config.evaluation.source == "episodes"
        fitness = Fitness.named(config.evaluation.fitness, paired=seeded)
        if world.trainers.joined:
            # every iteration: a step of every environment, and the updates that it calls for
            given = (config.replay, config.budget, pace.steps)
            self.anneal = pipeline.AnnealBeta(parts.sampler, *given)
            self.collect, self.learn = make_learning(config, world, parts)
            self.inherit = pipeline.Inherit(world, parts.sampler, self.resize)
            self.inherit.agents = config.population.size
            self.report_training = pipeline.ReportTraining(world, self.learn)
        # at a generation's end: fitness, one snapshot of all, and back to each
        self.champion = champion = pipeline.Champion(
            world, population, parts.episodes, directory, config
        )
        if not seeded:
            self.evaluate = pipeline.TakeReturns(population, self.collect.returns)
        elif world.evaluators.joined:
            place, among = sharing(world)
            self.evaluate = evaluate = pipeline.Evaluate(
                population,
                parts.episodes,
                config.evaluation,
                config.seed,
                share=slice(place, None, among),
            )
            if world.lag:
                self.evaluate = pipeline.EvaluateApart(world, evaluate, champion, fitness)
        self.gather = pipeline.Gather(world, population, fitness)
        self.broadcast = pipeline.Broadcast(world, population)
        # on the main rank, on all agents
        self.budget = pipeline.Budget(
            config.budget,
            console,
            every=pace.iterations,
            per_iteration=pace.steps,
            halving=make_halving(config),
        )
        self.record = pipeline.Record(directory, fitness)
        self.show = pipeline.Show(console, fitness, config.mesh.actors)
        self.refuse_all_dead = pipeline.refuse_all_dead
        self.evolve = make_evolve(config, parts, champion, fitness, world.lag)
        self.tracking = Tracking(config, directory, console)

    def resize(self, own: range, agents: int) -> None:
        """On ranks that train: these are its agents from now on, of so many in all."""
        assert isinstance(self.collect, pipeline.Collect)  # where actors play, nobody goes
        parts, each = self.parts, self.collect.num_envs
        parts.env.close()
        parts.env = make_vector_env(parts.spec, len(own), each)
        self.collect.resize(parts.env, own.start)
        parts.own = own
        if parts.replays is not None:
            parts.replays.agents = own
        self.anneal.per_iteration = self.pace.steps * agents // len(parts.genomes)

    def end_episodes(self, context: pipeline.TrainingContext) -> None:
        """At a generation's end the running episodes are cut."""
        if self.collect is not ABSENT:
            self.collect.end_generation()

    def report_actors(self, context: pipeline.TrainingContext) -> None:
        """At a generation's end what there is to tell of actors goes to the main rank."""
        if isinstance(self.collect, pipeline.Receive):
            self.collect.report(context)
        if isinstance(self.learn, pipeline.LearnInBand):
            ratio = self.learn.report()  # of this rank's agents
            if context.actors is not None:
                context.actors["samples_per_insert"] = ratio

    def track(self, context: pipeline.TrainingContext) -> None:
        """W&B and TensorBoard read what was recorded."""
        self.tracking.follow()


class Pace(NamedTuple):
    """How much is done between two evaluations."""

    iterations: int  # in a generation
    steps: int  # in an iteration, of all environments together


def pace_of(config: RunConfig, world: World) -> Pace:
    """With actors, an iteration takes one message, or in lock-step one of every actor.

    A generation is what its own actors do in it; if others join it takes less time.
    """
    every, steps = config.evaluation.every, config.population.size * config.env.num_envs
    if not config.has_actors:
        return Pace(every, steps * world.data)
    actors = max(actors_of(config, world), 1)
    length = message_steps(config)
    messages, steps = -(-every // length), steps * length * world.data
    if config.actors.lockstep:
        return Pace(messages, steps * actors)
    return Pace(messages * actors, steps)


def sharing(world: World) -> tuple[int, int]:
    """This rank's place among those that share its agents' episodes, and how many these are."""
    if world.lag:
        return world.evaluators.place, world.evaluators.size
    return world.data_rank, world.data


def most_episodes(config: RunConfig, world: World) -> int:
    """The most that this rank plays at once: its agents' share, or that of half a confirmation."""
    if not world.evaluators.joined:
        return 1
    agents, (_, among) = len(world.own_agents(config.population.size)), sharing(world)
    scored = agents * -(-config.evaluation.episodes // among)
    return max(scored, -(-config.evaluation.confirm_episodes // (2 * world.evaluators.size)))


def make_halving(config: RunConfig) -> Halving | None:
    """When agents go for good; None if all places stay."""
    if not config.evolves or config.evolution.halving.survivors is None:
        return None
    return Halving.of(config.evolution.halving, config.population.size)


def refuse_too_few(config: RunConfig, world: World) -> None:
    """ConfigError if some ranks would be left without agents."""
    survivors = config.evolution.halving.survivors
    if config.evolves and survivors is not None and survivors < world.population:
        raise ConfigError(
            f"evolution.halving.survivors: every rank needs an agent to the end, got {survivors}"
            f" for {world.population} ranks; start fewer ranks, or set it to {world.population}"
        )


def make_evolve(
    config: RunConfig, parts: Parts, champion: pipeline.Champion, fitness: Fitness, lag: int
) -> pipeline.Evolve | None:
    """The stage that selects and mutates; None if the configuration wants none."""
    if config.evolution.method != "evolution":
        return None
    specs, evolution = parts.population.specs, config.evolution
    spaces = {name: Space.of(space) for name, space in config.spaces.items()}
    explore = make_explore(evolution.explore, spaces)
    mutation = Mutation(evolution.mutation, specs, explore, config.algorithm)
    return pipeline.Evolve(
        evolution.selection, mutation, champion, parts.genomes, config.seed, fitness, lag
    )


def make_experience(
    config: RunConfig, world: World, env: VectorEnv | Episodes, shards: ActorShards | None = None
) -> Sampler:
    """What this rank's agents learn from: rollouts, or a replay, perhaps in `shards` of actors."""
    agents, algorithm = world.own_agents(config.population.size), config.algorithm
    streams = [generator(config.seed, "sample", 0, agent) for agent in agents]
    if algorithm.experience == "replay":
        return make_replay(config, world, env.observation, env.action, streams, shards)
    return make_rollouts(config, world, env, streams)


def make_rollouts(
    config: RunConfig,
    world: World,
    env: VectorEnv | Episodes,
    streams: Sequence[np.random.Generator],
) -> RolloutSampler | UnrollSampler:
    """What is collected between updates; where it stays whole, the latest unrolls are kept."""
    algorithm, obs, action = config.algorithm, env.observation, env.action
    steps, agents, num_envs = algorithm.rollout_steps, len(streams), config.env.num_envs
    kinds = ((obs.shape, obs.dtype), (action.shape, action.dtype))
    rollout = RolloutBuffer(steps, agents, num_envs, *kinds, world.device)
    each = math.prod(obs.shape) * obs.dtype.itemsize  # bytes
    what = f"algorithm.rollout_steps={steps}"
    if algorithm.experience == "rollout":
        draws = most_draws(config, world, rollout.capacity)
        check_fits(draws * each, what, "use fewer, or epochs")
        return RolloutSampler(rollout, streams)
    new = num_envs * (actors_of(config, world) if config.actors.lockstep else 1)  # at once
    kept, each = max(new, algorithm.replay_unrolls), 2 * steps * each  # of an unroll
    draws = most_draws(config, world, new)
    advice = "use fewer, or a smaller updates, replay_ratio or replay_unrolls"
    check_fits((kept * agents + draws) * each, what, advice)
    store = UnrollStore(kept, agents, world.device)
    sampler = UnrollSampler(store, streams, keeps=algorithm.replay_unrolls > 0)
    sampler.rollout = rollout
    return sampler


def most_draws(config: RunConfig, world: World, items: int) -> int:
    """Of a round on rollouts of so many items, if all agents were like the one with the most."""
    agents, most = world.own_agents(config.population.size), 0
    for agent in agents:
        values = {n: np.array([v]) for n, v in config.agent_hyperparameters(agent).items()}
        updates, batch = config.algorithm.minibatches(values, items)
        most = max(most, int(updates[0] * batch[0]) * len(agents))
    return most


def make_learning(
    config: RunConfig, world: World, parts: Parts
) -> tuple[
    pipeline.Collect | pipeline.Receive,
    pipeline.Learn | pipeline.LearnRollout | pipeline.ApplyGradients,
]:
    """The stages that step every environment, and make the updates that this calls for."""
    sampler, algorithm, population = parts.sampler, config.algorithm, parts.population
    keys: dict[str, Any] = {"seed": config.seed, "first": parts.own.start}
    if parts.exchange is not None:
        failures = Failures(parts.spec)
        windows = algorithm.sends == "transitions"
        given = (world, population, parts.exchange, failures, sampler)
        receive: pipeline.Receive
        if parts.shards is not None:
            receive = pipeline.ReceiveShares(*given, shards=parts.shards, **keys)
        else:
            kind = pipeline.ReceiveWindows if windows else pipeline.Receive
            receive = kind(*given, **keys)
        if isinstance(sampler, UnrollSampler):
            return receive, pipeline.LearnReceived(world, population, sampler)
        if not windows:
            return receive, pipeline.ApplyGradients(world, population)
    if isinstance(sampler, UnrollSampler):
        unrolls = pipeline.CollectUnrolls(world, population, parts.env, sampler, **keys)
        return unrolls, pipeline.LearnUnrolls(world, population, sampler)
    if isinstance(sampler, RolloutSampler):
        collect = pipeline.CollectRollout(world, population, parts.env, sampler, **keys)
        return collect, pipeline.LearnRollout(world, population, sampler)
    learn = make_replay_learning(config, world, parts)
    if parts.exchange is not None:
        return receive, learn
    first_errors, n_step = config.first_errors, algorithm.n_step
    steps = pipeline.Collect(
        world,
        population,
        parts.env,
        sampler.buffer,
        sampler,
        n_step=n_step,
        first_errors=first_errors,
        **keys,
    )
    return steps, learn


def make_replay_learning(config: RunConfig, world: World, parts: Parts) -> pipeline.Learn:
    """Updates by own steps or by samples per insert; with actors at their own pace, in a band."""
    sampler, algorithm, ratio = parts.sampler, config.algorithm, config.replay.samples_per_insert
    given = (world, parts.population, sampler.buffer, sampler)
    options: dict[str, Any] = {
        "learning_starts": algorithm.learning_starts,
        "updates": algorithm.updates,
        "samples_per_insert": ratio,
        "counts_all": config.replay.counts == "all",
        "seed": config.seed,
    }
    if ratio is None or not isinstance(parts.exchange, BusExchange) or config.actors.lockstep:
        return pipeline.Learn(*given, **options)
    slack = config.replay.samples_per_insert_slack
    band = SamplesPerInsert(ratio, ratio * slack, algorithm.learning_starts)
    return pipeline.LearnInBand(*given, band=band, ready=parts.exchange.ready, **options)
