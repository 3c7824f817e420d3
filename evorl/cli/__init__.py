"""The command line, one file a command.

Commands import what is slow to load only when they run: `evorl --help` needs none of it.
"""

import sys

import click

from evorl import __version__
from evorl.cli.compare import compare
from evorl.cli.evaluate import evaluate
from evorl.cli.export import export
from evorl.cli.lineage import lineage
from evorl.cli.resume import resume
from evorl.cli.schedule import schedule
from evorl.cli.schema import schema
from evorl.cli.train import train
from evorl.cli.watch import watch
from evorl.distributed.launch import is_main_process_of_launch, let_main_speak_first
from evorl.errors import EvorlError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evorl")
def cli() -> None:
    """Train and evolve populations of reinforcement-learning agents."""


for _command in (train, resume, lineage, schedule, compare, watch, evaluate, export, schema):
    cli.add_command(_command)


def main() -> None:
    """Run the command line: an error that the user can mend is one line, and exit code 2."""
    sys.path.insert(0, "")  # `module:Env-v0` ids: the user's own module, beside them
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
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
        sys.exit(getattr(error.__cause__, "exit_code", 130))  # click makes an Abort of it
