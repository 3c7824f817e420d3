"""evorl export: an agent as a model that runs without evorl."""

from pathlib import Path

import click

from evorl.cli.options import RUN, agent, make_console, output

NAMES = ("safetensors", "torchscript", "onnx")


@click.command
@click.argument("run", type=RUN)
@click.option("--format", "format_", type=click.Choice(NAMES), required=True, help="See below.")
@agent()
@output("FOLDER", "A new folder; export-FORMAT in RUN if left out.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
def export(run: Path, format_: str, agent: int | None, output: Path | None, force: bool) -> None:
    """Write the best agent of the run directory RUN as a model that runs without evorl.

    The model takes the environment's own observations, a batch of any size, and gives the outputs
    of the agent's network; example.py beside it shows how actions follow from them. It is compared
    with the live agent on 1,000 random observations before it counts as written.

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

    console = make_console()
    picked = pick(run, agent)
    name = f"export-{format_}" if agent is None else f"export-{format_}-agent-{agent}"
    done = write(picked, format_, run / name if output is None else output, force=force)
    console.say(heading(picked))
    console.say(
        "the same as the live agent on 1,000 random observations:"
        f" outputs differ by {done.difference:.1e} of the largest"
    )
    click.echo(f"{done.folder}: {', '.join(done.files)}")
