"""evorl actor: play for a run that learns in another process, here or elsewhere."""

from pathlib import Path

import click

from evorl.cli.shared import PATH, QUIET, make_console


@click.command
@click.option(
    "--connect",
    "address",
    metavar="tcp://HOST:PORT",
    required=True,
    help="Where the learner listens, as it prints when it begins.",
)
@click.option(
    "--token-file",
    type=PATH,
    metavar="FILE",
    help="File with the run's token; else it is in EVORL_TOKEN.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0.1, 86400),
    default=5.0,
    show_default=True,
    help="Seconds to look for a learner that is not there, or cannot be reached any more.",
)
@QUIET
def actor(address: str, token_file: Path | None, wait: float, quiet: bool) -> None:
    """Play for a run that learns, from now on until it is over or this is stopped.

    The learner needs actors.listen. It has made the token in its folder, as actors-token, for
    its user alone: keep it so, as whoever has it can join, and read what travels. What the run's
    configuration names, such as an environment of your own, must be installed here, or in the
    current folder, as where it learns.

    \b
    evorl train configs/impala/cartpole.yaml actors.listen=0.0.0.0:5555
    evorl actor --connect tcp://10.0.0.1:5555 --token-file actors-token
    EVORL_TOKEN=… evorl actor --connect tcp://10.0.0.1:5555 --wait 3600
    """
    from evorl.training import ending_on_signals, join, read_token

    console = make_console(quiet)
    with ending_on_signals():
        sent = join(address, read_token(token_file), wait, console.say)
    console.say(f"the run is over: {sent} messages sent")
