"""How a run begins, and how it resumes from the newest good checkpoint as if nothing had happened.

In order: `as_begun` takes the choices of the run that is there, `make_run` makes its folder or
opens it, and `start_run` brings all ranks to where the run begins or was.
"""

import dataclasses
import math
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from evorl.actors import BusExchange
from evorl.config import RunConfig, dump_config, parse_text, unused_options
from evorl.distributed import World
from evorl.envs import choose_backend
from evorl.errors import CheckpointError, ConfigError
from evorl.evolution import Schedule, birth
from evorl.networks import fresh_parameters
from evorl.pipeline import (
    STAGE_STATES,
    Save,
    Snapshot,
    Storage,
    TrainingContext,
    from_message,
    restore_states,
    to_message,
)
from evorl.population import kinds_of, newborn
from evorl.reporting import Console
from evorl.runs import (
    LINEAGE,
    METRICS,
    Checkpoint,
    RunDirectory,
    find_started,
    make_checkpoints,
    with_known_choices,
)
from evorl.training.actor_setup import make_children
from evorl.training.agents import env_spec
from evorl.training.build import Parts, Stages
from evorl.training.joining import open_doors

AGAIN = 3.0  # seconds after which a further signal counts

Resume = RunDirectory | Literal["auto"] | None


@dataclasses.dataclass(frozen=True)
class Run:
    """All of a run that this rank has."""

    config: RunConfig
    world: World
    console: Console
    storage: Storage
    parts: Parts
    stages: Stages
    resumed: bool  # its folder was there already


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
        _introduce(run)
        for line in joining:
            console.say(f"actors may join: {line}")
        console.start(config.budget.env_steps, "training", "step")
    return run


def _introduce(run: Run) -> None:
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
    for line in unused_options(config, images, dueling, spread="log_std" in population.specs):
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
    if limit is not None and config.evaluation.every < limit:
        console.warn(
            f"evaluation.every={config.evaluation.every} is less than an episode of up to {limit}"
            f" steps, and running episodes are cut there; {2 * limit} or more is better"
        )


def start_run(run: Run, context: TrainingContext, save: Save) -> None:
    """Bring all ranks to the first generation, or to where the newest checkpoint is."""
    checkpoint = _find(run) if run.resumed else None
    if run.world.main:
        if checkpoint is None:
            _begin(run, context)
        else:
            _restore(run, context, checkpoint, save)
    if run.resumed and run.world.trainers.joined:
        _load_replays(run, checkpoint)
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


def _restore(run: Run, context: TrainingContext, checkpoint: Checkpoint, save: Save) -> None:
    """The main rank becomes what it was when the checkpoint was written."""
    state, now = checkpoint.state, save.settings
    if (had := state["precision"]) != now["precision"]:
        raise ConfigError(
            f"mixed_precision: cannot change in a run that has begun ({had!r}, got"
            f" {now['precision']!r}); launch it with --mixed_precision {had}"
        )
    if state.get("lag", 0) != run.world.lag:
        _warn(f"mesh.evaluators is {run.config.mesh.evaluators} now")
    if state.get("actors", 0) != (actors := run.config.mesh.actors):
        _warn(f"mesh.actors is {actors} now")
    elif run.config.has_actors and not run.config.actors.lockstep:
        _warn("actors play at their own pace")
    if state["compiled"] != now["compiled"]:
        _warn(f"compile is {now['compiled']} now")
    context.snapshot = Snapshot.read(checkpoint)
    restore_states(save.stages, state["stages"], checkpoint.load(STAGE_STATES))
    run.storage.directory.cut(state["lines"])
    _plan(run, context, other_budget=state["budget"] != now["budget"])
    run.storage.directory.remove_summary()


def _plan(run: Run, context: TrainingContext, other_budget: bool) -> None:
    """A run that had ended continues if its budget is another now; its agents evolve first."""
    snapshot, stages = context.snapshot, run.stages
    ended = snapshot.finished
    if other_budget:
        snapshot.last, snapshot.finished = False, stages.champion.reached_stop_at
    stages.budget.begin(context)
    if ended and not snapshot.finished and not snapshot.evolved:
        stages.refuse_all_dead(context)
        if stages.evolve is not None:
            stages.evolve(context)
            stages.record.births(context)


def _find(run: Run) -> Checkpoint | None:
    """The newest good checkpoint that this rank sees; the main rank's is the one that counts."""
    checkpoints = run.storage.checkpoints
    if run.world.main:
        return checkpoints.newest()
    with warnings.catch_warnings(action="ignore"), suppress(CheckpointError):  # the main rank's say
        return checkpoints.newest()
    return None


def _load_replays(run: Run, checkpoint: Checkpoint | None) -> None:
    """Every rank its own, if all see the checkpoint; else they fill up anew."""
    world, replays = run.world.trainers, run.parts.replays
    assert replays is not None
    files = [list(file) for file in checkpoint.files.items()] if checkpoint else []
    mesh = checkpoint.state["mesh"] if checkpoint else {}
    wanted, mesh = world.broadcast_json([files, mesh])
    if not wanted:
        return
    stems = [file[0] for file in wanted if "replay" in file[0]]
    problem = None
    if run.parts.shards is not None:
        problem = "replays were with the actors and fill up first"
    elif not replays.sampler.keeps:
        return
    elif not stems:
        problem = "replays were not kept and fill up first"
    elif world.any_rank(files != wanted):
        problem = "not all ranks see the checkpoint, and replays fill up first"
    elif checkpoint is not None:
        exact = replays.load(stems, checkpoint.load, (mesh["population"], mesh["data"]))
        if world.any_rank(not exact):
            problem = "there are other ranks than before: replays are not what each had"
    if problem and world.first:
        _warn(problem)


def _brief_evaluators(run: Run) -> None:
    """They learn who the champion is."""
    sent = run.world.broadcast(to_message(*run.stages.champion.state()))
    if not run.world.trainers.joined:
        run.stages.champion.restore(*from_message(sent))


def _warn(what: str) -> None:
    warnings.warn(f"{what}; the run resumes, but will not end with the same bytes", stacklevel=3)


class Interrupted(KeyboardInterrupt):
    """The process was asked to end; `exit_code` says so to whoever started it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """While inside, SIGINT and SIGTERM raise Interrupted: the run can be resumed.

    Those that follow within seconds change nothing: a launcher sends the same to all, as does a
    terminal. Later ones raise again, as an exception in a finaliser is lost.
    """
    told = -math.inf

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if time.monotonic() - told > AGAIN:
            told = time.monotonic()
            raise Interrupted(number)

    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, end) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
