"""What the dashboard answers, and what it refuses."""

import http.client
import json
import threading

import pytest

from evorl.errors import RunError
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


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"])
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
