"""The command line: `evorl NAME` is the function NAME of evorl/cli/NAME.py, or of FILES[NAME].

A command is imported when it is called, and imports what is slow to load when it runs: `evorl
--help` loads click and nothing else.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from evorl import __version__
from evorl.errors import EvorlError, one_line, printable

# What `evorl --help` lists: section → command → what it does.
SECTIONS = {
    "Train": {
        "train": "Train as a YAML file says, and print the held-out score.",
        "resume": "Resume a run, or a group of runs, that was stopped or killed.",
        "sweep": "Train with each combination of values, and compare.",
        "actor": "Play for a run that learns elsewhere, from now on.",
        "launch": "Train on the ranks that a cluster of Ray starts.",
    },
    "Look": {
        "runs": "List runs: state, score and age, the newest first.",
        "report": "Write a run, or several, as one page to look at.",
        "dashboard": "Serve that page for all runs, live.",
        "lineage": "Print how the best agent of a run came to be.",
        "schedule": "Print the hyperparameters that made the best agent, as YAML.",
        "compare": "Compare finished runs, grouped by configuration.",
    },
    "Ship": {
        "watch": "Film the best agent of a run.",
        "evaluate": "Score an agent of a run on fresh episodes.",
        "export": "Write an agent for use without evorl.",
    },
    "Set up": {
        "init": "Write a commented YAML file for an environment, to start from.",
        "doctor": "Check this machine: what works, what is missing, what to do.",
        "schema": "Print the schema of configuration files, for editors.",
    },
}
# Commands in the file of a neighbour.
FILES = {"resume": "train", "dashboard": "report", "schedule": "lineage", "schema": "init"}
FILES |= dict.fromkeys(SECTIONS["Ship"], "ship")

COMPLETE = "_EVORL_COMPLETE"  # set by the shell when the tab key is pressed


class Commands(click.Group):
    """A group that imports a command when it is called, and lists commands by section."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command from its own module; `commands` holds its name and short help only."""
        if cmd_name not in self.commands:
            return None
        module = importlib.import_module(f"evorl.cli.{FILES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        command.short_help = self.commands[cmd_name].short_help
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Click's, with a heading for each section, and nothing cut off."""
        wide = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{wide}}", text) for name, text in commands.items()])


@click.group(
    cls=Commands,
    commands=[
        click.Command(name, short_help=text)
        for section in SECTIONS.values()
        for name, text in section.items()
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="evorl")
def cli() -> None:
    """Train and evolve populations of reinforcement-learning agents.

    \b
    evorl init CartPole-v1
    evorl train cart_pole.yaml
    evorl lineage runs/cart_pole
    """


def main() -> None:
    """Run the command line: an error that the user can fix is one line, and exit code 2."""
    if COMPLETE in os.environ:
        importlib.import_module("evorl.cli.completion")  # our own words to the shell
    with one_line_errors():
        cli.main(prog_name="evorl", standalone_mode=False)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What the user can fix is one line and exit code 2; an interruption 130 or 143."""
    from evorl.distributed import is_main_process_of_launch, let_main_speak_first

    try:
        yield
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except (click.ClickException, EvorlError) as error:
        let_main_speak_first()  # it may have the same to say
        for note in getattr(error, "__notes__", ()):
            click.echo(printable(note), err=True)  # it may be an environment's traceback
        click.echo(f"error: {one_line(_describe(error))}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__ or error  # click makes an Abort of it
        if is_main_process_of_launch():
            click.echo("; ".join(["interrupted", *getattr(cause, "__notes__", ())]), err=True)
        sys.exit(getattr(cause, "exit_code", 130))


def _describe(error: Exception) -> str:
    """The message; click's with where to read on."""
    if not isinstance(error, click.ClickException):
        return str(error)
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message.rstrip('.')} (see {context.command_path} --help)" if context else message
