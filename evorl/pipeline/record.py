"""What is written down and shown of a generation that has ended."""

import time
from dataclasses import asdict
from typing import Any

from evorl.evolution import MEAN, Fitness, FitnessLine
from evorl.pipeline.snapshot import Snapshot
from evorl.pipeline.training_context import TrainingContext
from evorl.pipeline.training_log import curves_of
from evorl.reporting import Console, Evaluated, actors_line, headline, hyperparameter_line, ranking
from evorl.runs import RunDirectory


class Record:
    """A line of metrics.jsonl per evaluation; a line of lineage.jsonl per agent and per birth."""

    def __init__(self, directory: RunDirectory, fitness: Fitness = MEAN) -> None:
        self.directory, self.fitness = directory, fitness
        self._started = self._last = time.perf_counter()

    def evaluation(self, context: TrainingContext) -> None:
        """After the champion is known."""
        self.directory.append_metrics(self._metrics(context))
        self.directory.append_lineage(self._fitness_lines(context.snapshot))

    def births(self, context: TrainingContext) -> None:
        """After evolution."""
        if context.snapshot.births:
            self.directory.append_lineage(context.snapshot.births)

    def _metrics(self, context: TrainingContext) -> dict[str, Any]:
        snapshot, genomes, now = context.snapshot, context.snapshot.genomes, time.perf_counter()
        made = snapshot.env_steps - context.before["env_steps"]  # by all ranks
        rate = made / max(now - self._last, 1e-9)
        self._last = now
        return {
            "generation": snapshot.ended,
            "env_steps": snapshot.env_steps,
            "evaluation_steps": snapshot.evaluation_steps,
            "updates": snapshot.updates,
            "episodes": snapshot.episodes,
            "failures": snapshot.failures,
            "seconds": round(now - self._started, 3),
            "steps_per_second": round(rate, 1),
            "best": snapshot.best,
            "best_episodes": snapshot.best_episodes,
            "ids": [genome.id for genome in genomes],
            "fitness": snapshot.fitness.tolist(),
            "alive": snapshot.alive.tolist(),
            "loss": snapshot.loss.tolist(),
            "exploration": snapshot.exploration.tolist(),
            "hyperparameters": {
                name: [genome.hyperparameters[name] for genome in genomes]
                for name in genomes[0].hyperparameters
            },
            "hidden": {
                name: [list(genome.architectures[name].hidden) for genome in genomes]
                for name in genomes[0].architectures
            },
            "shares": {name: round(share, 4) for name, share in context.timer.shares().items()},
            **({} if context.actors is None else {"actors": context.actors}),
            **self._training(context),
        }

    def _training(self, context: TrainingContext) -> dict[str, Any]:
        """The generation's curves, by steps."""
        if context.training is None:
            return {}
        before, after = context.before["env_steps"], context.snapshot.env_steps
        return {"training": curves_of(context.training, before, after)}

    def _fitness_lines(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        errors = self.fitness.errors(snapshot.returns)
        return [
            asdict(
                FitnessLine(
                    "fitness",
                    snapshot.ended,
                    snapshot.env_steps,
                    int(snapshot.agent_steps[place]),
                    place,
                    genome.id,
                    float(snapshot.fitness[place]),
                    float(errors[place]),
                )
            )
            for place, genome in enumerate(snapshot.genomes)
        ]


class Show:
    """A table of the agents; with --verbose of all, and between which values they differ."""

    def __init__(self, console: Console, fitness: Fitness = MEAN, actors: int = 0) -> None:
        """`actors` is how many there are to be."""
        self.console, self.fitness, self.actors = console, fitness, actors

    def evaluation(self, context: TrainingContext) -> None:
        """After the champion is known, before anybody is replaced."""
        snapshot, console = context.snapshot, self.console
        found = Evaluated(
            snapshot.ended,
            snapshot.env_steps,
            snapshot.genomes,
            snapshot.fitness,
            self.fitness.errors(snapshot.returns),
        )
        console.show(f"best {snapshot.best:.{found.places}f}")
        console.say(headline(found, snapshot.best), ranking(found, everyone=console.verbose))
        if console.verbose:
            console.say(hyperparameter_line(snapshot.genomes))
        told, always = context.actors, console.verbose
        if told is not None and (line := actors_line(told, self.actors, always)):
            console.say(line)
