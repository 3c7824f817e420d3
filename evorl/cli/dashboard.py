"""evorl dashboard: all runs in a browser, while they train."""

from pathlib import Path

import click

from evorl.cli.options import OPEN


@click.command
@click.argument(
    "folder", required=False, default="runs", type=click.Path(path_type=Path), metavar="[RUNS]"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Where it listens; 0 takes any free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Who may read it: this machine only, or all that can reach this address.",
)
@OPEN
def dashboard(folder: Path, port: int, host: str, show: bool) -> None:
    """Show all runs in the folder RUNS (runs, if left out) in a browser, until Ctrl-C.

    A run's page is that of `evorl report`, and follows the run while it trains. The dashboard only
    reads, and never anything outside of the folder. To see it from another machine, better keep to
    this one and use `ssh -L 8000:localhost:8000 MACHINE`: --host has no password.

    \b
    evorl dashboard
    evorl dashboard runs/lunar_lander --port 8080 --open
    """
    from evorl.reporting import Dashboard

    with Dashboard(folder, host, port) as server:
        click.echo(f"dashboard of {folder}: {server.address} (Ctrl-C ends it)")
        if server.public:
            click.echo(
                f"warning: everybody who can reach {host} can read these runs, without a password",
                err=True,
            )
        if show:
            import webbrowser

            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("\ndashboard ended", err=True)
