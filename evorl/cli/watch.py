"""evorl watch: an agent at play, as a video."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.choosing import AGENT, SEED
from evorl.cli.completing import RUN
from evorl.reporting.console import Console, show_warnings_on

if TYPE_CHECKING:
    from evorl.shipping.watch import Episode


@click.command(short_help="Film the best agent of a run.")
@click.argument("run", type=RUN)
@click.option(
    "--episodes",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Episodes to film.",
)
@AGENT
@SEED
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A .mp4 or .gif file; best.mp4 in RUN if left out. An older one is replaced.",
)
@click.option(
    "--fps",
    type=click.FloatRange(0.1, 240),
    help="Frames a second; as the environment says if left out.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    help="Steps after which an episode is cut; as in the run's final score if left out.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the returns and the file's name only.")
def watch(
    run: Path,
    episodes: int,
    agent: int | None,
    seed: int,
    output: Path | None,
    fps: float | None,
    max_steps: int | None,
    quiet: bool,
) -> None:
    """Film the best agent of the run directory RUN at play, and print its returns.

    Needs no screen. Works while the run is going on, too.

    \b
    evorl watch runs/cartpole
    evorl watch runs/cartpole --episodes 3 --seed 7 --output cartpole.gif
    evorl watch runs/cartpole --agent 17 --max-steps 500
    """
    from tqdm import tqdm

    from evorl.machine import set_threads
    from evorl.seeding import fresh
    from evorl.shipping.pick import heading, pick, used_seeds
    from evorl.shipping.watch import watch as film
    from evorl.training.score import alone

    console = Console(quiet)
    show_warnings_on(console)
    picked = pick(run, agent)
    population = alone(picked.agent)
    set_threads(population.widest, population.pixels)
    name = "best.mp4" if agent is None else f"agent-{agent}.mp4"
    path = run / name if output is None else output
    console.say(heading(picked))

    def tell(episode: "Episode") -> None:
        cut = ", cut there" if episode.cut else ""
        tqdm.write(f"seed {episode.seed}: return {episode.score:.1f} in {episode.steps} steps{cut}")

    seeds = fresh(seed, episodes, used_seeds(picked.config))
    done = film(picked, seeds, path, console, fps=fps, max_steps=max_steps, on_episode=tell)
    click.echo(f"{path}: {done.frames} frames, {done.frames / done.fps:.1f} seconds")
