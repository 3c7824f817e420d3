"""evorl schema: what editors complete configuration files by."""

import json

import click


@click.command
@click.option("--markdown", is_flag=True, help="Print a page with all options instead.")
def schema(markdown: bool) -> None:
    """Print the JSON schema of configuration files, by which an editor completes them.

    With --markdown it is a page to read: every option with its type, default and bounds.

    \b
    evorl schema > configs/evorl.schema.json
    evorl schema --markdown > docs/configuration.md
    """
    if markdown:
        from evorl.config import markdown as reference

        click.echo(reference(), nl=False)
    else:
        from evorl.config import json_schema

        click.echo(json.dumps(json_schema(), indent=2))
