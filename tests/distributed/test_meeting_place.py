"""Ranks of one machine meet where no stranger is, and do not outlive their launcher."""

import json
import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from evorl.distributed import meeting_place
from evorl.distributed.meeting_place import PREFIX, enter_place, leave, make_place, on_loopback
from evorl.errors import RunError

from .runs import Run, wait_for

MEET = """
import json, os, pathlib, sys, time
import psutil
import torch.distributed as dist
import evorl
from evorl.distributed.launcher import read_on_main_rank

def listening():
    own = psutil.Process().net_connections("inet")
    return {one.laddr for one in own if one.status == psutil.CONN_LISTEN}

rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
inherited = listening()  # from the launcher, as this process is forked
launcher = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
for name in ("config", "evorl/attempt0/config", "default_pg/0/0"):
    launcher.set(name, "a stranger's")  # whoever reaches that port can do so
said = read_on_main_rank(lambda: "the main rank's")
world = evorl.World.start(agents=2, timeout=600.0)
listens = [address.ip for address in listening() - inherited]
told = world.broadcast_json(int(rank) + 1)
(folder / f"said.{rank}.new").write_text(json.dumps([said, told, listens]))
(folder / f"said.{rank}.new").rename(folder / f"said.{rank}")
if rank == "0":
    time.sleep(600)
world.receive(0)  # within torch, where no signal is heard
"""


def is_gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_what_a_stranger_writes_reaches_no_rank_and_a_killed_launcher_ends_all(tmp_path):
    (tmp_path / "meet.py").write_text(MEET)
    run = Run(tmp_path, tmp_path, ranks=2, script=tmp_path / "meet.py")
    said = [tmp_path / f"said.{rank}" for rank in range(2)]
    try:
        wait_for(lambda: run.launcher.poll() is not None or all(map(Path.exists, said)), limit=120)
        for path in said:
            assert path.exists(), run.said()
            text, told, listens = json.loads(path.read_text())
            assert (text, told, set(listens)) == ("the main rank's", 1, {"127.0.0.1"})
        ranks = run.ranks()
        assert len(ranks) == 2
        run.kill([run.launcher])
        begun = time.monotonic()
        wait_for(lambda: all(is_gone(rank) for rank in ranks))
        assert time.monotonic() - begun < 15  # ten, and what a busy machine takes
    finally:
        run.kill()
    assert "the launcher is gone; resume the run" in run.said()


def test_the_last_one_who_leaves_removes_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = make_place()
    assert path.stat().st_mode & 0o777 == 0o700
    pid = os.fork()
    if not pid:
        meeting_place._locks.clear()
        enter_place(path)
        time.sleep(0.2)
        os._exit(0)
    leave(path)
    assert path.exists()
    os.waitpid(pid, 0)
    meeting_place.remove_left_folders()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["missing", "open", "other", "link", "file"])
def test_no_other_folder_is_entered(tmp_path, kind):
    path = tmp_path / (f"{PREFIX}x" if kind != "other" else "folder")
    if kind == "file":
        path.touch(0o600)
    elif kind == "link":
        (tmp_path / "private").mkdir(0o700)
        path.symlink_to(tmp_path / "private")
    elif kind != "missing":
        path.mkdir(0o755 if kind == "open" else 0o700)
    with pytest.raises(RunError, match="is no folder in which ranks of this user meet"):
        enter_place(path)
    assert not (path / "store").exists()


def test_what_a_user_has_chosen_stays(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with on_loopback(True):
        assert os.environ["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    with on_loopback(True):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
