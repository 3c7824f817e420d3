"""The dashboard: the report's page over HTTP, for this machine unless told otherwise.

It only ever reads, answers GET and HEAD only, and knows four addresses: / and /list (all runs, as a
page and as data), /report and /data (some of them: ?run=NAME&run=NAME).
"""

import errno
import hashlib
import ipaddress
import socket
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from evorl import __version__
from evorl.errors import EvorlError, RunError
from evorl.reporting.report.folder import (
    NoSuchRunError,
    RunsFolder,
    as_bytes,
    fingerprint,
    list_payload,
)
from evorl.reporting.report.page import render
from evorl.reporting.report.payload import payload
from evorl.reporting.report.run_data import read_run

MILLISECONDS = 3000  # between two questions of a page for newer data
MOST_RUNS = 64  # in one comparison
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Dashboard(ThreadingHTTPServer):
    """Serves a folder of runs; `address` is where."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: RunsFolder, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.folder, self.host = folder, host
        self.cache = _Cache(folder)
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
            reason = (error.strerror or str(error)).lower()
            raise RunError(f"--host {host} --port {port}: cannot be used: {reason}") from None

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


class _Cache:
    """Reports as they were last read: a run is read again when one of its files has changed."""

    def __init__(self, folder: RunsFolder) -> None:
        self.folder = folder
        self.known: dict[tuple[str, ...], tuple[object, dict[str, Any]]] = {}

    def __call__(self, names: Sequence[str]) -> dict[str, Any]:
        directories = {name: self.folder.run(name) for name in names}
        mark = [fingerprint(one) for one in directories.values()]
        found = self.known.get(tuple(names))
        if found is None or found[0] != mark:
            if len(self.known) > MOST_RUNS:
                self.known.clear()
            runs = {name: read_run(one, name) for name, one in directories.items()}
            found = self.known[tuple(names)] = (mark, payload(runs))
        return found[1]


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
            data = list_payload(self.server.folder)
            self._send_page_or_data(path == "/", "list", data, "runs – evorl", "/list")
        elif path in ("/report", "/data") and names:
            names = list(dict.fromkeys(names))
            data = self.server.cache(names)
            title = names[0] if len(names) == 1 else f"{len(names)} runs"
            url = "/data?" + "&".join(f"run={quote(name, safe='')}" for name in names)
            self._send_page_or_data(path == "/report", "report", data, f"{title} – evorl", url)
        else:
            self._text(HTTPStatus.NOT_FOUND, "there is nothing here; the list of runs is at /")

    def _send_page_or_data(
        self, page: bool, kind: str, data: dict[str, Any], title: str, url: str
    ) -> None:
        body = as_bytes(data)
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
