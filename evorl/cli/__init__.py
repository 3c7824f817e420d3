"""The command line, one file a command.

Commands import what is slow to load only when they run: `evorl --help` needs none of it.
"""

import sys

import click

from evorl import __version__
from evorl.cli.compare import compare
from evorl.cli.completion import completion
from evorl.cli.dashboard import dashboard
from evorl.cli.doctor import doctor
from evorl.cli.errors import one_line_errors
from evorl.cli.evaluate import evaluate
from evorl.cli.export import export
from evorl.cli.init import init
from evorl.cli.lineage import lineage
from evorl.cli.report import report
from evorl.cli.resume import resume
from evorl.cli.runs import runs
from evorl.cli.schedule import schedule
from evorl.cli.schema import schema
from evorl.cli.sections import Sections
from evorl.cli.train import train
from evorl.cli.watch import watch


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evorl")
def cli() -> None:
    """Train and evolve populations of reinforcement-learning agents.

    \b
    evorl init CartPole-v1
    evorl train cart_pole.yaml
    evorl lineage runs/cart_pole
    """


cli.fill(
    {
        "Train": (train, resume),
        "Look": (runs, report, dashboard, lineage, schedule, compare),
        "Ship": (watch, evaluate, export),
        "Set up": (init, doctor, schema, completion),
    }
)


def main() -> None:
    """Run the command line: an error that the user can mend is one line, and exit code 2."""
    sys.path.insert(0, "")  # `module:Env-v0` ids: the user's own module, beside them
    with one_line_errors():
        cli.main(standalone_mode=False)
