"""evorl export: an agent as a model that runs without evorl."""

from pathlib import Path

import click

from evorl.cli.choosing import AGENT
from evorl.cli.completing import RUN
from evorl.reporting.console import Console, show_warnings_on

NAMES = ("safetensors", "torchscript", "onnx")


@click.command(short_help="Write an agent for use without evorl.")
@click.argument("run", type=RUN)
@click.option("--format", "format_", type=click.Choice(NAMES), required=True, help="See below.")
@AGENT
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A new folder; export-FORMAT in RUN if left out.",
)
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
def export(run: Path, format_: str, agent: int | None, output: Path | None, force: bool) -> None:
    """Write the best agent of the run directory RUN as a model that runs without evorl.

    The model takes the environment's own observations, a batch of any size, and gives Q values; the
    greedy action is their argmax. Before it is said to be done it is compared with the live agent
    on 1,000 random observations. An example.py beside it shows how it is used.

    \b
    safetensors  weights and a model.py for plain PyTorch
    torchscript  a model.pt for torch.jit.load, in Python or C++
    onnx         a model.onnx for onnxruntime (pip install -e '.[onnx]')

    \b
    evorl export runs/cartpole --format onnx
    evorl export runs/cartpole --format safetensors --output cartpole-agent
    evorl export runs/cartpole --format torchscript --agent 17 --force
    """
    from evorl.shipping.export import export as write
    from evorl.shipping.pick import heading, pick

    console = Console()
    show_warnings_on(console)
    picked = pick(run, agent)
    name = f"export-{format_}" if agent is None else f"export-{format_}-agent-{agent}"
    done = write(picked, format_, run / name if output is None else output, force=force)
    console.say(heading(picked))
    console.say(
        "the same as the live agent on 1,000 random observations:"
        f" Q values differ by {done.difference:.1e} of the largest"
    )
    click.echo(f"{done.folder}: {', '.join(done.files)}")
