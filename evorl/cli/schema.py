"""evorl schema: what editors complete configuration files by."""

import json

import click

from evorl.config import json_schema


@click.command(short_help="Print the schema of configuration files, for editors.")
def schema() -> None:
    """Print the JSON schema of configuration files, by which an editor completes them.

    \b
    evorl schema > configs/evorl.schema.json
    """
    click.echo(json.dumps(json_schema(), indent=2))
