"""The command line, one file a command: `evorl NAME` is the function NAME of evorl/cli/NAME.py.

A command is imported when it is called, and imports what is slow to load when it runs: `evorl
--help` loads click and nothing else.
"""

import importlib

import click

from evorl import __version__
from evorl.cli.errors import one_line_errors

# What `evorl --help` lists: section → command → what it does.
SECTIONS = {
    "Train": {
        "train": "Train as a YAML file says, and print the held-out score.",
        "resume": "Resume a run that was stopped or killed.",
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
        "completion": "Print the script that makes a shell complete evorl.",
    },
}


class Commands(click.Group):
    """A group that imports a command when it is called, and lists commands by section."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command from its own module; `commands` holds its name and short help only."""
        if cmd_name not in self.commands:
            return None
        module = importlib.import_module(f"evorl.cli.{cmd_name}")
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
    with one_line_errors():
        cli.main(prog_name="evorl", standalone_mode=False)
