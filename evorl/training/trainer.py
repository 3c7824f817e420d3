"""A training run: from a configuration to a scored run directory. All ranks run this.

`make_task` lists all stages of a run in their order.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import evorl
from evorl.config import RunConfig, load_config, parse_config
from evorl.distributed import World
from evorl.evolution import Schedule
from evorl.pipeline import (
    Callback,
    Callbacks,
    FollowSchedule,
    Save,
    Task,
    TrainingContext,
    generation_ends,
)
from evorl.reporting import Console, refuse_missing
from evorl.runs import LINEAGE, METRICS
from evorl.training.actor_setup import act_as_rank, start_world
from evorl.training.run import Run
from evorl.training.score import Score, score_run, scoring_all_the_same
from evorl.training.signals import stop_if_asked
from evorl.training.start import Resume, as_begun, make_run, start_run

MAIN, TRAINER, EVALUATOR = ("main",), ("trainer",), ("evaluator",)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run ended with."""

    score: Score  # of the best agent, on episodes that nothing saw before
    directory: Path

    @property
    def best(self) -> Any:
        """The best agent, ready to act."""
        return evorl.load_agent(self.directory / "best")

    @property
    def metrics(self) -> Any:
        """A row per generation: a pandas DataFrame, or without pandas a list of dicts."""
        return _table(self.directory / METRICS)

    @property
    def lineage(self) -> Any:
        """A row per birth and per fitness: a pandas DataFrame, or a list of dicts."""
        return _table(self.directory / LINEAGE)


def train(
    config: RunConfig | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    *,
    console: Console | None = None,
    schedule: Schedule | None = None,
    world: World | None = None,
    resume: Resume = None,
) -> Result | None:
    """Train, evolve and score a population as the configuration says.

    Returns None on every rank except the main one.

    Args:
        config: A configuration, or the path of a YAML file, or what such a file would say.
        overrides: Such as `algorithm.lr=1e-3`.
        callbacks: Called on the main rank.
        console: What to print on; nothing but warnings without one.
        schedule: Followed instead of evolving; `config_for_schedule` makes the configuration.
        world: The ranks, if they are to train more than this run.
        resume: A run to resume, as if it had never been stopped; `auto` looks for one of this name.
    """
    config = _configured(config, overrides)
    refuse_missing(config.tracking)  # before anything is made
    with ExitStack() as stack:
        if world is None:
            world = start_world(config)
            stack.callback(world.close)
        labels = world.labels  # a mistake in them is told before anything is made
        if world.acts:
            act_as_rank(config, world)
            return None
        if resume == "auto":
            config = as_begun(config, world)
        run = make_run(config, world, stack, console, schedule, resume)
        context = TrainingContext(run.parts.population.size)
        hooks = Callbacks(callbacks, run.storage.directory.path)
        task, save = make_task(run, context, labels, hooks, schedule)
        start_run(run, context, save)
        if world.main:
            hooks.stage("on_generation_begin")(context)
        with scoring_all_the_same(run, context):
            task.run()
        if run.parts.exchange is not None:
            run.parts.exchange.close()  # what follows needs no actors
        evaluate_last(run, context, hooks)
        if not world.main:
            return None
        score = score_run(run, context)
        hooks.stage("on_run_end")(context)
        return Result(score, run.storage.directory.path)


def make_task(
    run: Run,
    context: TrainingContext,
    labels: frozenset[str],
    hooks: Callbacks,
    schedule: Schedule | None,
) -> tuple[Task[TrainingContext], Save]:
    """Lists all stages of a run in their order, with the ranks that run each.

    Every iteration collects and learns; a generation's end evaluates, gathers and evolves.
    """
    stages, end = run.stages, generation_ends
    task = Task(context, labels)
    save = Save(run.world, run.config, run.storage, run.parts.replays, task.stateful)
    if schedule is not None:
        task.use(FollowSchedule(run.parts.population, schedule), filter_labels=TRAINER)
    task.use(stages.anneal, filter_labels=TRAINER)
    task.use(stages.collect, filter_labels=TRAINER)
    task.use(stages.learn, filter_labels=TRAINER)
    task.use(stages.budget.tick, filter_labels=MAIN)

    task.use(stages.evaluate, every=end, filter_labels=EVALUATOR)  # if there are none: all ranks
    task.use(stages.report_actors, every=end, filter_labels=TRAINER)
    task.use(stages.report_training, every=end, filter_labels=TRAINER)
    task.use(stages.gather, every=end)
    task.use(stages.champion, every=end)
    task.use(stages.budget, every=end, filter_labels=MAIN)
    task.use(stages.record.evaluation, every=end, filter_labels=MAIN)
    task.use(stages.show.evaluation, every=end, filter_labels=MAIN)
    task.use(hooks.stage("on_evaluated"), every=end, filter_labels=MAIN)
    task.use(stages.refuse_all_dead, every=end, filter_labels=MAIN)
    if stages.evolve is not None:
        task.use(stages.evolve, every=end, filter_labels=MAIN)
        task.use(stages.record.births, every=end, filter_labels=MAIN)
    task.use(stages.track, every=end, filter_labels=MAIN)
    task.use(hooks.stage("on_evolved"), every=end, filter_labels=MAIN)
    task.use(stages.end_episodes, every=end, filter_labels=TRAINER)
    task.use(stages.inherit, every=end, filter_labels=TRAINER)
    task.use(save, every=end, filter_labels=TRAINER)
    task.use(hooks.stage("on_checkpoint"), every=end, filter_labels=MAIN)
    task.use(partial(stop_if_asked, run.storage.directory), every=end, filter_labels=MAIN)
    task.use(stages.broadcast, every=end)
    task.use(hooks.stage("on_generation_begin"), every=end, filter_labels=MAIN)
    return task, save


def evaluate_last(run: Run, context: TrainingContext, hooks: Callbacks | None = None) -> None:
    """After the last generation, on all ranks: evaluators are one behind, if there are any.

    What it has trained is evaluated, too, unless the run has reached what it was to reach.
    """
    if not run.world.lag or run.world.broadcast_json(run.stages.champion.reached_stop_at):
        return
    stages, hooks = run.stages, hooks or Callbacks((), run.storage.directory.path)
    task = Task(context, run.world.labels)
    task.use(stages.evaluate, filter_labels=EVALUATOR)
    task.use(stages.gather)
    task.use(stages.champion)
    task.use(stages.record.evaluation, filter_labels=MAIN)
    task.use(stages.show.evaluation, filter_labels=MAIN)
    task.use(hooks.stage("on_evaluated"), filter_labels=MAIN)
    task.use(stages.track, filter_labels=MAIN)
    context.finished = False  # once more
    context.actors = context.training = None  # since the last line nobody has played or learned
    task.run(max_step=1)


def _configured(
    config: RunConfig | str | Path | Mapping[str, Any], overrides: Sequence[str]
) -> RunConfig:
    if isinstance(config, RunConfig):
        return parse_config(config.model_dump(), overrides) if overrides else config
    if isinstance(config, Mapping):
        return parse_config(dict(config), overrides)
    return load_config(config, overrides)


def _table(path: Path) -> Any:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
