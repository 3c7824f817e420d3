"""What only the main rank does: it keeps the run's directory, decides, and writes things down."""

import warnings
from typing import Any, NamedTuple

from evorl.config import RunConfig
from evorl.distributed.world import World
from evorl.envs import Episodes
from evorl.errors import ConfigError
from evorl.networks.initial import fresh_parameters
from evorl.pipeline.budget import Budget
from evorl.pipeline.champion import HallOfFame
from evorl.pipeline.context import Context
from evorl.pipeline.everybody import Everybody
from evorl.pipeline.evolve import Evolve
from evorl.pipeline.generation import RefuseAllDead
from evorl.pipeline.metrics import Track
from evorl.pipeline.restore import Restore
from evorl.pipeline.save import Progress
from evorl.pipeline.show import Tell
from evorl.population.group import newborn
from evorl.reporting.console import Console
from evorl.reporting.tracking import Tracking
from evorl.runs.directory import LINEAGE, METRICS, RunDirectory
from evorl.training.build import make_evolve


class Office(NamedTuple):
    """The stages of the main rank, on all agents of all ranks, and what they know."""

    directory: RunDirectory
    budget: Budget
    hall: HallOfFame
    track: Track
    tell: Tell
    refuse: RefuseAllDead
    evolve: Evolve | None
    progress: Progress
    tracking: Tracking

    def begin(self, context: Context) -> None:
        """Before the first generation of a run, or of what is left of one."""
        self.budget.begin(context)
        self.track.begin(context)
        self.tell.begin(context)

    def decide(self, context: Context) -> None:
        """At a generation's end, on all agents of all ranks: who is best, and who goes on how."""
        self.hall(context)
        self.budget(context)
        self.track(context)
        self.tell.evaluation(context)
        self.refuse(context)
        if self.evolve is not None:
            self.evolve(context)
        self.tell.births(context)
        self.tracking.follow()


def make_office(
    config: RunConfig,
    directory: RunDirectory,
    everybody: Everybody,
    episodes: Episodes,
    console: Console,
    ranks: int = 1,
) -> Office:
    """The main rank's parts; `ranks` is how many train the same agents."""
    hall = HallOfFame(
        everybody,
        episodes,
        directory,
        config.evaluation,
        env_id=config.env.id,
        seed=config.seed,
        stop_at=config.budget.stop_at,
    )
    per_iteration = config.population.size * config.env.num_envs * ranks
    budget = Budget(
        config.budget, console, every=config.evaluation.every, per_iteration=per_iteration
    )
    evolves = config.evolution.method == "evolution"
    evolve = make_evolve(config, everybody, hall, directory) if evolves else None
    return Office(
        directory,
        budget,
        hall,
        Track(everybody, hall, directory),
        Tell(everybody, hall, evolve, console),
        RefuseAllDead(directory),
        evolve,
        Progress(everybody, hall, evolve, directory, config),
        Tracking(config, directory, console),
    )


class Begin:
    """How a run begins, or goes on: on the main rank, for all; `Spread` then tells the others."""

    def __init__(
        self, world: World, config: RunConfig, office: Office | None, everybody: Everybody
    ) -> None:
        self.world, self.config, self.office, self.everybody = world, config, office, everybody

    def anew(self, context: Context) -> None:
        """The agents of the configuration, newly born."""
        if self.office is None:
            return
        specs, genomes = self.everybody.specs, self.everybody.genomes
        born = [newborn(fresh_parameters(specs, genome, self.config.seed)) for genome in genomes]
        self.everybody.meet(genomes, born, [True] * len(genomes))
        self.office.begin(context)
        self.office.tracking.begin()

    def resumed(self, context: Context, restore: Restore) -> None:
        """From the newest checkpoint; from the beginning, if the run did not come that far."""
        checkpoint = restore.find()
        if self.world.agree(checkpoint is None and self.world.main):
            if self.office is not None:
                warnings.warn(
                    "there is no checkpoint yet: starting from the beginning", stacklevel=2
                )
                self.office.directory.cut({METRICS: 0, LINEAGE: self.everybody.size})
            self.anew(context)
            return
        if self.office is not None and checkpoint is not None:
            self._refuse_other_precision(checkpoint.state["precision"])
            if checkpoint.state["compiled"] != self.office.progress.compiled:
                warnings.warn(
                    f"compile is {self.office.progress.compiled} now, so that the run goes on, but"
                    " not to the same bytes",
                    stacklevel=2,
                )
            self.office.progress.restore(checkpoint, context)
            self._replan(context, self.office, checkpoint.state["budget"])
            self.office.directory.remove_summary()
            self.office.tracking.begin()
        restore.load_replays(checkpoint)

    def _refuse_other_precision(self, had: str) -> None:
        if had != (now := self.world.precision):
            raise ConfigError(
                f"mixed_precision: cannot change in a run that has begun ({had!r}, got {now!r});"
                f" launch it with --mixed_precision {had}"
            )

    def _replan(self, context: Context, office: Office, budget: dict[str, Any]) -> None:
        """A run that had ended goes on if its budget is another now; its agents evolve first."""
        ended, hall = context.finished, office.hall
        if budget != office.progress.budget:
            context.last = False
            context.finished = hall.stop_at is not None and hall.score >= hall.stop_at
        office.begin(context)
        if ended and not context.finished:
            context.generation -= 1  # as it was when the others evolved
            office.refuse(context)
            if office.evolve is not None:
                office.evolve(context)
            context.generation += 1
