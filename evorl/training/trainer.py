"""A training run: wires the parts together, from a RunConfig to a scored run directory.

All ranks run this. What each of them has is its Rank's; what only the main one does, its Office's.
"""

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

from evorl.config import RunConfig, dump_config, unused_options
from evorl.config.reading import parse_text
from evorl.distributed.disk import is_shared
from evorl.distributed.launch import may_restart
from evorl.distributed.world import World
from evorl.envs import EnvSpec, choose_backend
from evorl.evolution.lineage import birth
from evorl.evolution.schedule import Schedule
from evorl.pipeline.context import Context
from evorl.pipeline.follow import FollowSchedule
from evorl.pipeline.generation import generation_ends
from evorl.pipeline.restore import Restore
from evorl.pipeline.save import Save
from evorl.pipeline.task import Task
from evorl.population.grouping import kinds_of
from evorl.reporting.console import Console
from evorl.reporting.tracking import refuse_missing
from evorl.runs.directory import RunDirectory
from evorl.runs.resume import find_started, make_checkpoints, with_known_choices
from evorl.training.build import env_spec
from evorl.training.office import Begin, make_office
from evorl.training.rank import Rank, make_rank
from evorl.training.score import Score, score_run

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
    context = Context(config.population.size)  # the whole run's, until it is spread
    refuse_missing(config.tracking)  # before anything is made
    with ExitStack() as stack:
        if world is None:
            world = World.start(config.population.size, **dict(config.mesh))
            stack.callback(world.close)
        if resume == "auto":
            config = _as_begun(config, world)
        console = console if console and world.main else Console(quiet=True)
        stack.callback(console.close)
        spec, reason = choose_environments(config, world)
        rank = make_rank(config, world, spec, stack, schedule)
        config = _resolved(config, rank)
        directory, resumed = _open_directory(config, rank, world, schedule, resume, stack)
        shared = is_shared(world, directory.path, config.checkpoint.shared_filesystem)
        checkpoints, office = make_checkpoints(config, directory, schedule), None
        if world.main:
            office = make_office(
                config, directory, rank.everybody, rank.episodes, console, world.data
            )
            stack.callback(office.tracking.close)
            console.say(f"environments: {spec.backend} ({reason})")
            _introduce(config, rank, world, directory, console, resume is not None)
        save = Save(
            world,
            config.checkpoint,
            checkpoints if office else None,
            rank.replays,
            office.progress if office else None,
            shared=shared,
        )

        task = Task(context)
        if schedule is not None:
            task.use(FollowSchedule(rank.population, schedule))
        task.use(rank.anneal)
        task.use(rank.collect)
        task.use(rank.learn)
        if office:
            task.use(office.budget.tick)
        task.use(rank.evaluate, every=generation_ends)
        task.use(rank.gather, every=generation_ends)
        if office:
            task.use(office.decide, every=generation_ends)
        task.use(rank.turn, every=generation_ends)
        task.use(rank.inherit, every=generation_ends)
        task.use(save, every=generation_ends)
        task.use(rank.spread, every=generation_ends)
        task.use(rank.gather.begin, every=generation_ends)

        console.start(config.budget.env_steps, "training", "step")
        begin = Begin(world, config, office, rank.everybody)
        if not resumed:
            begin.anew(context)
        else:
            begin.resumed(context, Restore(world, checkpoints, rank.replays, shared=shared))
            if office:
                directory.write_config(dump_config(config))  # nothing has refused to go on
            rank.inherit(context)
        rank.spread(context)
        if resumed:
            rank.learn.refill(context)
        context.iteration = context.begins
        rank.gather.begin(context)
        task.run()
        if office is None:
            return None
        return Result(score_run(config, office, spec, context, console), directory)


def _as_begun(config: RunConfig, world: World) -> RunConfig:
    """All ranks take what `auto` stood for from the run that goes on; the main rank can see it."""
    told = dump_config(with_known_choices(config)).encode() if world.main else None
    return parse_text(world.broadcast(told).decode(), "config of the main rank")


def choose_environments(config: RunConfig, world: World) -> tuple[EnvSpec, str]:
    """What `auto` stands for is measured on the main rank: all must take the same."""
    spec, told = env_spec(config), None
    if world.main:
        size = len(world.places(config.population.size))
        told = json.dumps(choose_backend(spec, size, config.env.num_envs)).encode()
    backend, reason = json.loads(world.broadcast(told))
    return dataclasses.replace(spec, backend=backend), reason


def _resolved(config: RunConfig, rank: Rank) -> RunConfig:
    """The configuration with what `auto` stood for, so that whoever runs it again does the same."""
    env = config.env.model_copy(update={"backend": rank.env.backend})
    compiled = rank.population.compiled is not None
    return config.model_copy(update={"env": env, "compile": compiled})


def _open_directory(
    config: RunConfig,
    rank: Rank,
    world: World,
    schedule: Schedule | None,
    resume: Resume,
    stack: ExitStack,
) -> tuple[RunDirectory, bool]:
    """The run's folder, made and locked by the main rank, and whether it was there already."""
    told = directory = None
    if world.main:
        if_exists = config.run.if_exists
        if resume == "auto":
            resume, if_exists = find_started(config), "error"  # to be found again by its name
        directory = resume or RunDirectory.create(config.run.folder, config.name, if_exists)
        stack.enter_context(directory.locked())  # before anything in it changes
        if resume is None:
            if schedule is not None:
                directory.write_schedule(schedule)
            directory.append_lineage(
                [birth(g, i, None) for i, g in enumerate(rank.everybody.genomes)]
            )
            directory.sync()
            directory.write_config(dump_config(config))  # last: now the run has begun
        told = json.dumps([str(directory.path.absolute()), resume is not None]).encode()
    path, resumed = json.loads(world.broadcast(told))
    return directory or RunDirectory(Path(path)), resumed


def _introduce(
    config: RunConfig,
    rank: Rank,
    world: World,
    directory: RunDirectory,
    console: Console,
    resumes: bool,
) -> None:
    population, limit = rank.population, rank.env.max_episode_steps
    kinds = kinds_of(population.problem, rank.everybody.genomes, population.compiled is not None)
    groups = len(set(kinds))
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
    if may_restart() and not resumes:
        console.warn(
            "--max_restarts: when a rank has died the launcher starts over instead of going on;"
            " add --resume auto"
        )
    if not config.checkpoint.replay:
        console.warn(
            "checkpoint.replay=false: a run that is stopped goes on with empty replays, fills them"
            " first, and ends with other bytes"
        )
    for line in unused_options(config, images=population.problem.image is not None):
        console.warn(line)
    if limit is not None and config.evaluation.every < 2 * limit:
        console.warn(
            f"evaluation.every={config.evaluation.every} is less than two episodes of up to {limit}"
            f" steps, and running episodes are cut there; {2 * limit} or more is better"
        )
