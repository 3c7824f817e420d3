"""One self-contained HTML page: template, style, scripts and data, from which no request leaves.

The Content-Security-Policy allows the page's own script and style by their hashes, and nothing
else; a served page may also ask its own server for newer data.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from evorl.errors import one_line
from evorl.runs import atomic_write, reason, run_error

MARK = "<!doctype html>\n<!-- evorl report -->\n"  # by which a report knows its own
ORDER = (  # of the scripts, which become one
    "dom format scale colour view tooltip chart lines headline fitness tree hyperparameters"
    " mutations architectures training config run compare runs main"
)
SCRIPTS = tuple(f"{name}.js" for name in ORDER.split())
NONE, SELF = "'none'", "'self'"
ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
DIGITS = 7  # significant ones of a number: more than a screen can show


def short(value: float | None) -> float | None:
    """A number with fewer digits; None for what is not finite, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def shorts(values: Iterable[float | None]) -> list[float | None]:
    """Each of them; of an estimate its value, low and high."""
    return [short(value) for value in values]


def render(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page of such data; a live one asks its server for newer data."""
    style, script = _read("style.css"), _script()
    policy = "; ".join(
        (
            f"default-src {NONE}",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data:",
            f"connect-src {SELF if live else NONE}",
            f"base-uri {NONE}",
            f"form-action {NONE}",
        )
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(one_line(title)),
        "style": style,
        "data": json_for_html(data),
        "script": script,
    }
    text = _read("page.html")
    pieces = []
    while "{{" in text:  # once through the template only: data may hold braces, too
        before, _, rest = text.partition("{{")
        name, _, text = rest.partition("}}")
        pieces += [before, parts[name]]
    return MARK + "".join([*pieces, text])


def json_for_html(data: Any) -> str:
    """JSON that no HTML parser takes for the end of its element, whatever names are in it."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(ESCAPES).encode("utf-8", "backslashreplace").decode()


def write_page(path: Path, text: str) -> None:
    """Write the file whole or not at all; only an older report is replaced."""
    try:
        if path.is_dir():
            raise run_error(path, "is a folder; give the name of a file")
        if path.exists() and path.read_bytes()[: len(MARK)] != MARK.encode():
            raise run_error(path, "exists already and is no report; choose another name")
    except OSError as error:
        raise run_error(path, f"cannot be read: {reason(error)}") from None
    except ValueError:  # a null character in the name
        raise run_error(path, "not the name of a file") from None
    atomic_write(path, text)


@cache
def _script() -> str:
    parts = "\n".join(_read(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


@cache
def _read(name: str) -> str:
    return files("evorl.reporting.report").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
