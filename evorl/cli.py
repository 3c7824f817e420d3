"""The command line: evorl train, evorl schema."""

import json
import sys
from pathlib import Path

import click

from evorl import __version__
from evorl.config import json_schema, load_config
from evorl.console import Console, show_warnings_on
from evorl.errors import EvorlError
from evorl.score import Estimate
from evorl.trainer import train as run_training


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evorl")
def cli() -> None:
    """Train populations of reinforcement-learning agents."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("-q", "--quiet", is_flag=True, help="Print the final score only.")
def train(config: Path, overrides: tuple[str, ...], quiet: bool) -> None:
    """Train as the YAML file CONFIG says, and print the held-out score.

    \b
    evorl train configs/dqn/cartpole.yaml
    evorl train configs/dqn/lunar_lander.yaml population.size=8 algorithm.lr=1e-3 seed=7
    """
    console = Console(quiet)
    show_warnings_on(console)
    result = run_training(load_config(config, overrides), console)
    score = result.score
    click.echo(
        f"held-out score over {score.episodes} episodes: mean {_show(score.mean)},"
        f" IQM {_show(score.iqm)}"
    )
    click.echo(f"best agent, metrics and summary: {result.directory.path}")


@cli.command()
def schema() -> None:
    """Print the JSON schema of configuration files, by which an editor completes them.

    \b
    evorl schema > configs/evorl.schema.json
    """
    click.echo(json.dumps(json_schema(), indent=2))


def main() -> None:
    """Run the command line: an error that the user can mend is one line, and exit code 2."""
    sys.path.insert(0, "")  # `module:Env-v0` ids: the user's own module, beside them
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except EvorlError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)


def _show(estimate: Estimate) -> str:
    return f"{estimate.value:.1f} (95 % interval {estimate.low:.1f} to {estimate.high:.1f})"
