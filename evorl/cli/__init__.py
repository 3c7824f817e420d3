"""The command line, one file a command.

Commands import what is slow to load only when they run: `evorl --help` needs none of it.
"""

import sys

import click

from evorl import __version__
from evorl.cli.compare import compare
from evorl.cli.errors import one_line_errors
from evorl.cli.lineage import lineage
from evorl.cli.resume import resume
from evorl.cli.schedule import schedule
from evorl.cli.schema import schema
from evorl.cli.train import train


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evorl")
def cli() -> None:
    """Train and evolve populations of reinforcement-learning agents."""


for _command in (train, resume, lineage, schedule, compare, schema):
    cli.add_command(_command)


def main() -> None:
    """Run the command line: an error that the user can mend is one line, and exit code 2."""
    sys.path.insert(0, "")  # `module:Env-v0` ids: the user's own module, beside them
    with one_line_errors():
        cli.main(standalone_mode=False)
