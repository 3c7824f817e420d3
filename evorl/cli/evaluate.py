"""evorl evaluate: how good an agent is, on episodes that nothing has used before."""

from pathlib import Path

import click

from evorl.cli.options import RUN, SEED, agent, episodes, make_console, quiet
from evorl.cli.tables import decimals, show_estimate


@click.command
@click.argument("run", type=RUN)
@episodes(100, 1_000_000, "Episodes to play.")
@agent()
@SEED
@quiet("Print the score only.")
def evaluate(run: Path, episodes: int, agent: int | None, seed: int, quiet: bool) -> None:
    """Score the best agent of the run directory RUN on fresh episodes.

    Neither training, selection, confirmation nor the run's held-out score used their seeds.
    Intervals are 95 % bootstrap intervals over episodes. Works while the run trains, too.

    \b
    evorl evaluate runs/cartpole
    evorl evaluate runs/cartpole --episodes 1000 --seed 7
    evorl evaluate runs/cartpole --agent 17
    """
    from evorl.machine import set_threads
    from evorl.seeding import fresh, generator
    from evorl.shipping import select_agent
    from evorl.training import alone, estimate, play_alone

    console = make_console(quiet)
    selected = select_agent(run, agent)
    population = alone(selected.agent)
    set_threads(population.widest, population.pixels)
    console.say(selected.heading)
    seeds = fresh(seed, episodes, selected.used_seeds)
    limit = selected.config.evaluation.final_max_steps
    played, _ = play_alone(selected.agent, selected.spec, seeds, limit, console)
    score = estimate(played.returns[0], generator(seed, "bootstrap"), played.steps)
    places = decimals(score.mean.value, score.iqm.value)
    click.echo(
        f"score over {episodes:,} fresh episode{'s' * (episodes != 1)}:"
        f" mean {show_estimate(score.mean, places)}, IQM {show_estimate(score.iqm, places)}"
    )
    console.say(f"{score.steps:,} environment steps")
