"""evorl doctor: does this machine have what evorl needs?"""

import sys
from typing import TYPE_CHECKING

import click

from evorl.config.yaml_text import one_line
from evorl.reporting.console import Console

if TYPE_CHECKING:
    from rich.text import Text

    from evorl.doctor import Finding


@click.command(short_help="Check this machine: what works, what is missing, what to do.")
def doctor() -> None:
    """Check whether this machine has what evorl needs, and say what to do where it has not.

    Each check tries the thing out: an environment makes a step, the compiler compiles, and two
    ranks start and meet. Takes about ten seconds, and sends nothing anywhere. Exit code 1 if
    something that training needs is missing or broken; what is optional says so.

    \b
    evorl doctor
    evorl doctor && evorl train configs/dqn/cartpole.yaml
    """
    from evorl.doctor import CHECKS, Check, TwoRanks, examine

    console, failed = Console(), []
    with TwoRanks() as two_ranks:  # they start while the others are looked at
        checks = [*CHECKS, Check("two ranks", two_ranks, needed=True)]
        console.start(len(checks), "checking", "check")
        try:
            for check in checks:
                console.show(check.name)
                finding = examine(check)
                if check.needed and finding.state != "ok":
                    failed.append(check.name)
                console.say(finding_line(check.name, finding, check.needed))
                console.advance(1)
        finally:
            console.close()
    if failed:
        click.echo(f"not ready: {', '.join(failed)}")
        sys.exit(1)
    click.echo("ready to train")


def finding_line(name: str, finding: "Finding", needed: bool) -> "Text":
    """A check on one line: name, state, what was found, and what to do."""
    from rich.text import Text

    colour = "green" if finding.state == "ok" else "red" if needed else "yellow"
    optional = "" if needed or finding.state == "ok" else " (optional)"
    advice = f"; {finding.advice}" if finding.advice else ""
    what = one_line(f"{finding.what}{optional}{advice}")
    return Text.assemble(f"{name:12}  ", (f"{finding.state:7}", colour), f"  {what}")
