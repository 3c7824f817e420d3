"""--quiet and --verbose, and what goes into a log file."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import torch

from .answers import CARTPOLE, ROOT, TINY, assert_one_error, everything_in

torch.set_num_threads(1)

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
OPTIONS = [*TINY, "population.size=12", "env.kwargs={max_episode_steps: 25}"]


def rows(out):
    """The ranks of all tables."""
    return [line.split()[0] for line in out.splitlines() if re.match(r" +[0-9]+ ", line)]


def test_large_populations_are_shortened(evorl):
    code, out, err = evorl("train", CARTPOLE, *OPTIONS, "budget.env_steps=1200")
    assert (code, err) == (0, "")
    assert rows(out) == ["1", "2", "3", "4", "5", "6", "7", "8", "12"]
    assert "… 3 more" in out


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_verbose_shows_everybody_and_what_they_differ_in(evorl, flag):
    code, out, err = evorl("train", CARTPOLE, *OPTIONS, "budget.env_steps=2400", flag)
    assert (code, err) == (0, "")
    assert rows(out) == [str(rank) for rank in range(1, 13)] * 2
    assert sum(line.startswith("  hyperparameters: ") for line in out.splitlines()) == 2


def test_a_resumed_run_talks_likewise(evorl):
    stopped = [*OPTIONS, "budget.env_steps=1200"]
    assert evorl("train", CARTPOLE, *stopped, "-q")[0] == 0
    code, out, err = evorl("resume", "runs/cartpole", "budget.env_steps=2400", "--verbose")
    assert (code, err) == (0, "")
    assert rows(out) == [str(rank) for rank in range(1, 13)]
    code, out, err = evorl("resume", "runs/cartpole", "budget.env_steps=3600", "--quiet")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("command", [["train", CARTPOLE], ["resume", "runs/cartpole"]])
def test_both_at_once_are_refused(evorl, tmp_path, command):
    code, out, err = evorl(*command, "--quiet", "--verbose")
    assert_one_error(code, out, err)
    assert everything_in(tmp_path) == {}


@pytest.mark.slow
def test_a_real_terminal(tmp_path):
    """It has a bar and colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
    command = [sys.executable, "-m", "evorl", "train", str(CARTPOLE), *TINY]
    env = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": ""}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    assert process.returncode == 0, shown
    assert "\rtraining: " in shown
    assert COLOUR.search(shown)
    assert "generation 0  200 steps" in COLOUR.sub("", shown)


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""
