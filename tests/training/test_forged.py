"""Checkpoints that are forged, with right checksums: refused in one line, before any use."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load, save

from evorl.errors import CheckpointError, RunError
from evorl.runs.directory import RunDirectory

from .test_saving import again, run

PLACE = "checkpoints/generation-000002"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run of two generations whose replays have priorities."""
    options = ("budget.env_steps=200", "replay.share=agent", "replay.kind=prioritized")
    return run(tmp_path_factory.mktemp("template"), *options).path


@pytest.fixture
def directory(template, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(template, path)
    shutil.rmtree(path / "checkpoints" / "generation-000001")
    (path / "config.yaml").write_text(
        (path / "config.yaml").read_text().replace(str(template.parent), str(tmp_path))
    )
    return RunDirectory(path)


def seal(path, facts):
    facts.pop("sha256", None)
    checksum = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(facts | {"sha256": checksum}))


def forge(directory, where, value):
    """Another value, or none (...), at a place of the manifest."""
    path = directory.path / PLACE
    facts = node = json.loads((path / "manifest.json").read_bytes())
    *way, last = where
    for key in way:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    seal(path, facts)


def forge_tensor(directory, stem, name, change):
    path = directory.path / PLACE
    file = path / f"{stem}.safetensors"
    tensors = load(file.read_bytes())
    tensors[name] = change(tensors[name])
    file.write_bytes(save(tensors))
    facts = json.loads((path / "manifest.json").read_bytes())
    facts["files"][stem] = hashlib.sha256(file.read_bytes()).hexdigest()
    seal(path, facts)


def refused(directory, says=None):
    """Resuming ends in one line, and nothing has been written but the lock, which is gone."""
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    with pytest.raises((CheckpointError, RunError)) as caught:
        again(directory, "budget.env_steps=300")
    assert "\n" not in str(caught.value)
    assert says is None or says in str(caught.value)
    after = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    assert after == before


STATE = ("state",)
AGENT = ("state", "agents", 0)
GENOME = (*AGENT, "genome")
FORGED = [
    (("generation",), "2"),
    (("files",), ["population"]),
    (("files", "../../outside"), "0"),
    (STATE, []),
    ((*STATE, "agents"), []),
    ((*STATE, "context"), ...),
    ((*STATE, "context", "env_steps"), -(10**15)),
    ((*STATE, "context", "env_steps"), 10**40),
    ((*STATE, "context", "places"), 10**9),
    ((*STATE, "context", "begins"), "0"),
    ((*STATE, "lines"), {}),
    ((*STATE, "mesh"), None),
    ((*STATE, "stages", "evolve", "next_id"), None),
    ((*STATE, "stages", "evolve", "explore"), [["x"]]),
    ((*STATE, "stages", "champion", "facts"), {}),
    ((*STATE, "stages", "budget", "peaked"), "x"),
    ((*STATE, "stages", "budget", "peak"), [1]),
    ((*STATE, "stages"), {"champion": {}}),
    ((*AGENT, "updates"), -1),
    ((*GENOME, "architectures", "q", "hidden"), [10**9]),
    ((*GENOME, "architectures"), {}),
    ((*GENOME, "hyperparameters", "batch_size"), -1),
    ((*GENOME, "hyperparameters", "lr"), ...),
    ((*GENOME, "id"), -1),
]


@pytest.mark.parametrize(("where", "value"), FORGED, ids=str)
def test_other_values(directory, where, value):
    forge(directory, where, value)
    refused(directory)


TENSORS = [
    ("population", "0.online.q.hidden0.weight", lambda own: own[:, :2].clone()),
    ("population", "1.m.q.hidden0.bias", lambda own: own.long()),
    ("population", "context.agent_steps", lambda own: -own - 1),
    ("population", "context.returns", lambda own: own.reshape(-1)),
    ("progress", "evolve.before", lambda own: torch.cat([own] * 3)),
    ("progress", "champion.returns", lambda own: own[:1].clone()),
    ("replay-agent-0", "action", lambda own: own + 7),
    ("replay-agent-0", "added", lambda own: own - 10**6),
    ("replay-agent-0", "rewards", lambda own: own[:3].clone()),
    ("replay-agent-0", "priorities", lambda own: -own - 1),
    ("replay-agent-0", "highest", lambda own: own * float("nan")),
]


@pytest.mark.parametrize(("stem", "name", "change"), TENSORS, ids=[n for _, n, _ in TENSORS])
def test_other_tensors(directory, stem, name, change):
    forge_tensor(directory, stem, name, change)
    with pytest.raises(CheckpointError) as caught:
        again(directory, "budget.env_steps=300")
    assert "\n" not in str(caught.value)


def test_a_digit_of_the_lineage_that_changes_is_noticed(directory):
    path = directory.path / "lineage.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"own_steps": 50', '"own_steps": 51', 1))
    assert path.read_text() != text
    refused(directory, "lineage.jsonl: its lines are not those that were written")


@pytest.mark.parametrize("name", ["metrics.jsonl", "best", "checkpoints", "tensorboard"])
def test_a_link_out_of_the_run_is_refused(directory, tmp_path, name):
    path, outside = directory.path / name, tmp_path / "outside"
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    path.symlink_to(outside)
    before = {own: own.read_bytes() for own in outside.rglob("*") if own.is_file()}
    refused(directory, f"{name}: is a symbolic link")
    assert {own: own.read_bytes() for own in outside.rglob("*") if own.is_file()} == before


def test_seconds_are_those_of_all_processes(directory):
    path = directory.path / "metrics.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    lines = [json.dumps(first | {"seconds": 500.0}), json.dumps(second | {"seconds": 1000.0})]
    path.write_text("\n".join([*lines, ""]))
    again(directory, "budget.env_steps=300")
    summary = json.loads((directory.path / "summary.json").read_bytes())
    assert 1000 < summary["seconds"] < 1500
    assert summary["steps_per_second"] == pytest.approx(300 / summary["seconds"], abs=0.1)
