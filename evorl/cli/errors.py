"""How a command ends that could not do what it was asked to."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from evorl.distributed.launch import is_main_process_of_launch, let_main_speak_first
from evorl.errors import EvorlError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What the user can mend is one line and exit code 2; an interruption 130 or 143."""
    try:
        yield
    except click.ClickException as error:
        let_main_speak_first()  # it has the same to say
        if is_main_process_of_launch():
            error.show()
        sys.exit(2)
    except EvorlError as error:
        let_main_speak_first()
        for note in getattr(error, "__notes__", ()):
            click.echo(note, err=True)
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort) as error:
        if is_main_process_of_launch():
            click.echo("interrupted", err=True)
        cause = error.__cause__ or error  # click makes an Abort of it
        sys.exit(getattr(cause, "exit_code", 130))
