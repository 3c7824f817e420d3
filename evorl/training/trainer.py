"""A training run: from a configuration to a scored run directory. All ranks run this."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import evorl
from evorl.config import RunConfig, load_config, parse_config
from evorl.distributed import World
from evorl.evolution import Schedule
from evorl.pipeline import Callback, Callbacks, Context, FollowSchedule, Save, Task, generation_ends
from evorl.reporting import Console, refuse_missing
from evorl.runs import LINEAGE, METRICS
from evorl.training.score import Score, score_run
from evorl.training.start import Resume, Run, as_begun, make_run, start_run

MAIN = ("main",)


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
    """Train, evolve and score a population as the configuration says; None but on the main rank.

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
            world = World.start(config.population.size, **dict(config.mesh))
            stack.callback(world.close)
        if resume == "auto":
            config = as_begun(config, world)
        run = make_run(config, world, stack, console, schedule, resume)
        context = Context(run.parts.population.size)
        hooks = Callbacks(callbacks, run.storage.directory.path)
        task, save = _make_task(run, context, hooks, schedule)
        start_run(run, context, save)
        if world.main:
            hooks.stage("on_generation_begin")(context)
        task.run()
        if not world.main:
            return None
        score = score_run(run, context)
        hooks.stage("on_run_end")(context)
        return Result(score, run.storage.directory.path)


def _make_task(
    run: Run, context: Context, hooks: Callbacks, schedule: Schedule | None
) -> tuple[Task[Context], Save]:
    """Collect and learn every iteration; at a generation's end evaluate, gather and evolve."""
    stages, end = run.stages, generation_ends
    task = Task(context, run.world.labels)
    save = Save(run.world, run.config, run.storage, run.parts.replays, task.stateful)
    if schedule is not None:
        task.use(FollowSchedule(run.parts.population, schedule))
    task.use(stages.anneal)
    task.use(stages.collect)
    task.use(stages.learn)
    task.use(stages.budget.tick, filter_labels=MAIN)

    task.use(stages.evaluate, every=end)
    task.use(stages.gather, every=end)
    task.use(stages.confirm, every=end, filter_labels=MAIN)
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
    task.use(stages.end_episodes, every=end)
    task.use(stages.inherit, every=end)
    task.use(save, every=end)
    task.use(hooks.stage("on_checkpoint"), every=end, filter_labels=MAIN)
    task.use(stages.broadcast, every=end)
    task.use(hooks.stage("on_generation_begin"), every=end, filter_labels=MAIN)
    return task, save


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
