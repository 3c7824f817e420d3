"""Tell: what a person sees of a generation that has ended."""

from evorl.pipeline.champion import HallOfFame
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import standard_errors
from evorl.pipeline.everybody import Everybody
from evorl.pipeline.evolve import Evolve
from evorl.reporting.console import Console
from evorl.reporting.generation_table import (
    Evaluated,
    birth_lines,
    headline,
    hyperparameter_line,
    ranking,
    time_line,
)


class Tell:
    """A table of the agents; with --verbose of all, and where the time went, and who was born."""

    def __init__(
        self, everybody: Everybody, hall: HallOfFame, evolve: Evolve | None, console: Console
    ) -> None:
        self.everybody, self.hall, self.evolve = everybody, hall, evolve
        self.console = console
        self._seconds: dict[str, float] = {}  # spent before this generation
        self._steps = 0  # made before it
        self._genomes = everybody.genomes

    def begin(self, context: Context) -> None:
        """Before the first generation of a run, or of what is left of one."""
        self._seconds, self._steps = dict(context.timer.seconds), context.env_steps

    def evaluation(self, context: Context) -> None:
        """After the hall of fame has seen the evaluation, before anybody is replaced."""
        genomes, console = self.everybody.genomes, self.console
        self._genomes = list(genomes)
        console.show(f"best {self.hall.score:.1f}")
        found = Evaluated(
            context.generation,
            context.env_steps,
            genomes,
            context.fitness,
            standard_errors(context.returns),
        )
        console.say(headline(found, self.hall.score), ranking(found, everyone=console.verbose))
        if console.verbose:
            console.say(self._time(context), hyperparameter_line(genomes))

    def births(self, context: Context) -> None:
        """After evolution."""
        if self.console.verbose and self.evolve is not None and not context.finished:
            self.console.say(*birth_lines(self.evolve.births, self._genomes))

    def _time(self, context: Context) -> str:
        seconds, steps = dict(context.timer.seconds), context.env_steps
        spent = {name: now - self._seconds.get(name, 0.0) for name, now in seconds.items()}
        made = steps - self._steps
        self._seconds, self._steps = seconds, steps
        return time_line(spent, made)
