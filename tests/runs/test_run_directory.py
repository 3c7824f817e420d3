"""The run's folder, and the agent in it: never overwritten, strict JSON, readable or one error."""

import json
import math
import os

import pytest
import torch

from evorl.errors import RunError
from evorl.genome import Architecture, Genome
from evorl.networks.layout import fresh_parameters
from evorl.networks.spec import NetworkSpec
from evorl.runs.agent import read_agent, save_agent
from evorl.runs.directory import RunDirectory
from tests.synthetic import FAMILY, make_family_run, saved_agent

torch.set_num_threads(1)

SPECS = {
    "vector": (NetworkSpec(4, 2), Architecture((8, 5), "tanh", layer_norm=True, dueling=True)),
    "discrete": (NetworkSpec(16, 4, one_hot=True), Architecture((8,))),
    "image": (
        NetworkSpec(0, 3, image=(2, 6, 5), scale=1 / 255),
        Architecture((8,), channels=(3,), kernels=(3,), strides=(1,)),
    ),
}


def saved(kind="vector", seed=0, **facts):
    spec, architecture = SPECS[kind]
    genome = Genome(3, {"q": architecture}, {"lr": 0.5})
    return saved_agent(genome, spec, fresh_parameters({"q": spec}, genome, seed), **facts)


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_an_existing_directory_is_refused(tmp_path):
    first = RunDirectory.create(tmp_path / "runs", "a")
    assert first.path == tmp_path / "runs" / "a"
    first.write_config("seed: 1\n")
    with pytest.raises(RunError, match="exists already: choose another name"):
        RunDirectory.create(tmp_path / "runs", "a")


def test_or_numbered(tmp_path):
    names = [RunDirectory.create(tmp_path, "a", "number").path.name for _ in range(3)]
    assert names == ["a", "a-2", "a-3"]


def test_a_file_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        RunDirectory.create(tmp_path, "a")
    assert RunDirectory.create(tmp_path, "a", "number").path.name == "a-2"
    assert (tmp_path / "a").read_text() == "mine"


@pytest.mark.parametrize("folder", ["file/runs", "x" * 300], ids=["below a file", "too long"])
def test_a_folder_that_cannot_be_made(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made") as caught:
        RunDirectory.create(tmp_path / folder, "a")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunError, match="cannot be made: Permission denied"):
            RunDirectory.create(tmp_path / "runs", "a")
    finally:
        tmp_path.chmod(0o700)


def test_json_is_strict(tmp_path):
    directory = RunDirectory.create(tmp_path, "a")
    directory.append_metrics({"x": [1.0, -math.inf, math.nan], "y": {"z": (math.inf, 2)}})
    directory.append_metrics({"x": []})
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"x": [1.0, None, None], "y": {"z": [None, 2]}},
        {"x": []},
    ]
    directory.write_summary({"score": math.nan})
    assert json.loads((directory.path / "summary.json").read_text()) == {"score": None}


def test_lineage_is_strict_json_too(tmp_path):
    directory = RunDirectory.create(tmp_path, "a")
    directory.append_lineage([{"fitness": -math.inf}, {"fitness": 1.5}])
    directory.append_lineage([])
    directory.append_lineage([{"fitness": 2}])
    assert (directory.path / "lineage.jsonl").read_text() == (
        '{"fitness": null}\n{"fitness": 1.5}\n{"fitness": 2}\n'
    )


def test_what_was_written_is_read_back(tmp_path):
    made = make_family_run(tmp_path)
    directory = RunDirectory.open(made.path)
    assert directory.config().env.id == "CartPole-v1"
    assert directory.finished
    assert directory.summary().mean == (450.0, 445.0, 455.0)
    assert directory.summary().evaluation_steps == 100
    assert directory.best().genome == FAMILY[4]
    assert set(directory.lineage().births) == set(FAMILY)


def test_what_is_not_there_is_one_line(tmp_path):
    (tmp_path / "config.yaml").write_text("env: {id: CartPole-v1}\n")
    directory = RunDirectory.open(tmp_path)
    assert not directory.finished
    for read in (directory.summary, directory.best, directory.lineage):
        with pytest.raises(RunError) as caught:
            read()
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nothing", "file", "empty", "a\0b", "x" * 300])
def test_what_is_no_run_directory(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError) as caught:
        RunDirectory.open(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_files_are_written_whole(tmp_path):
    directory = RunDirectory.create(tmp_path, "a")
    directory.write_config("seed: 1\n")
    directory.write_config("seed: 2\n")
    assert contents(directory.path) == {
        (tmp_path / "config.yaml").relative_to(tmp_path): b"seed: 2\n"
    }


def test_best_is_replaced(tmp_path):
    directory = RunDirectory.create(tmp_path, "a")
    for seed in (0, 1):
        directory.save_best(saved(seed=seed))
    save_agent(tmp_path / "expected", saved(seed=1))
    assert contents(directory.path / "best") == contents(tmp_path / "expected")
    assert [path.name for path in directory.path.iterdir()] == ["best"]
    modes = {path.stat().st_mode for path in (directory.path / "best").iterdir()}
    assert len(modes) == 1  # who may read one of the files may read both


@pytest.mark.parametrize("kind", SPECS)
def test_an_agent_comes_back_as_it_was(tmp_path, kind):
    agent = saved(kind, env="CartPole-v1", fitness=9.5)
    save_agent(tmp_path / "best", agent)
    back = read_agent(tmp_path / "best")
    assert back.genome == agent.genome
    assert back.specs == agent.specs
    assert back.algorithm == agent.algorithm
    assert back.interface == agent.interface
    assert back.facts == {"env": "CartPole-v1", "fitness": 9.5}
    assert back.parameters.keys() == agent.parameters.keys()
    for name, value in agent.parameters.items():
        assert torch.equal(back.parameters[name], value)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def _edit(change):
    def spoil(path):
        facts = json.loads(path.read_text())
        change(facts)
        path.write_text(json.dumps(facts))

    return spoil


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("agent.json", lambda path: path.unlink()),
        ("weights.safetensors", lambda path: path.unlink()),
        ("agent.json", _cut),
        ("weights.safetensors", _cut),
        ("weights.safetensors", lambda path: path.write_bytes(b"")),
        ("agent.json", lambda path: path.write_text("[]")),
        ("agent.json", lambda path: path.write_text("{}")),
        ("agent.json", _edit(lambda facts: facts.update(format=99))),
        ("agent.json", _edit(lambda facts: facts.pop("specs"))),
        ("agent.json", _edit(lambda facts: facts["specs"]["q"].update(inputs=5))),
        ("agent.json", _edit(lambda facts: facts["specs"]["q"].update(surprise=5))),
        ("agent.json", _edit(lambda f: f["genome"]["architectures"]["q"].update(hidden=[8]))),
        ("agent.json", _edit(lambda facts: facts["genome"]["hyperparameters"].update(lr="fast"))),
    ],
)
def test_a_damaged_agent_is_one_line(tmp_path, file, spoil):
    save_agent(tmp_path / "best", saved())
    spoil(tmp_path / "best" / file)
    with pytest.raises(RunError) as caught:
        read_agent(tmp_path / "best")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "best") in str(caught.value)
