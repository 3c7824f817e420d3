"""How much a command says: --quiet and --verbose."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from evorl.errors import ConfigError
from evorl.reporting.console import Console, show_warnings_on


def talking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command both options; it gets a `console` that goes by them."""

    @click.option("-q", "--quiet", is_flag=True, help="Print the final score only.")
    @click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Print all agents, where the time went, and who was born from whom.",
    )
    @wraps(command)
    def wrapped(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> None:
        if quiet and verbose:
            raise ConfigError("--verbose: not with --quiet; leave one of them out")
        console = Console(quiet, verbose)
        show_warnings_on(console)
        command(*args, console=console, **kwargs)

    return wrapped
