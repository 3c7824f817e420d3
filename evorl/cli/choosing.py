"""Options by which a command is told which agent, and which episodes."""

import click

AGENT = click.option("--agent", type=int, metavar="ID", help="An agent of the newest checkpoint.")
SEED = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Other episodes; the same ones for agents of all runs, in watch and evaluate.",
)
