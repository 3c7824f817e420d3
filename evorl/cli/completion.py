"""evorl completion: the script by which a shell completes evorl's commands."""

import click


@click.command
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, runs and configuration files.

    Load it when the shell starts; the tab key then completes, for instance, evorl lineage runs/…

    \b
    evorl completion bash >> ~/.bashrc
    evorl completion zsh >> ~/.zshrc      # after compinit
    evorl completion fish > ~/.config/fish/completions/evorl.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click knows all three
    click.echo(kind(ctx.find_root().command, {}, "evorl", "_EVORL_COMPLETE").source())
