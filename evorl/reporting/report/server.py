"""The dashboard: the report's page over HTTP, for this machine unless --host says otherwise.

It only ever reads, and nothing outside of its folder. It answers GET and HEAD only, and knows four
addresses: / and /list (all runs, as a page and as data), /report and /data (some of them:
?run=NAME&run=NAME).
"""

import errno
import hashlib
import ipaddress
import json
import socket
import sys
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from evorl import __version__
from evorl.errors import EvorlError, RunError
from evorl.reporting.report.page import render, short, shorts
from evorl.reporting.report.run_data import BEST_AGENT, payload, read_run
from evorl.runs import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LINEAGE,
    LOCK,
    METRICS,
    SCHEDULE,
    SUMMARY,
    RunDirectory,
    is_run,
    last_change,
    reason,
    run_error,
    runs_below,
    state_of,
)

FILES = (CONFIG, METRICS, LINEAGE, SUMMARY, SCHEDULE, LOCK, CHECKPOINTS, BEST, BEST_AGENT)
MILLISECONDS = 3000  # between two questions of a page for newer data
MOST_RUNS = 64  # in one comparison
KEPT_REPORTS, KEPT_ENTRIES = 8, 1024  # in memory, until their files change
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class NoSuchRunError(RunError):
    """A name that is no run's, or leads out of the folder: it does not say which."""


class RunsFolder:
    """A folder of runs; a run's name is its path below it, such as `cartpole` or `lander/7`."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            what = "is a file, not a folder" if path.exists() else "no such folder"
            raise run_error(path, f"{what}; give the folder that your runs are in")
        if is_run(path):
            raise run_error(path, "is a run; give the folder that it is in, or use evorl report")
        self.path, self.real = path, path.resolve()

    def run(self, name: str) -> RunDirectory:
        """The run of this name; NoSuchRunError if there is none, or if it leads out of here."""
        path, parts = self.path / name, name.split("/")
        try:
            plain = "\\" not in name and not {"", ".", ".."} & {*parts}
            inside = plain and all(self._inside(path / file) for file in ("", *FILES))
            if inside and is_run(path):
                return RunDirectory(path)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a null character
            pass
        raise NoSuchRunError("no such run in this folder")

    def runs(self) -> dict[str, RunDirectory]:
        """All runs by name, the one that was written to last first."""
        paths: list[Path] = []
        with suppress(OSError):  # gone since
            paths += runs_below(self.path, self._has)
        paths.sort(key=lambda path: (-last_change(path), self._name(path)))
        return {self._name(path): RunDirectory(path) for path in paths}

    def entries(self) -> list[dict[str, Any]]:
        """What a list shows of every run; read again only when its files have changed."""
        return [_entry(name, run.path, fingerprint(run)) for name, run in self.runs().items()]

    def report(self, names: list[str]) -> dict[str, Any]:
        """The data of a page of these runs; read again only when their files have changed."""
        runs = [(name, self.run(name)) for name in names]
        return _report(tuple((name, run.path, fingerprint(run)) for name, run in runs))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _has(self, path: Path) -> bool:
        try:
            self.run(self._name(path))
        except RunError:  # no run, or a link to elsewhere
            return False
        return True

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.real)


Fingerprint = tuple[tuple[int, int] | bool | None, ...]


def fingerprint(directory: RunDirectory) -> Fingerprint:
    """Changes when one of the files does that a report reads, or when a run starts or stops."""
    found: list[tuple[int, int] | bool | None] = [directory.running]
    for name in FILES:
        try:
            known = (directory.path / name).stat()
            found.append((known.st_mtime_ns, known.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


@lru_cache(KEPT_REPORTS)
def _report(runs: tuple[tuple[str, Path, Fingerprint], ...]) -> dict[str, Any]:
    return payload({name: read_run(RunDirectory(path), name) for name, path, _ in runs})


@lru_cache(KEPT_ENTRIES)
def _entry(name: str, path: Path, _: Fingerprint) -> dict[str, Any]:
    run = state_of(path)
    damaged = run.state == "damaged"
    return {
        "name": name,
        "updated": round(run.changed, 3),
        "env": run.env or "",
        "state": run.state,
        "problem": run.problem,
        "score": None if run.score is None else shorts(run.score),
        "best": short(run.best),
        "env_steps": None if damaged else run.env_steps,
        "share": None if damaged else short(run.share),
    }


class Dashboard(ThreadingHTTPServer):
    """Serves a folder of runs; `address` is where."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: RunsFolder, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.folder, self.host = folder, host
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.address_family = found[0][0]
            super().__init__((host, port), _Handler)
        except socket.gaierror:
            raise RunError(f"--host {host}: not an address of this machine") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise RunError(
                    f"--port {port}: in use by another program; choose another, or 0 for any"
                ) from None
            problem = reason(error).lower()
            raise RunError(f"--host {host} --port {port}: cannot be used: {problem}") from None

    @property
    def address(self) -> str:
        """What to type into a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """As HTTPServer's, but without asking a name server for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that closes its connection early is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def allows(self, host: str | None) -> bool:
        """Whether a Host header names this machine: a name that another site's DNS made up doesn't.

        An address made of numbers cannot be made up; it is let through where it can be reached.
        """
        name = _host_name(host)
        if name is None:
            return False
        if name == "localhost" or name == self.host.lower():
            return True
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            return not is_loopback(self.host) and name == socket.gethostname().lower()
        return literal.is_loopback or not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host_name(header: str | None) -> str | None:
    """The name in a Host header, without port and brackets."""
    if not header:
        return None
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard
    server_version = f"evorl/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Pages and data."""
        if not self.server.allows(self.headers.get("Host")):
            self._text(HTTPStatus.FORBIDDEN, "this name is not one of the dashboard's")
            return
        try:
            address = urlsplit(self.path)
            query = parse_qs(address.query, errors="strict", max_num_fields=MOST_RUNS)
        except ValueError:
            self._text(HTTPStatus.BAD_REQUEST, "this address cannot be understood")
            return
        try:
            self._answer(address.path, query.get("run", []))
        except NoSuchRunError as error:
            self._text(HTTPStatus.NOT_FOUND, str(error))
        except (EvorlError, OSError) as error:  # half-written, damaged, or gone since it was found
            self._text(HTTPStatus.CONFLICT, str(error))

    do_HEAD = do_GET

    def _answer(self, path: str, names: list[str]) -> None:
        if path in ("/", "/list"):
            folder = self.server.folder
            data = {"folder": str(folder.path), "runs": folder.entries()}
            self._send_page_or_data(path == "/", "list", data, "runs – evorl", "/list")
        elif path in ("/report", "/data") and names:
            names = list(dict.fromkeys(names))
            data = self.server.folder.report(names)
            title = names[0] if len(names) == 1 else f"{len(names)} runs"
            url = "/data?" + "&".join(f"run={quote(name, safe='')}" for name in names)
            self._send_page_or_data(path == "/report", "report", data, f"{title} – evorl", url)
        else:
            self._text(HTTPStatus.NOT_FOUND, "there is nothing here; the list of runs is at /")

    def _send_page_or_data(
        self, page: bool, kind: str, data: dict[str, Any], title: str, url: str
    ) -> None:
        body = json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if page:
            live = {"url": url, "milliseconds": MILLISECONDS, "tag": tag}
            text = render({"kind": kind, "data": data, "live": live}, title, live=True)
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", text.encode())
        elif self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, None, b"", {"ETag": tag})
        else:
            self._send(HTTPStatus.OK, "application/json", body, {"ETag": tag})

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace"))

    def _send(
        self, status: HTTPStatus, kind: str | None, body: bytes, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (HEADERS | (more or {})).items():
            self.send_header(name, value)
        if kind is not None:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Any other method, or a line that is no request: refused in one line."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "this dashboard can only be read"
        self.close_connection = True
        text = (message or HTTPStatus(code).phrase).encode("utf-8", "backslashreplace")
        self._send(
            HTTPStatus(code),
            "text/plain; charset=utf-8",
            text,
            {"Allow": "GET, HEAD", "Connection": "close"},
        )

    def log_message(self, format: str, *args: object) -> None:
        """Not a line for every question of a page."""
