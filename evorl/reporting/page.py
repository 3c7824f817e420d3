"""One self-contained HTML page: template, style, scripts and data, from which no request leaves.

The Content-Security-Policy allows the page's own script and style by their hashes, and nothing
else; a served page may also ask its own server for newer data.
"""

import base64
import hashlib
import html
import json
import math
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from evorl.errors import one_line
from evorl.runs import atomic_write, read_bytes, run_error

MARK = "<!doctype html>\n<!-- evorl report -->\n"  # by which a report knows its own
ORDER = (  # of the scripts, which become one
    "dom format scale colour view tooltip chart lines headline fitness tree hyperparameters"
    " parallel importance mutations architectures training actors config"
    " run bands compare notes runs main"
)
SCRIPTS = tuple(f"{name}.js" for name in ORDER.split())
ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def plain(data: Any) -> Any:
    """Data for JSON: seven digits of a number are more than a screen can show."""
    match data:
        case float():
            return float(f"{data:.7g}") if math.isfinite(data) else None
        case str():  # what is no Unicode, as parts of names, breaks scripts
            return data.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {plain(key): plain(value) for key, value in data.items()}
        case list() | tuple():
            return [plain(value) for value in data]
    return data


def render(data: dict[str, Any], title: str) -> str:
    """The page of such data: its kind, what it shows, and `live` if a server has newer data."""
    style, script = _read("style.css"), _script()
    connect = "'self'" if data.get("live") else "'none'"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        f" img-src data:; connect-src {connect};"
        " base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(one_line(title)),
        "style": style,
        "data": json_for_html(data),
        "script": script,
    }
    return MARK + re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], _read("page.html"))


def json_for_html(data: Any) -> str:
    """JSON that no HTML parser takes for the end of its element, whatever names are in it."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(ESCAPES).encode("utf-8", "backslashreplace").decode()


def write_page(path: Path, text: str) -> None:
    """Write the file whole or not at all; only an older report is replaced."""
    if path.exists() and not read_bytes(path).startswith(MARK.encode()):
        raise run_error(path, "exists already and is no report; choose another name")
    atomic_write(path, text)


@cache
def _script() -> str:
    parts = "\n".join(_read(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


@cache
def _read(name: str) -> str:
    return files("evorl.reporting").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
