"""A full disk: one line says so, and the run resumes from its last checkpoint, nothing lost."""

import errno
import os
from pathlib import Path

import pytest

from evorl.errors import RunError
from evorl.runs.agent import read_agent
from evorl.runs.checkpoint import Draft
from evorl.runs.directory import RunDirectory
from evorl.runs.files import write_errors
from tests.runs.test_run_directory import contents, saved
from tests.training.test_saving import again, checkpoints, content, run


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_and_the_half_line_is_never_read(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path, "a")
    directory.append_lineage([{"id": 0}])
    with (directory.path / "lineage.jsonl").open("a") as file:
        file.write('{"id"')  # what the disk took before it said that it is full
    lines = directory.lines()
    assert (lines["metrics.jsonl"], lines["lineage.jsonl"]) == (0, 1)
    directory.cut(lines)
    assert (directory.path / "lineage.jsonl").read_text() == '{"id": 0}\n'
    monkeypatch.setattr("evorl.runs.files.open_regular", full)
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be written: No space left"):
        directory.append_metrics({"generation": 0})


def test_lines_that_are_missing_cannot_be_resumed_from(tmp_path):
    directory = RunDirectory.create(tmp_path, "a")
    directory.append_metrics({"generation": 0})
    before = contents(directory.path)
    with pytest.raises(RunError, match=r"lineage\.jsonl: has 0 of the 2 lines that it had"):
        directory.cut({"metrics.jsonl": 0, "lineage.jsonl": 2})
    assert contents(directory.path) == before


def test_a_best_agent_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path, "a")
    directory.save_best(saved(seed=0))
    before = contents(directory.path)
    monkeypatch.setattr("evorl.runs.agent.save_agent", full)
    with pytest.raises(RunError, match=r"best: cannot be written: No space left"):
        directory.save_best(saved(seed=1))
    assert contents(directory.path) == before


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


def test_a_run_that_a_full_disk_has_ended_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    def append(directory, line, real=RunDirectory.append_metrics):
        if line["generation"] == 2:
            with write_errors(directory.path / "metrics.jsonl"):
                full()
        real(directory, line)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_metrics", append)
        with pytest.raises(RunError, match="No space left on device"):
            run(tmp_path / "full")
    directory = again(RunDirectory.open(tmp_path / "full" / "run"))
    roomy = run(tmp_path / "roomy")
    assert checkpoints(directory) == checkpoints(roomy)
    assert content(directory) == content(roomy)
    assert contents(directory.path / "best") == contents(roomy.path / "best")
    name = "lineage.jsonl"
    assert (directory.path / name).read_bytes() == (roomy.path / name).read_bytes()


def notes_of(error):
    score, best = error.__notes__
    assert score.startswith("held-out score: mean ")
    return Path(best.removeprefix("best agent: "))


@pytest.mark.parametrize("where", ["checkpoint", "summary"])
def test_a_disk_that_is_full_at_the_end_keeps_score_and_agent(tmp_path, monkeypatch, where):
    def write_summary(directory, summary):
        with write_errors(directory.path):
            full()

    def write(draft, stem, tensors, real=Draft.write):
        if draft.path.name.startswith("generation-000002"):
            with draft.writing():
                full()
        return real(draft, stem, tensors)

    if where == "summary":
        monkeypatch.setattr(RunDirectory, "write_summary", write_summary)
    else:
        monkeypatch.setattr(Draft, "write", write)
    with pytest.raises(RunError, match="No space left on device") as caught:
        run(tmp_path, "budget.env_steps=200")
    assert notes_of(caught.value) == tmp_path / "run" / "best"


def test_an_agent_that_finds_no_room_in_the_run_is_kept_elsewhere(tmp_path, monkeypatch):
    def save_best(directory, agent):
        with write_errors(directory.path / "best"):
            full()

    monkeypatch.setattr(RunDirectory, "save_best", save_best)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RunError, match="best: cannot be written: No space") as caught:
        run(tmp_path, "budget.env_steps=100")
    assert read_agent(notes_of(caught.value)).facts["env"] == "CartPole-v1"
