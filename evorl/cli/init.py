"""evorl init: a configuration to start from."""

from pathlib import Path

import click

from evorl.cli.options import output
from evorl.errors import RunError, one_line


@click.command
@click.argument("env_id", metavar="ENV_ID")
@output("FILE", "Where to write it, or - to print it; the environment's name, .yaml, if left out.")
def init(env_id: str, output: Path | None) -> None:
    """Write a commented configuration for the Gymnasium environment ENV_ID, to start from.

    Network, generations and budget suit its observations and the length of its episodes. ENV_ID is
    a registered id, or module:id to import the module that registers it. A file that exists is
    never overwritten.

    \b
    evorl init CartPole-v1
    evorl init LunarLander-v3 -o configs/lander.yaml
    evorl init my_package.envs:Maze-v0
    """
    from evorl.cli.template import look_at, name_of, schema_beside, starter

    file = output or Path(f"{name_of(env_id)}.yaml")
    known = look_at(env_id)
    text = starter(known, schema_beside(file))
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    write_new(file, text)
    click.echo(one_line(f"{file}: {env_id}, {known}"))
    click.echo(one_line(f"train: evorl train {file}"))


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet; RunError if it does, or cannot be."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise RunError(f"{file}: exists already; remove it, or give another name with -o") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{file}: cannot be written: {reason}") from None
