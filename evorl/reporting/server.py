"""The dashboard: the report's page over HTTP, for this machine unless --host says otherwise.

It reads nothing outside of its folder: an address names runs that were found there. GET knows four
addresses: / and /list (all runs, as a page and as data), /report and /data (some of them:
?run=NAME&run=NAME). POST knows two, /notes and /stop, for this machine only, and only with the
token that its own pages have: so no other site can make a browser ask for that.
"""

import ipaddress
import json
import os
import secrets
import socket
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from evorl import __version__
from evorl.errors import EvorlError, RunError, one_line
from evorl.reporting.notes import NOTES, parse_notes, read_notes, write_notes
from evorl.reporting.page import plain, render
from evorl.reporting.run_data import payload
from evorl.runs import (
    BEST,
    BEST_AGENT,
    CHECKPOINTS,
    CONFIG,
    FAILURE,
    LINEAGE,
    LOCK,
    METRICS,
    SCHEDULE,
    STOP,
    SUMMARY,
    RunDirectory,
    is_run,
    last_change,
    parse_json,
    reason,
    run_error,
    runs_below,
    state_of,
)

FILES = (CONFIG, METRICS, LINEAGE, SUMMARY, FAILURE, SCHEDULE, LOCK, CHECKPOINTS, BEST, BEST_AGENT)
WATCHED = (*FILES, NOTES, STOP)  # that belong to a run
MOST_BYTES = 65_536  # of what a page sends
MILLISECONDS = 3000  # between two questions of a page for newer data
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def find_inside(folder: Path) -> dict[str, RunDirectory]:
    """The runs below a folder by name, such as `lander/7`, last written first; no links out.

    A name that does not print, as one that is not UTF-8, is shown with escapes.
    """
    found = [path for path in runs_below(folder) if _is_inside(folder, path)]
    found.sort(key=lambda path: (-last_change(path), path))
    return {one_line(path.relative_to(folder).as_posix()): RunDirectory(path) for path in found}


def _is_inside(folder: Path, run: Path) -> bool:
    real = os.path.realpath(folder)
    paths = (os.path.realpath(run / name) for name in ("", *WATCHED))
    return all(Path(path).is_relative_to(real) for path in paths)


def fingerprint(directories: Iterable[RunDirectory]) -> str:
    """Changes when a file does that a report reads, and when a run comes, goes, starts or stops."""
    found: list[Any] = []
    for directory in directories:
        found += [str(directory.path), directory.running]
        for name in WATCHED:
            with suppress(OSError):  # not there
                known = (directory.path / name).stat()
                found.append((name, known.st_mtime_ns, known.st_size))
    return f'"{zlib.crc32(repr(found).encode()):08x}"'


def list_entry(name: str, path: Path) -> dict[str, Any]:
    """What a list shows of a run."""
    run = state_of(path)
    shown = {"name": name, "path": str(path), "env": run.env or "", "changed": int(run.changed)}
    asked = run.state == "running" and RunDirectory(path).asked_to_stop
    return dict(plain(run._asdict() | shown | read_notes(path)._asdict() | {"stopping": asked}))


class Dashboard(ThreadingTCPServer):
    """Serves a folder of runs; `address` is where."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024  # of connections that wait: more than a page and its readers open

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 8000) -> None:
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "no such folder"
            raise run_error(folder, f"{what}; give the folder that your runs are in")
        if is_run(folder):
            raise run_error(folder, "is a run; give the folder that it is in, or use evorl report")
        self.folder, self.host = folder, host
        self._entries: dict[str, tuple[str, dict[str, Any]]] = {}  # of the list, by name
        try:
            self.address_family = socket.getaddrinfo(host, port)[0][0]
            super().__init__((host, port), _Handler)
        except OSError as error:
            problem = f"cannot be used: {reason(error).lower()}; choose another, or --port 0"
            raise RunError(f"--host {host} --port {port}: {problem}") from None
        # what lets a page write; where others may read the page, nobody may
        self.token = None if self.public else secrets.token_urlsafe(24)

    def entry(self, name: str, run: RunDirectory) -> dict[str, Any]:
        """A run's place in the list; it is read again only when one of its files has changed."""
        tag = fingerprint([run])
        if name not in self._entries or self._entries[name][0] != tag:
            self._entries[name] = (tag, list_entry(name, run.path))
        return self._entries[name][1]

    @property
    def address(self) -> str:
        """What to type into a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    @property
    def public(self) -> bool:
        """Whether other machines may reach it."""
        return not ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that closes its connection early is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def allows(self, host: str) -> bool:
        """Whether a Host header names this machine: a name that another site's DNS made up doesn't.

        An address made of numbers cannot be made up.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in ("localhost", self.host.lower(), socket.gethostname().lower()):
                ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard
    server_version = f"evorl/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Pages and data."""
        if not self.server.allows(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "not a name of this dashboard's machine")
            return
        try:
            self._answer()
        except ConnectionError:  # the reader has gone
            raise
        except Exception as error:  # half-written, gone since, or made to break its reader
            self._send(HTTPStatus.NOT_FOUND, "text/plain", one_line(str(error)))

    def _answer(self) -> None:
        address = urlsplit(self.path)
        asked = parse_qs(address.query, errors="strict").get("run", [])
        folder = self.server.folder
        runs = find_inside(folder)
        if lists := address.path in ("/", "/list"):
            url, title = "/list", "runs"
        elif address.path in ("/report", "/data") and asked and {*asked} <= runs.keys():
            runs = {name: runs[name] for name in asked}
            url = "/data?" + "&".join(f"run={quote(name, safe='')}" for name in runs)
            title = asked[0] if len(runs) == 1 else f"{len(runs)} runs"
        else:
            raise RunError("there is no such run or page here; the list of runs is at /")
        tag = fingerprint(runs.values())  # before they are read
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, "", "", tag)
            return
        if lists:
            listed = [self.server.entry(name, run) for name, run in runs.items()]
            data = {"folder": str(folder), "runs": listed}
        else:
            data = payload(runs)
        if address.path in ("/", "/report"):
            live = {"url": url, "milliseconds": MILLISECONDS, "tag": tag}
            live["token"] = self.server.token
            kind = "list" if lists else "report"
            page = render({"kind": kind, "data": data, "live": live}, f"{title} – evorl")
            self._send(HTTPStatus.OK, "text/html", page)
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(data, allow_nan=False), tag)

    def do_POST(self) -> None:
        """Tags and notes, and the wish that a run stops; nothing else can be changed."""
        try:
            self._refuse_strangers()
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 <= size <= MOST_BYTES:
                raise ValueError(f"a message has at most {MOST_BYTES} bytes")
            self._write(parse_json(self.rfile.read(size)))
        except PermissionError as error:
            self._refuse(HTTPStatus.FORBIDDEN, error)
        except (EvorlError, OSError, ValueError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, error)
        else:
            self._send(HTTPStatus.OK, "application/json", "{}")

    def _refuse_strangers(self) -> None:
        """PermissionError for whoever does not come from a page of this dashboard."""
        host, token = self.headers.get("Host", ""), self.server.token
        if token is None:
            raise PermissionError("others can reach this dashboard: it can only be read")
        origin = self.headers.get("Origin", f"http://{host}")
        if not self.server.allows(host) or origin != f"http://{host}":
            raise PermissionError("not a page of this dashboard")
        if not secrets.compare_digest(
            self.headers.get("X-Evorl-Token", "").encode(), token.encode()
        ):
            raise PermissionError("not the token of this dashboard; load its page again")

    def _write(self, message: Any) -> None:
        runs = find_inside(self.server.folder)
        name = message.get("run") if isinstance(message, dict) else None
        if not isinstance(name, str) or name not in runs:
            raise RunError("there is no such run here")
        if self.path == "/notes":
            write_notes(runs[name].path, parse_notes(message))
        elif self.path == "/stop":
            if not runs[name].running:
                raise RunError("nobody trains this run now")
            runs[name].ask_to_stop()
        else:
            raise RunError("there is no such address here")

    def _refuse(self, status: HTTPStatus, error: Exception) -> None:
        self.close_connection = True  # what was sent may not have been read
        self._send(status, "text/plain", str(error))

    def _send(self, status: HTTPStatus, kind: str, text: str, tag: str | None = None) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if tag is not None:
            self.send_header("ETag", tag)
        if kind:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not a line for every question of a page."""
