"""A training run: wires the parts together, from a RunConfig to a scored run directory.

All ranks run this. What is split over them is made from `own`, the agents of this rank; what only
the main rank does is its office's.
"""

import dataclasses
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

from evorl.config import RunConfig, dump_config, unused_options
from evorl.console import Console
from evorl.distributed.world import World
from evorl.envs import (
    EnvSpec,
    VectorEnv,
    choose_backend,
    make_episodes,
    make_vector_env,
    slots_for,
)
from evorl.errors import RunError
from evorl.evolution.lineage import birth
from evorl.evolution.schedule import Schedule
from evorl.genome import Genome
from evorl.networks.layout import Problem
from evorl.office import Begin, Office, make_checkpoints, make_office
from evorl.parts import (
    env_spec,
    make_genome,
    make_genomes,
    make_population,
    make_problem,
    make_replay,
)
from evorl.pipeline.collect import Collect
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Evaluate
from evorl.pipeline.everybody import Everybody
from evorl.pipeline.follow import FollowSchedule
from evorl.pipeline.gather import Gather
from evorl.pipeline.generation import NextGeneration, generation_ends
from evorl.pipeline.learn import AnnealBeta, Learn
from evorl.pipeline.restore import Restore
from evorl.pipeline.save import Save
from evorl.pipeline.spread import Inherit, Spread
from evorl.pipeline.task import Task
from evorl.population import Population
from evorl.replay import Replays
from evorl.resuming import find_started
from evorl.run_directory import RunDirectory
from evorl.score import Score, held_out_score, summary
from evorl.threads import set_threads

Resume = RunDirectory | Literal["auto"] | None


class Result(NamedTuple):
    """What a run ended with; the main rank has it."""

    score: Score
    directory: RunDirectory


def train(
    config: RunConfig,
    console: Console | None = None,
    schedule: Schedule | None = None,
    world: World | None = None,
    resume: Resume = None,
) -> Result | None:
    """Train, evolve and score a population as the configuration says; None but on the main rank.

    With a schedule (and a configuration made by `along` it) the agents follow that instead. With
    `resume` a run goes on from its newest checkpoint, as if it had never been stopped; `auto` looks
    whether there is one of this name.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        if world is None:
            mesh = config.mesh
            world = World.start(config.population.size, mesh.population, mesh.data, mesh.timeout)
            stack.callback(world.close)
        console = console if console and world.main else Console(quiet=True)
        stack.callback(console.close)
        own = world.places(config.population.size)
        spec, reason = _choose_environments(config, world)
        env = make_vector_env(spec, len(own), config.env.num_envs)
        stack.callback(env.close)
        problem = make_problem(env.observation, env.num_actions)
        genomes = _scheduled(config, problem, schedule) or make_genomes(config, problem)
        population = make_population(config, problem, genomes, own, world.device)
        buffer, sampler = make_replay(config, env.observation, own, world.device)
        share = slice(world.data_rank, None, world.data)  # of the episodes of an evaluation
        episodes = make_episodes(
            spec, slots_for(spec, len(own), -(-config.evaluation.episodes // world.data))
        )
        stack.callback(episodes.close)
        set_threads(population)
        everybody = Everybody(genomes, problem, population.algorithm)
        context = Context(config.population.size)  # the whole run's, until it is spread

        directory, resumed = _open_directory(
            config, spec, population, genomes, world, schedule, resume
        )
        if world.main:
            stack.enter_context(directory.locked())
        shared = _shared_disk(config, world, directory)
        office = None
        if world.main:
            office = make_office(config, directory, everybody, episodes, console, world.data)
            console.say(f"environments: {spec.backend} ({reason})")
            _introduce(config, env, population, world, directory, console)

        collect = Collect(
            population,
            env,
            buffer,
            sampler,
            n_step=config.algorithm.n_step,
            seed=config.seed,
            first=own.start,
            copy=world.data_rank,
        )
        algorithm = config.algorithm
        learn = Learn(population, buffer, sampler, algorithm.learning_starts, algorithm.updates)
        evaluate = Evaluate(population, episodes, config.evaluation, config.seed, share)
        per_iteration = config.population.size * config.env.num_envs * world.data
        replays = Replays(buffer, sampler, own, world.data_rank, world.rank, world.size)
        checkpoints = make_checkpoints(config, directory)
        gather = Gather(world, population, everybody)
        inherit = Inherit(world, everybody, sampler)
        spread = Spread(world, population, everybody)
        save = Save(
            world,
            config.checkpoint,
            checkpoints if world.main else None,
            replays,
            office.progress if office else None,
            shared=shared,
        )

        task = Task(context)
        if schedule is not None:
            task.use(FollowSchedule(population, schedule))
        task.use(AnnealBeta(sampler, config.replay, config.budget, per_iteration))
        task.use(collect)
        task.use(learn)
        if office:
            task.use(office.budget.tick)
        task.use(evaluate, every=generation_ends)
        task.use(gather, every=generation_ends)
        if office:
            office.use(task)
        task.use(NextGeneration(collect), every=generation_ends)
        task.use(inherit, every=generation_ends)
        task.use(save, every=generation_ends)
        task.use(spread, every=generation_ends)
        task.use(gather.begin, every=generation_ends)

        console.start(config.budget.env_steps, "training", "step")
        begin = Begin(world, config, office, everybody)
        if not resumed:
            begin.anew(context)
        else:
            begin.resumed(context, Restore(world, checkpoints, replays, shared=shared))
            inherit(context)
        spread(context)
        gather.begin(context)
        task.run()
        return office and _score(config, office, spec, context, console, started)


def _score(
    config: RunConfig,
    office: Office,
    spec: EnvSpec,
    context: Context,
    console: Console,
    started: float,
) -> Result:
    """The held-out score of the best agent, written down."""
    best, directory = office.hall.best, office.directory
    if best is None:
        raise RunError(
            f"{directory.path}: no agent ever had a finite fitness;"
            " look at the rewards that the environment gives"
        )
    final = held_out_score(best, spec, config, console)
    seconds = time.perf_counter() - started
    directory.write_summary(summary(config, context, best, final, seconds))
    return Result(final, directory)


def _scheduled(
    config: RunConfig, problem: Problem, schedule: Schedule | None
) -> list[Genome] | None:
    """The agents that start on a schedule."""
    if schedule is None:
        return None
    return [
        dataclasses.replace(
            make_genome(config, problem, agent),
            architecture=schedule.architecture,
            hyperparameters=schedule.at(0),
        )
        for agent in range(config.population.size)
    ]


def _choose_environments(config: RunConfig, world: World) -> tuple[EnvSpec, str]:
    """What `auto` stands for is measured on the main rank: all must take the same."""
    spec, told = env_spec(config), None
    if world.main:
        size = len(world.places(config.population.size))
        told = json.dumps(choose_backend(spec, size, config.env.num_envs)).encode()
    backend, reason = json.loads(world.broadcast(told))
    return dataclasses.replace(spec, backend=backend), reason


def _open_directory(
    config: RunConfig,
    spec: EnvSpec,
    population: Population,
    genomes: list[Genome],
    world: World,
    schedule: Schedule | None,
    resume: Resume,
) -> tuple[RunDirectory, bool]:
    """The run's folder, made by the main rank, and whether it was there already.

    The configuration is written with what `auto` stood for, so that a rerun does the same.
    """
    told = None
    if world.main:
        env = config.env.model_copy(update={"backend": spec.backend})
        compiled = population.compiled is not None
        resolved = config.model_copy(update={"env": env, "compile": compiled})
        if resume == "auto":
            resume = find_started(resolved)
        directory = resume or RunDirectory.create(
            config.run.folder, config.name, config.run.if_exists
        )
        directory.write_config(dump_config(resolved))
        if resume is None:
            directory.append_lineage([birth(g, i, None) for i, g in enumerate(genomes)])
            if schedule is not None:
                directory.write_schedule(schedule)
        told = json.dumps([str(directory.path), resume is not None]).encode()
    path, resumed = json.loads(world.broadcast(told))
    return RunDirectory(Path(path)), resumed


def _shared_disk(config: RunConfig, world: World, directory: RunDirectory) -> bool:
    """Whether all ranks see the run's folder: the main rank leaves a file there for a moment."""
    if config.checkpoint.shared_filesystem != "auto":
        return bool(config.checkpoint.shared_filesystem)
    if world.size == 1:
        return True
    token = directory.path / ".seen-by-all-ranks"
    if world.main:
        token.touch()
    world.broadcast(b"" if world.main else None)
    blind = world.agree(not token.exists())
    if world.main:
        token.unlink()
    return not blind


def _introduce(
    config: RunConfig,
    env: VectorEnv,
    population: Population,
    world: World,
    directory: RunDirectory,
    console: Console,
) -> None:
    groups = len(population.groups)
    how = "compiled" if population.compiled else "eager"
    console.say(
        f"agents:       {config.population.size} in {groups} group{'s' * (groups != 1)},"
        f" {how} updates, {config.env.num_envs} environments each of {config.env.id}"
    )
    if world.size > 1:
        console.say(
            f"ranks:        {world.size} on {world.device.type}, population {world.population}"
            f" × data {world.data}"
        )
    console.say(f"run:          {directory.path}")
    for line in unused_options(config, images=population.problem.image is not None):
        console.warn(line)
    limit = env.max_episode_steps
    if limit is not None and config.evaluation.every < 2 * limit:
        console.warn(
            f"evaluation.every={config.evaluation.every} is less than two episodes of up to {limit}"
            f" steps, and running episodes are cut there; {2 * limit} or more is better"
        )
