"""What a shell completes: run directories and configuration files."""

from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

RUNS = Path("runs")  # where runs are, unless run.folder says otherwise
CONFIGS = Path("configs")


class RunPath(click.Path):
    """A run directory: the runs in runs/, or any other folder."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Runs whose path, or whose name, begins like this; else whatever folder does."""
        found = [CompletionItem(str(run)) for run in _runs() if _begins(run, incomplete)]
        return found or [CompletionItem(incomplete, type="dir")]


class ConfigPath(click.Path):
    """A configuration file: those of configs/ and of this folder, or any other file."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """YAML files whose path, or whose name, begins like this; else whatever file does."""
        found = [CompletionItem(str(file)) for file in _configs() if _begins(file, incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


RUN, CONFIG = RunPath(path_type=Path), ConfigPath(path_type=Path)


def _begins(path: Path, incomplete: str) -> bool:
    return str(path).startswith(incomplete) or path.name.startswith(incomplete)


def _runs() -> Iterator[Path]:
    return (file.parent for file in sorted(RUNS.glob("*/config.yaml")))


def _configs() -> Iterator[Path]:
    yield from sorted(Path().glob("*.yaml"))
    # Not accelerate's own, which are for its launcher.
    yield from (p for p in sorted(CONFIGS.rglob("*.yaml")) if "accelerate" not in p.parts)
