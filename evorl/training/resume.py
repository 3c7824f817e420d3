"""How a run resumes from the newest good checkpoint as if nothing had happened."""

import warnings
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from evorl.errors import CheckpointError, ConfigError
from evorl.experience import check_items
from evorl.pipeline import (
    STAGE_STATES,
    Save,
    Snapshot,
    TrainingContext,
    check_snapshot,
    check_state,
    restore_states,
)
from evorl.runs import Checkpoint, reading
from evorl.training.run import Run


def restore(run: Run, context: TrainingContext, checkpoint: Checkpoint, save: Save) -> None:
    """The main rank becomes what it was when the checkpoint was written."""
    state, now = checkpoint.state, save.settings
    with reading(checkpoint.path):
        check_state(state)
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
    with reading(checkpoint.path):
        snapshot = context.snapshot = Snapshot.read(checkpoint)
        known = checkpoint.generation, run.config.population.size, run.parts.population.specs
        check_snapshot(snapshot, *known, run.config.algorithm)
        stages = checkpoint.load(STAGE_STATES)
    run.storage.directory.cut(state["lines"])
    context.began -= run.storage.directory.seconds()
    with reading(checkpoint.path):
        restore_states(save.stages, state["stages"], stages)
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


def find_checkpoint(run: Run) -> Checkpoint | None:
    """The newest good checkpoint that this rank sees; the main rank's is the one that counts."""
    checkpoints = run.storage.checkpoints
    if run.world.main:
        return checkpoints.newest()
    with warnings.catch_warnings(action="ignore"), suppress(CheckpointError):  # the main rank's say
        return checkpoints.newest()
    return None


def load_replays(run: Run, checkpoint: Checkpoint | None) -> None:
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
        with reading(checkpoint.path):
            load = _checked(run, checkpoint.load)
            exact = replays.load(stems, load, (mesh["population"], mesh["data"]))
        if world.any_rank(not exact):
            problem = "there are other ranks than before: replays are not what each had"
    if problem and world.first:
        _warn(problem)


def _checked(
    run: Run, load: Callable[[str], dict[str, Tensor]]
) -> Callable[[str], dict[str, Tensor]]:
    """Loads a replay whose items this run could have made."""

    def load_checked(stem: str) -> dict[str, Tensor]:
        found = load(stem)
        check_items(found, run.parts.episodes.action.choices)
        return found

    return load_checked


def _warn(what: str) -> None:
    warnings.warn(f"{what}; the run resumes, but will not end with the same bytes", stacklevel=3)
