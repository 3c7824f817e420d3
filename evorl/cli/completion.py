"""evorl completion: the script by which a shell completes evorl's commands."""

import click
from click.shell_completion import get_completion_class

from evorl.errors import RunError

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the script that makes a shell complete evorl.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, runs and configuration files.

    Load it when the shell starts; the tab key then completes, for instance, evorl lineage runs/…

    \b
    evorl completion bash >> ~/.bashrc
    evorl completion zsh >> ~/.zshrc      # after compinit
    evorl completion fish > ~/.config/fish/completions/evorl.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise RunError(f"completion: this version of click knows no {shell}; update click")
    click.echo(kind(ctx.find_root().command, {}, "evorl", "_EVORL_COMPLETE").source())
