"""evorl watch, evaluate and export: what becomes of a trained agent."""

from pathlib import Path

import click

from evorl.cli.shared import (
    AGENT,
    JSON,
    QUIET,
    RUN,
    SEED,
    echo_json,
    episodes,
    make_console,
    output,
)

FORMATS = ("safetensors", "pt2", "onnx")


@click.command
@RUN
@episodes(1)
@AGENT
@SEED
@output("FILE", "A .mp4 or .gif file; best.mp4 in RUN if left out. An older one is replaced.")
@QUIET
def watch(
    run: Path, episodes: int, agent: int | None, seed: int, output: Path | None, quiet: bool
) -> None:
    """Film the best agent of the run directory RUN at play, and print its returns.

    Needs no screen. Episodes are as long as in the run's final score at most. Works while the run
    trains, too.

    \b
    evorl watch runs/cartpole
    evorl watch runs/cartpole --episodes 3 --seed 7 --output cartpole.gif
    evorl watch runs/cartpole --agent 17
    """
    from evorl.runs import decimals
    from evorl.seeding import fresh
    from evorl.shipping import select_agent, watch_agent

    console = make_console(quiet)
    selected = select_agent(run, agent)
    path = output or run / ("best.mp4" if agent is None else f"agent-{agent}.mp4")
    console.say(selected.heading)
    seeds = fresh(seed, episodes, selected.used_seeds)
    played = watch_agent(selected, seeds, path, console)
    places = decimals([one.score for one in played])
    for one in played:
        cut = ", cut there" if one.cut else ""
        click.echo(f"seed {one.seed}: return {one.score:.{places}f} in {one.steps} steps{cut}")
    click.echo(f"{path}: {sum(one.steps + 1 for one in played)} frames")


@click.command
@RUN
@episodes(100)
@AGENT
@SEED
@JSON
@QUIET
def evaluate(
    run: Path, episodes: int, agent: int | None, seed: int, as_json: bool, quiet: bool
) -> None:
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

    console = make_console(quiet or as_json)
    selected = select_agent(run, agent)
    population = alone(selected.agent)
    set_threads(population.widest, population.pixels)
    console.say(selected.heading)
    seeds = fresh(seed, episodes, selected.used_seeds)
    limit = selected.config.evaluation.final_max_steps
    played, _ = play_alone(selected.agent, selected.spec, seeds, limit, console)
    score = estimate(played.returns[0], generator(seed, "bootstrap"), played.steps)
    if as_json:
        echo_json({"path": str(run)} | score.to_json())
        return
    click.echo(
        f"score over {episodes:,} fresh episode{'s' * (episodes != 1)}:"
        f" mean {score.mean}, IQM {score.iqm}"
    )
    console.say(f"{score.steps:,} environment steps")


@click.command
@RUN
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True, help="See below.")
@AGENT
@output("FOLDER", "A new folder; export-FORMAT in RUN if left out.")
def export(run: Path, format_: str, agent: int | None, output: Path | None) -> None:
    """Write the best agent of the run directory RUN as a model that runs without evorl.

    The model takes the environment's own observations, a batch of any size, and gives actions and
    the outputs of the networks. Before it counts as written it is compared with the live agent on
    1,000 random observations.

    \b
    safetensors  the weights, for code of your own; agent.json says what they are
    pt2          a model.pt2 for torch.export.load
    onnx         a model.onnx for onnxruntime (pip install -e '.[onnx]')

    \b
    evorl export runs/cartpole --format onnx
    evorl export runs/cartpole --format safetensors --output cartpole-agent
    evorl export runs/cartpole --format pt2 --agent 17
    """
    from evorl.runs import Agent
    from evorl.shipping import export_agent, select_agent

    console = make_console()
    selected = select_agent(run, agent)
    folder = output or run / f"export-{format_}{'' if agent is None else f'-agent-{agent}'}"
    files, difference = export_agent(Agent(selected.agent), format_, folder)
    console.say(selected.heading)
    console.say(
        "the same as the live agent on 1,000 random observations:"
        f" outputs differ by {difference:.1e} of the largest"
    )
    click.echo(f"{folder}: {', '.join(files)}")
