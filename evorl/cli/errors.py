"""How a command ends that could not do what it was asked to."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from evorl.errors import EvorlError, one_line


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What the user can fix is one line and exit code 2; an interruption 130 or 143."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(_describe(error))
    except EvorlError as error:
        _fail(str(error), getattr(error, "__notes__", ()))
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__ or error  # click makes an Abort of it
        if _is_main_process():
            click.echo("; ".join(["interrupted", *getattr(cause, "__notes__", ())]), err=True)
        sys.exit(getattr(cause, "exit_code", 130))


def _fail(message: str, notes: Sequence[str] = ()) -> None:
    """Print the notes and one line, on the main rank first, and exit."""
    from evorl.distributed import let_main_speak_first

    let_main_speak_first()  # it may have the same to say
    for note in notes:
        click.echo(note, err=True)
    click.echo(f"error: {one_line(message)}", err=True)
    sys.exit(2)


def _describe(error: click.ClickException) -> str:
    """Click's message on one line, and where to read on."""
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return message
    return f"{message.rstrip('.')} (see {context.command_path} --help)"


def _is_main_process() -> bool:
    from evorl.distributed import is_main_process_of_launch

    return is_main_process_of_launch()
