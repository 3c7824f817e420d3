"""evorl --help: the commands under the headings of what one wants to do."""

from collections.abc import Mapping, Sequence
from typing import Any

import click


class Sections(click.Group):
    """A group whose help lists its commands by section, each with its whole short help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[str]] = {}

    def fill(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Take in the commands of each section, in the order in which help shows them."""
        for title, commands in sections.items():
            self.sections[title] = [str(command.name) for command in commands]
            for command in commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Click's, with a heading for each section."""
        wide = max(map(len, self.commands))
        room = formatter.width - 6 - wide
        for title, names in self.sections.items():
            rows = [(f"{name:{wide}}", self._short_help(name, room)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def _short_help(self, name: str, room: int) -> str:
        return self.commands[name].get_short_help_str(room)
