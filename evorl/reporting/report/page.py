"""One self-contained HTML page: template, style, scripts and data, from which no request leaves.

The Content-Security-Policy allows the page's own script and style by their hashes, and nothing
else; a served page may also ask its own server for newer data.
"""

import base64
import hashlib
import html
import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from evorl.errors import RunError, one_line

MARK = "<!doctype html>\n<!-- evorl report -->\n"  # by which a report knows its own
SCRIPTS = (  # in this order, as one script
    "dom.js",
    "format.js",
    "scale.js",
    "colour.js",
    "view.js",
    "tooltip.js",
    "chart.js",
    "lines.js",
    "headline.js",
    "fitness.js",
    "tree.js",
    "hyperparameters.js",
    "mutations.js",
    "architectures.js",
    "training.js",
    "config.js",
    "run.js",
    "compare.js",
    "runs.js",
    "main.js",
)
NONE, SELF = "'none'", "'self'"
ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def render(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page of such data; a live one asks its server for newer data."""
    style, script = _style(), _script()
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
    aside = path.with_name(f".{path.name}.new")
    try:
        if path.is_dir():
            raise RunError(one_line(f"{path}: is a folder; give the name of a file"))
        if path.exists() and path.read_bytes()[: len(MARK)] != MARK.encode():
            raise RunError(
                one_line(f"{path}: exists already and is no report; choose another name")
            )
        try:
            aside.write_text(text, encoding="utf-8")
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(one_line(f"{path}: cannot be written: {reason}")) from None
    except ValueError:  # a null character in the name
        raise RunError(one_line(f"{path}: not the name of a file")) from None


@cache
def _script() -> str:
    parts = "\n".join(_read(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


@cache
def _style() -> str:
    return _read("style.css")


def _read(name: str) -> str:
    return files("evorl.reporting.report").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
