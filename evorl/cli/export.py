"""evorl export: an agent as a model that runs without evorl."""

from pathlib import Path

import click

from evorl.cli.options import RUN, agent, make_console, output

NAMES = ("safetensors", "pt2", "onnx")


@click.command
@click.argument("run", type=RUN)
@click.option("--format", "format_", type=click.Choice(NAMES), required=True, help="See below.")
@agent()
@output("FOLDER", "A new folder; export-FORMAT in RUN if left out.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
def export(run: Path, format_: str, agent: int | None, output: Path | None, force: bool) -> None:
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
    evorl export runs/cartpole --format pt2 --agent 17 --force
    """
    from evorl.runs import Agent
    from evorl.shipping import export_agent, select_agent

    console = make_console()
    selected = select_agent(run, agent)
    name = f"export-{format_}" if agent is None else f"export-{format_}-agent-{agent}"
    folder = run / name if output is None else output
    done = export_agent(Agent(selected.agent), format_, folder, force=force)
    console.say(selected.heading)
    console.say(
        "the same as the live agent on 1,000 random observations:"
        f" outputs differ by {done.difference:.1e} of the largest"
    )
    click.echo(f"{done.folder}: {', '.join(done.files)}")
