"""evorl watch: an agent at play, as a video."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.options import RUN, SEED, agent, episodes, make_console, output, quiet

if TYPE_CHECKING:
    from evorl.shipping import Episode


@click.command
@click.argument("run", type=RUN)
@episodes(1, 1000, "Episodes to film.")
@agent()
@SEED
@output("FILE", "A .mp4 or .gif file; best.mp4 in RUN if left out. An older one is replaced.")
@click.option(
    "--fps",
    type=click.FloatRange(0.1, 240),
    help="Frames a second; the environment's own if left out.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    help="Steps after which an episode is cut; as in the run's final score if left out.",
)
@quiet("Print the returns and the file's name only.")
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

    Needs no screen. Works while the run trains, too.

    \b
    evorl watch runs/cartpole
    evorl watch runs/cartpole --episodes 3 --seed 7 --output cartpole.gif
    evorl watch runs/cartpole --agent 17 --max-steps 500
    """
    from tqdm import tqdm

    from evorl.machine import set_threads
    from evorl.seeding import fresh
    from evorl.shipping import select_agent, watch_agent
    from evorl.training import alone

    console = make_console(quiet)
    selected = select_agent(run, agent)
    population = alone(selected.agent)
    set_threads(population.widest, population.pixels)
    name = "best.mp4" if agent is None else f"agent-{agent}.mp4"
    path = run / name if output is None else output
    console.say(selected.heading)

    def show(episode: "Episode") -> None:
        cut = ", cut there" if episode.cut else ""
        tqdm.write(f"seed {episode.seed}: return {episode.score:.1f} in {episode.steps} steps{cut}")

    seeds = fresh(seed, episodes, selected.used_seeds)
    done = watch_agent(
        selected, seeds, path, console, fps=fps, max_steps=max_steps, on_episode=show
    )
    click.echo(f"{path}: {done.frames} frames, {done.frames / done.fps:.1f} seconds")
