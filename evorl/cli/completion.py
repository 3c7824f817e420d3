"""What the tab key completes: options of a configuration, and their values.

eval "$(_EVORL_COMPLETE=bash_source evorl)"
"""

from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import BashComplete, add_completion_class

from evorl.errors import ConfigError

ADDS = "COMPREPLY+=($value)"  # in click's script


@add_completion_class
class Bash(BashComplete):
    """No space after `algorithm.lr=`: its value comes next."""

    source_template = BashComplete.source_template.replace(
        ADDS, f"{ADDS}\n            [[ $value == *= ]] && compopt -o nospace"
    )


def find_completions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Options that begin so, or values; bash has `=` as a word of its own."""
    from evorl.config import complete_override

    given, data = list(ctx.params.get(param.name or "") or ()), _read(ctx)
    if given[-1:] == ["="]:
        given.pop()
    elif incomplete or not given or "=" in given[-1]:
        return complete_override(incomplete, data)
    start = f"{given[-1]}="
    return [one.removeprefix(start) for one in complete_override(start + incomplete, data)]


def _read(ctx: click.Context) -> object:
    """What the configuration says that the command is given, or that of its run."""
    from evorl.config import read_yaml

    path = ctx.params.get("config") or Path(ctx.params.get("run") or "", "config.yaml")
    with suppress(ConfigError):
        return read_yaml(path)
    return None
