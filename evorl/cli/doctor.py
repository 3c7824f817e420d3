"""evorl doctor: does this machine have what evorl needs?"""

import sys
from typing import TYPE_CHECKING

import click

from evorl.errors import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from evorl.cli.checks import Finding


@click.command
def doctor() -> None:
    """Check whether this machine has what evorl needs, and say what to do where it has not.

    Each check tries the thing out: an environment makes a step, the compiler compiles, and two
    ranks start and meet. Takes about ten seconds, and sends nothing anywhere. Exit code 1 if
    something that training needs is missing or broken; what is optional says so.

    \b
    evorl doctor
    evorl doctor && evorl train configs/dqn/cartpole.yaml
    """
    from rich.console import Console

    from evorl.cli.checks import CHECKS, Check, examine, two_ranks

    console, failed = Console(), []
    with two_ranks() as meet, console.status("checking") as status:  # they start meanwhile
        for check in (*CHECKS, Check("two ranks", meet, needed=True)):
            status.update(f"checking {check.name}")
            finding = examine(check)
            if check.needed and finding.state != "ok":
                failed.append(check.name)
            console.print(finding_line(check.name, finding, check.needed), soft_wrap=True)
    if failed:
        click.echo(f"not ready: {', '.join(failed)}")
        sys.exit(1)
    click.echo("ready to train")


def finding_line(name: str, finding: "Finding", needed: bool) -> "Text":
    """A check on one line: name, state, what there is, and what to do."""
    from rich.text import Text

    colour = "green" if finding.state == "ok" else "red" if needed else "yellow"
    optional = "" if needed or finding.state == "ok" else " (optional)"
    advice = f"; {finding.advice}" if finding.advice else ""
    what = one_line(f"{finding.what}{optional}{advice}")
    return Text.assemble(f"{name:12}  ", (f"{finding.state:7}", colour), f"  {what}")
