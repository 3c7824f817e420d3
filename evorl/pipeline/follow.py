"""Follow: an agent trains along a schedule of hyperparameters that another's evolution found."""

import dataclasses

from evorl.evolution.schedule import Schedule
from evorl.pipeline.context import Context
from evorl.population.population import Population


class FollowSchedule:
    """Gives every agent the hyperparameters of its own step, whenever they change."""

    def __init__(self, population: Population, schedule: Schedule) -> None:
        self.population, self.schedule = population, schedule

    def __call__(self, context: Context) -> None:
        """Before the iteration's first action."""
        population, old = self.population, self.population.genomes
        genomes = [
            dataclasses.replace(genome, hyperparameters=self.schedule.at(int(steps)))
            for genome, steps in zip(old, context.agent_steps, strict=True)
        ]
        if genomes != old:
            alive = population.alive
            population.rebuild(genomes, [population.state(i) for i in range(population.size)])
            population.alive = alive
