"""A training run: wires the parts together, from a RunConfig to a scored run directory."""

import dataclasses
import time
from contextlib import ExitStack
from typing import NamedTuple

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
from evorl.parts import env_spec, make_population, make_problem, make_replay
from evorl.pipeline.collect import Collect
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Evaluate
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


def train(config: RunConfig, console: Console | None = None) -> Result:
    """Train, evaluate and score a population as the configuration says."""
    started = time.perf_counter()
    console = console or Console(quiet=True)
    with ExitStack() as stack:
        stack.callback(console.close)
        spec, reason = _choose_environments(config)
        env = make_vector_env(spec, config.population.size, config.env.num_envs)
        stack.callback(env.close)
        population = make_population(config, make_problem(env.observation, env.num_actions))
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
        learn = Learn(population, buffer, sampler, config.algorithm.learning_starts)
        evaluate = Evaluate(population, episodes, config.evaluation, config.seed)
        track = Track(population, directory, console, config.env.id)
        ends = _GenerationEnds(config)

        task = Task(Context(population.size))
        task.use(AnnealBeta(sampler, config.replay, config.budget.env_steps))
        task.use(collect)
        task.use(learn)
        task.use(_Advance(config, console))
        task.use(evaluate, every=ends)
        task.use(track, every=ends)
        task.use(_NextGeneration(collect, population, directory), every=ends)
        console.start(config.budget.env_steps, "training", "step")
        context = task.run()

        if track.best is None:
            raise RunError(
                f"{directory.path}: no agent ever had a finite fitness;"
                " look at the rewards that the environment gives"
            )
        final = held_out_score(track.best, spec, config, console)
        seconds = time.perf_counter() - started
        directory.write_summary(summary(config, context, track.best, final, seconds))
    return Result(final, directory)


class _GenerationEnds:
    """True in the last iteration of a generation, and in the last of all."""

    def __init__(self, config: RunConfig) -> None:
        self.every = config.evaluation.every

    def __call__(self, context: Context) -> bool:
        return context.finished or (context.iteration + 1) % self.every == 0


class _Advance:
    """Moves the bar, and ends the run when its budget is spent."""

    def __init__(self, config: RunConfig, console: Console) -> None:
        self.budget, self.console = config.budget.env_steps, console

    def __call__(self, context: Context) -> None:
        self.console.advance(int(context.new_steps.sum()))
        context.finished = context.env_steps >= self.budget


class _NextGeneration:
    """Closes a generation: running episodes are cut, and new ones start with new seeds."""

    def __init__(self, collect: Collect, population: Population, directory: RunDirectory) -> None:
        self.collect, self.population, self.directory = collect, population, directory

    def __call__(self, context: Context) -> None:
        self.collect.end_generation()
        context.generation += 1
        if not self.population.alive.any() and not context.finished:
            raise RunError(
                f"{self.directory.path}: all agents are dead, their loss or weights are not finite;"
                " try a smaller algorithm.lr (best/ has the best agent there was, if any)"
            )


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
