"""Files that are somebody else's: links, pipes and large ones are refused at once."""

import os
import threading

import pytest

from evorl.errors import RunError, WriteError
from evorl.runs import files
from evorl.runs.directory import RunDirectory


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="cannot be read: is no regular file"):
        files.read_bytes(tmp_path / "pipe")
    with pytest.raises(WriteError, match="cannot be written"):
        files.append_lines(tmp_path / "pipe", [{}])


def test_a_link_is_neither_read_nor_written(tmp_path):
    (tmp_path / "secret").write_text("mine\n")
    for name in ("link", "file.new"):
        (tmp_path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(RunError, match="link: cannot be read: is a symbolic link"):
        files.read_bytes(tmp_path / "link")
    with pytest.raises(WriteError, match="link: cannot be written: is a symbolic link"):
        files.append_lines(tmp_path / "link", [{}])
    files.atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "secret").read_text() == "mine\n"


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(RunError, match="is larger than 10 bytes"):
        files.read_bytes(tmp_path / "large")


@pytest.mark.parametrize(
    "text",
    ["1" + "0" * 400, "NaN", "-Infinity", "1e999", "[" * 10**5, '"\x00', "\ud800"],
    ids=["whole", "NaN", "infinite", "float", "deep", "cut off", "no Unicode"],
)
def test_no_json_of_ours(text):
    with pytest.raises(ValueError, match="invalid JSON"):
        files.parse_json(text.encode("utf-8", "surrogatepass"))


def test_no_thread_is_started_while_saving(tmp_path, monkeypatch):
    """One that starts when there is no memory left dies, and is waited for for ever."""
    files.sync(tmp_path)

    def start(thread):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", start)
    paths = [tmp_path / str(number) for number in range(50)]
    for path in paths:
        path.touch()
    files.sync(*paths)


def test_only_its_user_may_read_a_token(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    token = directory.token()
    assert (directory.path / "actors-token").stat().st_mode & 0o777 == 0o600
    assert directory.token() == token
