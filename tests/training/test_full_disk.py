"""A disk that is full for a while: the run says so once, goes on, and loses nothing."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import warnings

import pytest

from evorl.errors import RunError
from evorl.pipeline.evaluate import Confirm
from evorl.runs.checkpoint import Draft
from evorl.runs.directory import RunDirectory
from evorl.runs.saved_agent import save_agent
from tests.runs.test_run_directory import contents, saved
from tests.training.test_saving import checkpoints, content, run


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def half_full(monkeypatch):
    """Whether the disk is full: then it takes seven bytes more."""
    state, left = {"full": False}, [7]

    def write(file, data, write=os.write):
        if not state["full"]:
            return write(file, data)
        if not left[0]:
            left[0] = 7
            full()
        count = write(file, data[: left[0]])
        left[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    return state


def test_lines_wait_for_room(tmp_path, half_full):
    directory = RunDirectory.create(tmp_path, "a")
    directory.append_lineage([{"id": 0}])
    half_full["full"] = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for generation in range(3):
            directory.append_metrics({"generation": generation})
            directory.append_lineage([{"id": generation + 1}, {"fitness": generation}])
            assert directory.lines() == {"metrics.jsonl": 0, "lineage.jsonl": 1}
            assert (directory.path / "lineage.jsonl").read_text() == '{"id": 0}\n'
    assert len(caught) == 1
    said = str(caught[0].message)
    assert said.startswith(f"{directory.path / 'metrics.jsonl'}: cannot be written: No space left")
    assert "the run continues" in said
    for demanding in (directory.sync, lambda: directory.write_summary({})):
        with pytest.raises(RunError, match="No space left on device"):
            demanding()
    assert not directory.finished
    half_full["full"] = False
    directory.append_metrics({"generation": 3})
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["generation"] for line in lines] == [0, 1, 2, 3]
    lines = (directory.path / "lineage.jsonl").read_text().splitlines()
    expected = [{"id": 0}]
    for generation in range(3):
        expected += [{"id": generation + 1}, {"fitness": generation}]
    assert [json.loads(line) for line in lines] == expected


def test_the_best_agent_waits_for_room(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path, "a")
    directory.save_best(saved(seed=0))
    before = contents(directory.path)
    with monkeypatch.context() as patch:
        patch.setattr("evorl.runs.saved_agent.save_agent", full)
        with pytest.warns(UserWarning, match=r"best: cannot be written: No space left"):
            directory.save_best(saved(seed=1))
        assert contents(directory.path) == before
        with pytest.raises(RunError, match="No space left"):
            directory.write_summary({})
    directory.append_metrics({})  # at the next generation
    save_agent(tmp_path / "expected", saved(seed=1))
    assert contents(directory.path / "best") == contents(tmp_path / "expected")


CALLS = ("mkdir", "rename", "rmdir", "unlink", "open")


class Killed(BaseException):
    """The process is gone: nothing after this can clean up."""


def fail_at(patch, left, error):
    """Of so many calls that are left, the last one raises; a killed process makes no more."""

    def failing(real):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0 or (left[0] < 0 and isinstance(error, Killed)):
                raise error
            return real(*arguments, **options)

        return call

    for name in CALLS:
        patch.setattr(os, name, failing(getattr(os, name)))


@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "full")], ids=["killed", "full"])
@pytest.mark.filterwarnings("ignore:.*the run continues")
def test_at_any_call_there_is_an_old_or_a_new_best(tmp_path, error):
    save_agent(tmp_path / "new", saved(seed=1))
    moments = 0
    for number in range(1, 100):
        folder = tmp_path / str(number)
        directory = RunDirectory.create(folder, "a")
        directory.save_best(saved(seed=0))
        left = [number]
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, left, error)
            with contextlib.suppress(Killed):
                directory.save_best(saved(seed=1))
        again = RunDirectory(directory.path)
        assert again.best().genome == saved().genome  # it can be read
        if left[0] > 0:
            break
        moments += 1
        again.save_best(saved(seed=1))  # resuming does
        assert contents(directory.path / "best") == contents(tmp_path / "new")
        assert os.listdir(directory.path) == ["best"]
    assert moments > 4


def test_a_new_best_counts_when_its_checkpoint_is_there(tmp_path, monkeypatch):
    """It is marked in the next one, if it could not be committed."""
    marks = {}

    def commit(draft, state, files, best=False, real=Draft.commit):
        generation = int(draft.final.name[-6:])
        marks[generation] = best
        if generation == 1:
            with draft.writing():
                full()
        return real(draft, state, files, best)

    monkeypatch.setattr(Draft, "commit", commit)
    with pytest.warns(UserWarning, match="no checkpoint this time"):
        run(tmp_path, "budget.env_steps=200")
    assert marks == {1: True, 2: True}


def test_lines_are_on_the_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    happened = []

    def fsync(descriptor, real=os.fsync):
        happened.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    def commit(draft, *arguments, real=Draft.commit, **options):
        happened.append("commit")
        return real(draft, *arguments, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Draft, "commit", commit)
    run(tmp_path, "budget.env_steps=200")
    since = []
    for what in happened:
        if what == "commit":
            assert {"metrics.jsonl", "lineage.jsonl", "run"} <= set(since)
            since.clear()
        since.append(what)
    assert happened.count("commit") == 2
    start = happened[: happened.index("config.yaml.new")]
    assert "lineage.jsonl" in start


@pytest.fixture
def disk(tmp_path):
    """A small one of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_whole_run_on_a_disk_that_is_full_for_two_generations(disk, tmp_path, monkeypatch):
    def fill(confirm, context, real=Confirm.__call__):
        if context.generation == 1:
            with contextlib.suppress(OSError), (disk / "filling").open("wb") as file:
                while True:
                    os.write(file.fileno(), bytes(512))
        if context.generation == 3:
            (disk / "filling").unlink()
        real(confirm, context)

    def longer(directory, line, real=RunDirectory.append_metrics):
        real(directory, line | {"more": "x" * 5000})  # than what is left of the file's last page

    monkeypatch.setattr(Confirm, "__call__", fill)
    monkeypatch.setattr(RunDirectory, "append_metrics", longer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        directory = run(disk)
    monkeypatch.undo()
    said = [str(warning.message) for warning in caught]
    assert len([line for line in said if "the run continues" in line]) == 1, said
    assert len([line for line in said if "no checkpoint this time" in line]) == 2, said
    roomy = run(tmp_path / "roomy")
    assert checkpoints(directory)[-1] == checkpoints(roomy)[-1] == "generation-000004"
    ours, theirs = content(directory), content(roomy)
    ours.pop("manifest.json"), theirs.pop("manifest.json")  # which says when the best was new
    assert ours == theirs
    assert contents(directory.path / "best") == contents(roomy.path / "best")
    name = "lineage.jsonl"
    assert (directory.path / name).read_bytes() == (roomy.path / name).read_bytes()
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["generation"] for line in lines] == [0, 1, 2, 3]
