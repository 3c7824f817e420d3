"""How a run begins, or goes on where it was (resume.py).

In order: `as_begun` takes the choices of the run that is there, `make_run` makes its folder or
opens it, and `start_run` brings all ranks to where the run begins or was.
"""

import dataclasses
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from evorl.actors import BusExchange
from evorl.config import RunConfig, dump_config, parse_text, unused_options
from evorl.distributed import World
from evorl.envs import choose_backend, steps_limit
from evorl.evolution import Schedule, birth
from evorl.networks import fresh_parameters
from evorl.pipeline import Save, Snapshot, Storage, TrainingContext, from_message, to_message
from evorl.population import kinds_of, newborn
from evorl.reporting import Console
from evorl.runs import (
    LINEAGE,
    METRICS,
    RunDirectory,
    find_started,
    make_checkpoints,
    with_known_choices,
)
from evorl.training.actor_setup import make_children
from evorl.training.agents import env_spec
from evorl.training.build import Parts, Stages
from evorl.training.joining import open_doors
from evorl.training.resume import find_checkpoint, load_replays, restore
from evorl.training.run import Run

Resume = RunDirectory | Literal["auto"] | None


def as_begun(config: RunConfig, world: World) -> RunConfig:
    """All ranks take what `auto` stood for from the run that resumes; the main rank can see it."""
    text = world.broadcast_json(dump_config(with_known_choices(config)) if world.main else None)
    return parse_text(text, "config of the main rank")


def make_run(
    config: RunConfig,
    world: World,
    stack: ExitStack,
    console: Console | None = None,
    schedule: Schedule | None = None,
    resume: Resume = None,
) -> Run:
    """All that a run has on this rank, closed by the stack; its folder is made, or opened."""
    children = make_children(config, world, stack)  # forked: before all else
    console = console if console and world.main else Console(quiet=True)
    stack.callback(console.close)
    spec, size = env_spec(config), len(world.own_agents(config.population.size))
    # What `auto` stands for is measured on the main rank: all must take the same.
    chosen = choose_backend(spec, size, config.env.num_envs) if world.main else None
    backend, reason = world.broadcast_json(chosen)
    spec = dataclasses.replace(spec, backend=backend)
    parts = Parts(config, world, spec, stack, schedule, children)
    # From now on with what `auto` stood for, so that whoever runs it again does the same.
    env = config.env.model_copy(update={"backend": backend})
    compiled = parts.population.compiled is not None
    config = config.model_copy(update={"env": env, "compile": compiled})
    directory = None
    if world.main:
        if_exists = config.run.if_exists
        if resume == "auto":
            resume, if_exists = find_started(config), "error"  # to be found again by its name
        directory = resume or RunDirectory.create(config.run.folder, config.name, if_exists)
        stack.enter_context(directory.locked())  # before anything in it changes
        if resume is None:
            if schedule is not None:
                directory.write_schedule(schedule)
            directory.append_lineage([birth(g, i, None) for i, g in enumerate(parts.genomes)])
            directory.sync()
            directory.write_config(dump_config(config))  # last: now the run has begun
    sent = directory and [str(directory.path.absolute()), resume is not None]
    path, resumed = world.broadcast_json(sent)
    directory = directory or RunDirectory(Path(path))
    storage = Storage(directory, make_checkpoints(config, directory, schedule))
    stages = Stages(config, world, parts, directory, console)
    joining: list[str] = []
    if config.actors.listen and isinstance(parts.exchange, BusExchange):
        joining = open_doors(config, world, parts.exchange, directory, console.say)
    run = Run(config, world, console, storage, parts, stages, resumed)
    if world.main:
        stack.callback(stages.tracking.close)
        console.say(f"environments: {backend} ({reason})")
        _introduce(run, schedule)
        for line in joining:
            console.say(f"actors may join: {line}")
        console.start(config.budget.env_steps, "training", "step")
    return run


def _introduce(run: Run, schedule: Schedule | None) -> None:
    config, world, console, population = run.config, run.world, run.console, run.parts.population
    compiled, limit = population.compiled is not None, run.parts.episodes.max_episode_steps
    groups = len(set(kinds_of(population.specs, run.parts.genomes, compiled)))
    console.say(
        f"agents:       {config.population.size} in {groups} group{'s' * (groups != 1)},"
        f" {'compiled' if compiled else 'eager'} updates,"
        f" {config.env.num_envs} environments each of {config.env.id}"
    )
    if world.size > 1:
        mesh = f"population {world.population} × data {world.data}"
        if evaluators := world.mesh.evaluators:
            mesh += f", and {evaluators} evaluator{'s' * (evaluators != 1)}"
        console.say(f"ranks:        {world.size} on {world.device.type}, {mesh}")
    if actors := config.mesh.actors:
        what = "ranks" if world.mesh.actors else config.actors.place.replace("auto", "children")
        step = ", in lock-step" if config.actors.lockstep else ""
        console.say(f"actors:       {actors} ({what}{step})")
    if config.replay_at_actors:
        console.say("replay:       with the actors; checkpoints leave it out")
    console.say(f"run:          {run.storage.directory.path}")
    specs = population.specs.values()
    images, dueling = (any(getattr(s, name, None) for s in specs) for name in ("image", "dueling"))
    # what a schedule sets is nothing that the user could leave out
    fixed = tuple(f"algorithm.{name}=" for name in schedule.at(0)) if schedule else ()
    for line in unused_options(config, images, dueling, spread="log_std" in population.specs):
        if not line.startswith(fixed):
            console.warn(line)
    if config.algorithm.experience != "replay" and not config.has_actors:  # they play it all
        steps = config.algorithm.rollout_steps
        every = config.evaluation.every
        lost = every % steps
        if 0 < 2 * lost < steps:
            console.warn(
                f"the last {lost} of evaluation.every={every} steps are too few of a rollout to"
                f" learn from; make it a multiple of algorithm.rollout_steps={steps}"
            )
    evaluation = config.evaluation
    if limit is None and "auto" in (evaluation.max_steps, evaluation.final_max_steps):
        cut = steps_limit("auto", limit)
        console.say(
            f"episodes:     {config.env.id} has no limit of steps; evaluation cuts them after"
            f" {cut:,} (evaluation.max_steps, final_max_steps)"
        )
    if limit is not None and config.evaluation.every < limit:
        console.warn(
            f"evaluation.every={config.evaluation.every} is less than an episode of up to {limit}"
            f" steps, and running episodes are cut there; {2 * limit} or more is better"
        )


def start_run(run: Run, context: TrainingContext, save: Save) -> None:
    """Bring all ranks to the first generation, or to where the newest checkpoint is."""
    checkpoint = find_checkpoint(run) if run.resumed else None
    if run.world.main:
        if checkpoint is None:
            _begin(run, context)
        else:
            restore(run, context, checkpoint, save)
    if run.resumed and run.world.trainers.joined:
        run.stages.inherit.keep_first(context)
        load_replays(run, checkpoint)
    if run.world.lag:
        _brief_evaluators(run)
    if run.world.main:
        run.stages.tracking.begin()
        if run.resumed:
            run.storage.directory.write_config(dump_config(run.config))  # nothing has refused
        run.storage.directory.begin()
    run.stages.inherit(context)
    run.stages.broadcast(context)
    if run.world.trainers.joined:
        run.stages.learn.refill(context)
    context.iteration = context.begins


def _begin(run: Run, context: TrainingContext) -> None:
    """The agents of the configuration, newly born."""
    parts, seed = run.parts, run.config.seed
    if run.resumed:
        warnings.warn("there is no checkpoint yet: starting from the beginning", stacklevel=2)
        run.storage.directory.cut({METRICS: 0, LINEAGE: len(parts.genomes)})
    weights = [fresh_parameters(parts.population.specs, genome, seed) for genome in parts.genomes]
    alive = [True] * len(weights)
    context.snapshot = Snapshot(parts.genomes, [newborn(own) for own in weights], alive)
    run.stages.budget.begin(context)


def _brief_evaluators(run: Run) -> None:
    """They learn who the champion is."""
    sent = run.world.broadcast(to_message(*run.stages.champion.state()))
    if not run.world.trainers.joined:
        run.stages.champion.restore(*from_message(sent))
