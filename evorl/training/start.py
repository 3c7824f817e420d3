"""How a run begins, and how it resumes from the newest good checkpoint as if nothing had happened.

In order: `as_begun` takes the choices of the run that is there, `open_directory` makes its folder
or opens it, and `start` brings all ranks to where the run begins or was. The main rank knows it;
Broadcast then tells the others.
"""

import json
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from safetensors.torch import load
from torch import Tensor

from evorl.config import RunConfig, dump_config, parse_text
from evorl.distributed import World
from evorl.errors import CheckpointError, ConfigError
from evorl.evolution import Schedule
from evorl.networks import fresh_parameters
from evorl.pipeline import STAGES, Context, Record, Save, Snapshot, restore_states
from evorl.population import newborn
from evorl.runs import LINEAGE, METRICS, Checkpoint, RunDirectory, find_started, with_known_choices
from evorl.training.build import Parts, Run

NOTHING = -1  # there is no checkpoint yet

Resume = RunDirectory | Literal["auto"] | None


def as_begun(config: RunConfig, world: World) -> RunConfig:
    """All ranks take what `auto` stood for from the run that resumes; the main rank can see it."""
    sent = dump_config(with_known_choices(config)).encode() if world.main else None
    return parse_text(world.broadcast(sent).decode(), "config of the main rank")


def open_directory(
    config: RunConfig,
    parts: Parts,
    world: World,
    schedule: Schedule | None,
    resume: Resume,
    stack: ExitStack,
) -> tuple[RunDirectory, bool]:
    """The run's folder, made and locked by the main rank, and whether it was there already."""
    sent = directory = None
    if world.main:
        if_exists = config.run.if_exists
        if resume == "auto":
            resume, if_exists = find_started(config), "error"  # to be found again by its name
        directory = resume or RunDirectory.create(config.run.folder, config.name, if_exists)
        stack.enter_context(directory.locked())  # before anything in it changes
        if resume is None:
            if schedule is not None:
                directory.write_schedule(schedule)
            Record(directory).first(parts.genomes)
            directory.sync()
            directory.write_config(dump_config(config))  # last: now the run has begun
        sent = json.dumps([str(directory.path.absolute()), resume is not None]).encode()
    path, resumed = json.loads(world.broadcast(sent))
    return directory or RunDirectory(Path(path)), resumed


def start_run(run: Run, context: Context, save: Save) -> None:
    """Bring all ranks to the first generation, or to the one that the newest checkpoint is before.

    What is restored and what is checked against it belongs to `save`: what is in a checkpoint.
    """
    checkpoint = _find(run) if run.resumed else None
    if run.world.agree(checkpoint is not None):
        if run.world.main and checkpoint is not None:
            _restore(run, context, checkpoint, save)
        _load_replays(run, checkpoint)
    elif run.world.main:
        _begin(run, context)
    if run.world.main:
        run.stages.tracking.begin()
    if run.world.main and run.resumed:
        run.storage.directory.write_config(dump_config(run.config))  # nothing has refused
    run.stages.inherit(context)
    run.stages.broadcast(context)
    run.stages.learn.refill(context)
    context.iteration = context.begins


def _begin(run: Run, context: Context) -> None:
    """The agents of the configuration, newly born."""
    parts, seed = run.parts, run.config.seed
    if run.resumed:
        warnings.warn("there is no checkpoint yet: starting from the beginning", stacklevel=2)
        run.storage.directory.cut({METRICS: 0, LINEAGE: len(parts.genomes)})
    weights = [fresh_parameters(parts.population.specs, genome, seed) for genome in parts.genomes]
    alive = [True] * len(weights)
    context.snapshot = Snapshot(parts.genomes, [newborn(own) for own in weights], alive)
    run.stages.begin(context)


def _restore(run: Run, context: Context, checkpoint: Checkpoint, save: Save) -> None:
    """The main rank becomes what it was when the checkpoint was written."""
    state, now = checkpoint.state, save.settings
    if (had := state["precision"]) != now["precision"]:
        raise ConfigError(
            f"mixed_precision: cannot change in a run that has begun ({had!r}, got"
            f" {now['precision']!r}); launch it with --mixed_precision {had}"
        )
    if state["compiled"] != now["compiled"]:
        _warn(f"compile is {now['compiled']} now")
    context.snapshot = Snapshot.read(checkpoint)
    restore_states(save.stages, state["stages"], checkpoint.load(STAGES))
    run.storage.directory.cut(state["lines"])
    _plan(run, context, other_budget=state["budget"] != now["budget"])
    run.storage.directory.remove_summary()


def _plan(run: Run, context: Context, other_budget: bool) -> None:
    """A run that had ended continues if its budget is another now; its agents evolve first."""
    snapshot, stages = context.snapshot, run.stages
    ended = snapshot.finished
    if other_budget:
        snapshot.last, snapshot.finished = False, stages.confirm.reached
    stages.begin(context)
    if ended and not snapshot.finished and not snapshot.evolved:
        stages.refuse_all_dead(context)
        if stages.evolve is not None:
            stages.evolve(context)
            stages.record.births(context)


def _find(run: Run) -> Checkpoint | None:
    """The newest good checkpoint; None if there is none, and on ranks that cannot see it."""
    world, checkpoints, found = run.world, run.storage.checkpoints, None
    if world.main:
        found = checkpoints.newest()
    sent = str(found.generation if found else NOTHING).encode() if world.main else None
    generation = int(world.broadcast(sent))
    if world.main or generation == NOTHING or not run.storage.shared:
        return found
    with warnings.catch_warnings(action="ignore"):  # the main rank has said it
        found = checkpoints.newest()
    if found is None or found.generation != generation:
        raise CheckpointError(
            f"{checkpoints.folder}: rank {world.rank} finds another checkpoint than"
            " the main rank; set checkpoint.shared_filesystem=false"
        )
    return found


def _load_replays(run: Run, checkpoint: Checkpoint | None) -> None:
    """Every rank its own, from disk or from the main rank."""
    world, replays, sent = run.world, run.parts.replays, None
    if checkpoint and world.main:
        mesh = checkpoint.state["mesh"]
        sent = json.dumps([list(checkpoint.files), mesh["population"], mesh["data"]]).encode()
    files, population, data = json.loads(world.broadcast(sent))
    stems = [stem for stem in files if "replay" in stem]
    if not stems:
        if world.main:
            _warn("replays were not kept (checkpoint.replay: false) and fill up first")
        return
    if checkpoint is not None:  # which all ranks have where they share a disk
        exact = replays.load(stems, checkpoint.load, (population, data))
        if world.main and not run.storage.shared:
            _serve(world, checkpoint)
    else:
        exact = replays.load(stems, lambda stem: _ask(world, stem), (population, data))
        world.send(b"", 0)  # enough
    if world.agree(not exact) and world.main:
        _warn("there are other ranks than before: replays are not what each had")


def _ask(world: World, stem: str) -> dict[str, Tensor]:
    world.send(stem.encode(), 0)
    return load(world.receive(0))


def _serve(world: World, checkpoint: Checkpoint) -> None:
    for rank in range(1, world.size):
        while stem := world.receive(rank):
            world.send(checkpoint.raw(stem.decode()), rank)


def _warn(what: str) -> None:
    warnings.warn(f"{what}, so that the run resumes, but not to the same bytes", stacklevel=3)
