"""Processes of the tests that are forked: as those that a user starts."""

import json
import signal
import subprocess
from contextlib import suppress

import pytest

from .runs import Run, wait_for

pytestmark = pytest.mark.slow

SCRIPT = """
import atexit, json, os, signal, sys, tempfile, time
names = ("OWN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
names += ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_MAX_RESTARTS")
found = {name: os.environ.get(name) for name in names}
found["handlers"] = [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
found |= {"words": sys.argv, "path": sys.path[0], "folder": os.getcwd(), "name": __name__}
found |= {"input": sys.stdin.read(), "temporary": tempfile.gettempdir() == os.environ["TMPDIR"]}
rank = os.environ.get("RANK", "0")
with open(f"found-{rank}", "w") as file:
    json.dump(found, file)
atexit.register(lambda: open(f"left-{rank}", "w").close())
if sys.argv[1] == "wait":
    open(f"waiting-{rank}", "w").close()
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


def run(folder, word, ranks, real):
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = {"OWN": "1"}
    return Run(folder, word, ranks=ranks, script=script, environment=environment, real=real)


@pytest.mark.parametrize("ranks", [1, 2])
def test_they_find_what_a_users_processes_find(tmp_path, monkeypatch, ranks):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = []
    for real in (True, False):
        folder = tmp_path / str(real)
        assert run(folder, "0", ranks, real).wait()[0] == 0
        texts = [(folder / f"found-{rank}").read_text() for rank in range(ranks)]
        found.append([json.loads(text.replace(str(folder), "FOLDER")) for text in texts])
        assert all((folder / f"left-{rank}").exists() for rank in range(ranks))
    assert found[0] == found[1]


@pytest.mark.parametrize(("ranks", "code"), [(1, 3), (2, 1)])
def test_they_end_with_the_exit_code_of_a_users(tmp_path, ranks, code):
    """A launcher has its own."""
    assert run(tmp_path / "forked", "3", ranks, real=False).wait()[0] == code


def test_a_signal_ends_them(tmp_path):
    folder = tmp_path / "forked"
    started = run(folder, "wait", 2, real=False)
    wait_for(lambda: all((folder / f"waiting-{rank}").exists() for rank in range(2)))
    assert len(started.ranks()) == 2
    for _ in range(20):  # the launcher's handler may raise in a place where Python ignores it
        started.launcher.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            started.launcher.wait(5)
            break
    assert started.wait()[0] == 1
