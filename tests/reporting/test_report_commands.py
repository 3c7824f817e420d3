"""evorl report and evorl dashboard as a user meets them."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser

import pytest
from click.testing import CliRunner

from evorl.cli import cli
from evorl.reporting.page import MARK

from .runs import finished, going, snapshot


def test_a_report_goes_into_the_run(evorl, tmp_path):
    run = finished(tmp_path).path
    code, out, err = evorl("report", "family")
    assert (code, out, err) == (0, "report: family/report.html\n", "")
    assert (run / "report.html").read_text().startswith(MARK)


def test_several_runs_go_beside_them(evorl, tmp_path):
    finished(tmp_path)
    going(tmp_path)
    assert evorl("report", "family", "going")[:2] == (0, "report: report.html\n")
    before = snapshot(tmp_path)
    assert evorl("report", "family", "going", "-o", "both.html")[0] == 0
    (tmp_path / "both.html").unlink()
    assert snapshot(tmp_path) == before


def test_a_browser_opens_it(evorl, tmp_path, monkeypatch):
    finished(tmp_path)
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)))
    code, _, err = evorl("report", "family", "--open")
    assert (code, opened) == (0, [(tmp_path / "family" / "report.html").as_uri()])
    assert "open the file yourself" in err


@pytest.mark.parametrize("command", ["report", "dashboard"])
def test_refusals_are_one_line_and_change_nothing(evorl, tmp_path, command):
    finished(tmp_path, "damaged")
    (tmp_path / "damaged" / "metrics.jsonl").write_text("half")
    (tmp_path / "damaged" / "lineage.jsonl").write_text("what?\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    before = snapshot(tmp_path)
    paths = ["missing", "file", "damaged", "a\nb"] + (["empty"] if command == "report" else [])
    for path in paths:
        code, out, err = evorl(command, path)
        assert (code, out) == (2, ""), path
        assert len(err.splitlines()) == 1, err
        assert err.startswith("error: ")
    assert snapshot(tmp_path) == before


def test_a_port_in_use_is_one_line(evorl, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, err = evorl("dashboard", tmp_path, "--port", taken.getsockname()[1])
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: --host .* --port \d+: .* address already in use; .*\n", err)
    code, _, err = evorl("dashboard", tmp_path, "--host", "no.such.host.invalid", "--port", 0)
    assert code == 2
    assert "no.such.host.invalid" in err


@pytest.mark.slow
@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_the_dashboard_serves_until_interrupted(tmp_path, host, warned):
    finished(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "evorl", "dashboard", tmp_path, "--port", "0", "--host", host],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stdout.readline()
        port = re.search(r":(\d+)/ \(Ctrl-C ends it\)", said).group(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert b"family" in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert ("without a password" in err) == warned


@pytest.mark.parametrize("command", ["report", "dashboard"])
def test_help_has_examples(command):
    text = CliRunner().invoke(cli, [command, "--help"]).output
    assert f"  evorl {command}" in text
