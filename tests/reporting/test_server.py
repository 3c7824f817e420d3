"""What the dashboard answers, and what it refuses."""

import http.client
import json
import re
import threading

import pytest

from evorl.errors import RunError
from evorl.reporting import server as serving
from evorl.reporting.notes import read_notes
from evorl.reporting.server import Dashboard, find_inside
from evorl.runs.directory import RunDirectory
from tests.synthetic import make_run

from .runs import finished, go_on, going, just_begun, snapshot


@pytest.fixture
def folder(tmp_path):
    """Runs, and beside their folder what nobody may read."""
    secret = tmp_path / "secret"
    finished(secret, "hidden")
    (tmp_path / "outside.txt").write_text("secret")
    runs = tmp_path / "runs"
    finished(runs)
    going(runs)
    just_begun(runs / "nested", "begun")
    (runs / "linked").symlink_to(secret / "hidden")
    (runs / "inside").symlink_to(runs / "family")
    make_run(runs, "lined").path.joinpath("metrics.jsonl").symlink_to(tmp_path / "outside.txt")
    return runs


@pytest.fixture
def ask(folder):
    """Ask a dashboard of these runs; (status, headers, body)."""
    with Dashboard(folder, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def call(path, method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer.status, answer.headers, body

        yield call
        server.shutdown()
        thread.join()


def test_the_list(ask):
    status, _, body = ask("/list")
    runs = {run["name"]: run for run in json.loads(body)["runs"]}
    assert status == 200
    assert set(runs) == {"family", "going", "nested/begun", "inside"}
    assert runs["family"]["state"] == "finished"
    assert runs["family"]["score"] == [450.0, 445.0, 455.0]
    assert (runs["going"]["best"], runs["going"]["env_steps"]) == (92.0, 12000)
    assert runs["nested/begun"]["best"] is None


def test_a_damaged_run_is_listed_as_such(ask, folder):
    (folder / "going" / "config.yaml").write_text("env: [")
    runs = {run["name"]: run for run in json.loads(ask("/list")[2])["runs"]}
    assert runs["going"]["state"] == "damaged"
    assert "invalid YAML" in runs["going"]["problem"]
    status, _, body = ask("/data?run=going")
    assert status == 404
    assert b"invalid YAML" in body


def test_data_and_pages(ask, folder):
    before = snapshot(folder)
    status, headers, body = ask("/data?run=family")
    assert status == 200
    assert json.loads(body)["runs"][0]["name"] == "family"
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    for path in ("/", "/report?run=family", "/report?run=family&run=nested%2Fbegun"):
        status, headers, body = ask(path)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert body.startswith(b"<!doctype html>")
    assert snapshot(folder) == before


def test_only_what_has_changed_is_sent(ask, folder):
    _, headers, _ = ask("/data?run=going")
    tag = {"If-None-Match": headers["ETag"]}
    assert ask("/data?run=going", **tag)[::2] == (304, b"")
    go_on(RunDirectory(folder / "going"), 3)
    status, changed, body = ask("/data?run=going", **tag)
    assert (status, changed["ETag"] == headers["ETag"]) == (200, False)
    assert json.loads(body)["runs"][0]["rows"]["generation"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "name",
    [
        "../secret/hidden",
        "..%2fsecret%2fhidden",
        "%2e%2e/secret/hidden",
        "%2e%2e%2fsecret%2fhidden",
        "family/../../secret/hidden",
        "family/../family",
        "./family",
        "family/",
        "/family",
        "//family",
        "..%5Csecret%5Chidden",
        "%252e%252e%252fsecret%252fhidden",
        "family%00",
        "linked",
        "lined",
        "..",
        ".",
        "",
        "nested",
        "missing",
        "a" * 5000,
    ],
)
def test_nothing_outside_of_the_folder(ask, name):
    for path in ("/data", "/report"):
        status, _, body = ask(f"{path}?run={name}")
        assert status == 404
        assert b"hidden" not in body
        assert b"secret" not in body


def test_an_absolute_path_is_refused(ask, folder):
    assert ask(f"/data?run={folder}/family")[0] == 404
    assert ask(f"/data?run=family&run={folder.parent}/secret/hidden")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/../outside.txt",
        "/%2e%2e/outside.txt",
        "//outside.txt",
        "/family/config.yaml",
        "/favicon.ico",
    ],
)
def test_no_files_are_served(ask, path):
    status, _, body = ask(path)
    assert (status, b"secret" in body) == (404, False)


@pytest.mark.parametrize("path", ["/data", "/report", "/data?run=%ff", "/data?run=family&run=%ff"])
def test_addresses_that_make_no_sense(ask, path):
    assert ask(path)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"])
def test_it_can_only_be_read(ask, method):
    assert ask("/", method)[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.0.7", 200),
        ("[", 403),
        ("", 403),
    ],
)
def test_hosts_of_others_are_refused(ask, host, status):
    assert ask("/list", Host=host)[0] == status


@pytest.fixture
def tell(folder):
    """POST to a dashboard of these runs: (status, body); with its token unless told otherwise."""
    with Dashboard(folder, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def call(path, message, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
            known = {"X-Evorl-Token": server.token, "Content-Type": "application/json"}
            body = message if isinstance(message, bytes) else json.dumps(message).encode()
            connection.request("POST", path, body, known | headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        call.server = server
        yield call
        server.shutdown()
        thread.join()


def test_tags_and_notes_are_kept_with_the_run(tell, folder):
    told = {"run": "family", "tags": [" baseline", "baseline", "lr"], "note": "too slow\n"}
    assert tell("/notes", told) == (200, "{}")
    assert read_notes(folder / "family") == (["baseline", "lr"], "too slow")
    listed = tell.server.entry("family", RunDirectory(folder / "family"))
    assert (listed["tags"], listed["note"]) == (["baseline", "lr"], "too slow")
    assert tell("/notes", {"run": "family", "tags": [], "note": ""})[0] == 200
    assert tell.server.entry("family", RunDirectory(folder / "family"))["tags"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Evorl-Token": ""},
        {"X-Evorl-Token": "guessed"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/notes", "/stop"])
def test_nobody_else_may_write(tell, folder, path, headers):
    before = snapshot(folder)
    with RunDirectory(folder / "going").locked():
        status, _ = tell(path, {"run": "going", "tags": ["x"], "note": ""}, **headers)
        assert status == 403
        assert not RunDirectory(folder / "going").asked_to_stop
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[",
        b"x" * 100_000,
        [],
        {"run": ["family"], "tags": [], "note": ""},
        {"run": "../secret/hidden", "tags": [], "note": ""},
        {"run": "linked", "tags": [], "note": ""},
        {"run": "family", "tags": "x", "note": ""},
        {"run": "family", "tags": [1], "note": ""},
        {"run": "family", "tags": ["x"]},
        {"run": "family", "tags": ["x" * 41], "note": ""},
        {"run": "family", "tags": [str(i) for i in range(21)], "note": ""},
        {"run": "family", "tags": [], "note": "x" * 2001},
    ],
    ids=lambda message: str(message)[:40],
)
def test_messages_that_make_no_sense(tell, folder, message):
    before = snapshot(folder.parent)
    status, text = tell("/notes", message)
    assert status == 400
    assert len(text.splitlines()) == 1
    assert snapshot(folder.parent) == before


def test_only_a_run_that_trains_can_be_stopped(tell, folder):
    directory = RunDirectory(folder / "going")
    assert tell("/stop", {"run": "going"})[0] == 400
    assert not directory.asked_to_stop
    with directory.locked():
        assert tell("/stop", {"run": "going"}) == (200, "{}")
        assert directory.asked_to_stop
        assert tell.server.entry("going", directory)["stopping"]


def test_a_dashboard_that_others_can_reach_only_reads(folder):
    with Dashboard(folder, host="0.0.0.0", port=0) as server:
        assert server.token is None


def test_the_token_is_in_its_own_pages_alone(ask):
    (token,) = re.findall('"token":"([^"]{32})"', ask("/")[2].decode())
    assert token in ask("/report?run=family")[2].decode()
    for path in ("/list", "/data?run=family"):
        status, headers, body = ask(path)
        assert status == 200
        assert token not in body.decode() + str(headers)


def test_of_hundreds_of_runs_only_what_has_changed_is_read_again(folder, monkeypatch):
    read = []
    monkeypatch.setattr(serving, "list_entry", lambda name, path: read.append(name) or {})
    with Dashboard(folder, port=0) as server:
        for _ in range(3):
            for name, run in find_inside(folder).items():
                server.entry(name, run)
        assert sorted(read) == ["family", "going", "inside", "nested/begun"]
        go_on(RunDirectory(folder / "going"), 3)
        for name, run in find_inside(folder).items():
            server.entry(name, run)
    assert read[4:] == ["going"]


def test_more_hosts_where_more_may_read(tmp_path):
    with Dashboard(tmp_path, host="0.0.0.0", port=0) as server:
        assert server.public
        assert server.allows("192.168.0.7:8000")
        assert server.allows("localhost")
        assert not server.allows("evil.example")


def test_answers_stay_where_they_are(ask):
    headers = ask("/")[1]
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_folders_that_are_none(tmp_path):
    run = finished(tmp_path).path
    (tmp_path / "file").touch()
    for path, message in (
        (tmp_path / "nothing", "no such folder"),
        (tmp_path / "file", "is a file"),
        (run, "is a run"),
    ):
        with pytest.raises(RunError, match=message):
            Dashboard(path)


def test_links_in_a_circle(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "up").symlink_to(tmp_path)
    assert find_inside(tmp_path) == {}
