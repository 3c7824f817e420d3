"""evorl evaluate: how good an agent is, on episodes that nothing has used before."""

from pathlib import Path

import click

from evorl.cli.choosing import AGENT, SEED
from evorl.cli.completing import RUN
from evorl.cli.text import decimals, show_estimate
from evorl.reporting.console import Console, show_warnings_on


@click.command(short_help="Score an agent of a run on fresh episodes.")
@click.argument("run", type=RUN)
@click.option(
    "--episodes",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Episodes to play.",
)
@AGENT
@SEED
@click.option("-q", "--quiet", is_flag=True, help="Print the score only.")
def evaluate(run: Path, episodes: int, agent: int | None, seed: int, quiet: bool) -> None:
    """Score the best agent of the run directory RUN on fresh episodes.

    Neither training, selection, confirmation nor the run's held-out score used their seeds.
    Intervals are 95 % bootstrap intervals over episodes. Works while the run is going on, too.

    \b
    evorl evaluate runs/cartpole
    evorl evaluate runs/cartpole --episodes 1000 --seed 7
    evorl evaluate runs/cartpole --agent 17
    """
    from evorl.machine import set_threads
    from evorl.seeding import fresh, generator
    from evorl.shipping.pick import heading, pick, used_seeds
    from evorl.training.score import alone, estimate, play_alone

    console = Console(quiet)
    show_warnings_on(console)
    picked = pick(run, agent)
    population = alone(picked.agent)
    set_threads(population.widest, population.pixels)
    console.say(heading(picked))
    seeds = fresh(seed, episodes, used_seeds(picked.config))
    limit = picked.config.evaluation.final_max_steps
    played, _ = play_alone(picked.agent, picked.spec, seeds, limit, console)
    score = estimate(played.returns[0], generator(seed, "bootstrap"), played.steps)
    places = decimals(score.mean.value, score.iqm.value)
    click.echo(
        f"score over {episodes:,} fresh episode{'s' * (episodes != 1)}:"
        f" mean {show_estimate(score.mean, places)}, IQM {show_estimate(score.iqm, places)}"
    )
    console.say(f"{score.steps:,} environment steps")
