"""Arguments and options that several commands have, and what a shell completes for them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evorl.errors import ConfigError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from evorl.reporting import Console

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

RUNS = Path("runs")  # where runs are, unless run.folder says otherwise
CONFIGS = Path("configs")


class KnownPath(click.Path):
    """A path that a shell completes from a list; if nothing in it fits, like any other."""

    def __init__(self, known: Callable[[], Iterator[Path]], kind: str) -> None:
        super().__init__(path_type=Path)
        self.known, self.kind = known, kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """Known paths of which the whole, or the last part, begins like this."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(str(path))
            for path in self.known()
            if str(path).startswith(incomplete) or path.name.startswith(incomplete)
        ]
        return found or [CompletionItem(incomplete, type=self.kind)]


def _runs() -> Iterator[Path]:
    return (file.parent for file in sorted(RUNS.glob("*/config.yaml")))


def _configs() -> Iterator[Path]:
    yield from sorted(Path().glob("*.yaml"))
    # Not accelerate's own, which are for its launcher.
    yield from (p for p in sorted(CONFIGS.rglob("*.yaml")) if "accelerate" not in p.parts)


RUN, CONFIG = KnownPath(_runs, "dir"), KnownPath(_configs, "file")
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
SEED = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Other episodes; the same ones for agents of all runs, in watch and evaluate.",
)
OPEN = click.option("--open", "show", is_flag=True, help="Open it in a browser.")
VERBOSE = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print all agents, where the time went, and who was born from whom.",
)


def agent(help: str = "An agent of the newest checkpoint.") -> Decorator:
    """--agent: another one than the best."""
    return click.option("--agent", type=int, metavar="ID", help=help)


def episodes(default: int, most: int, help: str) -> Decorator:
    """--episodes: how many."""
    kind = click.IntRange(1, most)
    return click.option("--episodes", type=kind, default=default, show_default=True, help=help)


def output(metavar: str, help: str) -> Decorator:
    """--output: where to write."""
    kind = click.Path(path_type=Path)
    return click.option("-o", "--output", type=kind, metavar=metavar, help=help)


def quiet(help: str = "Print the final score only.") -> Decorator:
    """--quiet: print less."""
    return click.option("-q", "--quiet", is_flag=True, help=help)


def make_console(quiet: bool = False, verbose: bool = False) -> "Console":
    """What a command prints on, warnings of Python too."""
    from evorl.reporting import Console, show_warnings_on

    if quiet and verbose:
        raise ConfigError("--verbose: not with --quiet; leave one of them out")
    console = Console(quiet, verbose)
    show_warnings_on(console)
    return console
