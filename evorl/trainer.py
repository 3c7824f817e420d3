"""A training run: wires the parts together, from a RunConfig to a scored run directory."""

import dataclasses
import time
from collections.abc import Generator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from evorl.config import RunConfig, dump_config, unused_options
from evorl.console import Console
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
from evorl.parts import (
    env_spec,
    make_evolve,
    make_genome,
    make_population,
    make_problem,
    make_replay,
)
from evorl.pipeline.budget import Budget
from evorl.pipeline.collect import Collect
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Evaluate
from evorl.pipeline.follow import FollowSchedule
from evorl.pipeline.hall_of_fame import HallOfFame
from evorl.pipeline.learn import AnnealBeta, Learn
from evorl.pipeline.task import Task
from evorl.pipeline.track import Track
from evorl.population import Population
from evorl.run_directory import RunDirectory
from evorl.score import Score, held_out_score, summary
from evorl.threads import set_threads


class Result(NamedTuple):
    """What a run ended with."""

    score: Score
    directory: RunDirectory


def train(
    config: RunConfig, console: Console | None = None, schedule: Schedule | None = None
) -> Result:
    """Train, evolve and score a population as the configuration says.

    With a schedule (and a configuration made by `along` it) the agents follow that instead.
    """
    started = time.perf_counter()
    console = console or Console(quiet=True)
    with ExitStack() as stack:
        stack.callback(console.close)
        spec, reason = _choose_environments(config)
        env = make_vector_env(spec, config.population.size, config.env.num_envs)
        stack.callback(env.close)
        problem = make_problem(env.observation, env.num_actions)
        population = make_population(config, problem, _scheduled(config, problem, schedule))
        buffer, sampler = make_replay(config, env.observation)
        slots = slots_for(spec, population.size, config.evaluation.episodes)
        episodes = make_episodes(spec, slots)
        stack.callback(episodes.close)
        set_threads(population)
        directory = _open_directory(config, spec, population)
        console.say(f"environments: {spec.backend} ({reason})")
        _introduce(config, env, population, directory, console)

        collect = Collect(
            population, env, buffer, sampler, n_step=config.algorithm.n_step, seed=config.seed
        )
        algorithm = config.algorithm
        learn = Learn(population, buffer, sampler, algorithm.learning_starts, algorithm.updates)
        evaluate = Evaluate(population, episodes, config.evaluation, config.seed)
        hall = HallOfFame(
            population,
            episodes,
            directory,
            config.evaluation,
            env_id=config.env.id,
            seed=config.seed,
            stop_at=config.budget.stop_at,
        )
        budget, ends = Budget(config.budget, console), _GenerationEnds(config)

        task = Task(Context(population.size))
        if schedule is not None:
            task.use(FollowSchedule(population, schedule))
        task.use(AnnealBeta(sampler, config.replay, config.budget))
        task.use(collect)
        task.use(learn)
        task.use(budget)
        task.use(evaluate, every=ends)
        task.use(hall, every=ends)
        task.use(budget, every=ends)
        task.use(Track(population, hall, directory, console), every=ends)
        task.use(_RefuseAllDead(population, directory), every=ends)
        task.use(_Generation(collect), every=ends)
        if config.evolution.method == "evolution":
            task.use(make_evolve(config, population, sampler, hall, directory), every=ends)
        console.start(config.budget.env_steps, "training", "step")
        context = task.run()

        if hall.best is None:
            raise RunError(
                f"{directory.path}: no agent ever had a finite fitness;"
                " look at the rewards that the environment gives"
            )
        final = held_out_score(hall.best, spec, config, console)
        seconds = time.perf_counter() - started
        directory.write_summary(summary(config, context, hall.best, final, seconds))
    return Result(final, directory)


class _GenerationEnds:
    """True in the last iteration of a generation, and in the last of all."""

    def __init__(self, config: RunConfig) -> None:
        self.every = config.evaluation.every

    def __call__(self, context: Context) -> bool:
        return context.finished or (context.iteration + 1) % self.every == 0


class _RefuseAllDead:
    """Ends a run that nobody survives."""

    def __init__(self, population: Population, directory: RunDirectory) -> None:
        self.population, self.directory = population, directory

    def __call__(self, context: Context) -> None:
        if not np.isfinite(context.fitness).any() and not context.finished:
            best = self.directory.path / "best"
            left = f"{best} has the best agent there was" if best.exists() else "none was kept"
            raise RunError(
                f"{self.directory.path}: all agents are dead in generation {context.generation},"
                " their loss, weights or returns are not finite; try a smaller algorithm.lr"
                f" ({left})"
            )


class _Generation:
    """Cuts the running episodes; at the iteration's end the next generation begins."""

    def __init__(self, collect: Collect) -> None:
        self.collect = collect

    def __call__(self, context: Context) -> Generator[None, None, None]:
        self.collect.end_generation()
        yield
        context.generation += 1


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


def _choose_environments(config: RunConfig) -> tuple[EnvSpec, str]:
    spec = env_spec(config)
    backend, reason = choose_backend(spec, config.population.size, config.env.num_envs)
    return dataclasses.replace(spec, backend=backend), reason


def _open_directory(config: RunConfig, spec: EnvSpec, population: Population) -> RunDirectory:
    """The configuration is written with what `auto` stood for, so that a rerun does the same."""
    env = config.env.model_copy(update={"backend": spec.backend})
    compiled = population.compiled is not None
    resolved = config.model_copy(update={"env": env, "compile": compiled})
    directory = RunDirectory.create(config.run.folder, config.name, config.run.if_exists)
    directory.write_config(dump_config(resolved))
    directory.append_lineage([birth(g, i, None) for i, g in enumerate(population.genomes)])
    return directory


def _introduce(
    config: RunConfig,
    env: VectorEnv,
    population: Population,
    directory: RunDirectory,
    console: Console,
) -> None:
    groups = len(population.groups)
    how = "compiled" if population.compiled else "eager"
    console.say(
        f"agents:       {population.size} in {groups} group{'s' * (groups != 1)}, {how} updates,"
        f" {config.env.num_envs} environments each of {config.env.id}"
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
