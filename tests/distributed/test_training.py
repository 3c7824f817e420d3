"""Training on several ranks: the same run as in one process, agent by agent and bit by bit."""

import json

import pytest
import torch
from safetensors.torch import load

from .runs import Run, configured, deterministic, launch_world, newest, same_but_mesh, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), real=True)


def test_two_ranks_are_one_process(alone, tmp_path):
    two = train(tmp_path, ranks=2, real=True)
    same_but_mesh(alone, two)
    assert deterministic(alone)[0] == deterministic(two)[0]
    for name in ("env_steps", "evaluation_steps", "updates", "score", "best"):
        summaries = [json.loads((run / "summary.json").read_text()) for run in (alone, two)]
        assert summaries[0][name] == summaries[1][name]


def test_five_agents_on_two_ranks(tmp_path):
    options = ("population.size=5", "budget.env_steps=1800", "replay.kind=prioritized")
    options += ("evaluation.confirm_episodes=7",)  # dealt out to both
    one = train(tmp_path / "one", *options)
    same_but_mesh(one, train(tmp_path / "two", *options, ranks=2))


def test_each_rank_trains_on_its_own_replay(tmp_path):
    """The agents of the first rank learn what they learn where there are no others."""
    options = ("replay.share=rank", "evolution.method=none")
    both = train(tmp_path / "both", *options, "budget.env_steps=960", ranks=2)
    alone = train(tmp_path / "half", *options, "budget.env_steps=480", "population.size=2")
    files, own = newest(both)[1], newest(alone)[1]
    replays = [files[f"replay-rank-{rank}.safetensors"] for rank in (0, 1)]
    assert len(replays[0]) > 1000
    assert replays[0] != replays[1]
    assert replays[0] == own["replay-rank-0.safetensors"]
    weights, expected = (load(found["population.safetensors"]) for found in (files, own))
    expected = {name: value for name, value in expected.items() if name[0].isdigit()}
    assert {name.split(".")[0] for name in expected} == {"0", "1"}
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("data", "steps"), [(1, 1440), (2, 2880)])
def test_a_mesh_of_four(tmp_path, data, steps):
    """Three generations, at the end of each of which every rank proves what it has."""
    run = train(tmp_path, f"mesh.data={data}", f"budget.env_steps={steps}", ranks=4)
    name, files = newest(run)
    mesh = {"population": 4 // data, "data": data}
    assert name == "generation-000003"
    assert json.loads(files["manifest.json"])["state"]["mesh"] == mesh
    if data > 1:
        copies = [files[f"replay-agent-0{copy}.safetensors"] for copy in ("", "-copy-1")]
        assert copies[0] != copies[1]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["env_steps"] == steps  # of all ranks together


def test_a_replay_of_all_ranks_is_that_of_one_process(tmp_path):
    """`world` on two ranks gives the weights that `rank` gives in one process."""
    options = ("budget.env_steps=1440", "replay.capacity=600", "replay.kind=prioritized")
    one = newest(train(tmp_path / "one", *options, "replay.share=rank"))[1]
    two = newest(train(tmp_path / "two", *options, "replay.share=world", ranks=2))[1]
    for name in ("population", "progress"):
        assert one[f"{name}.safetensors"] == two[f"{name}.safetensors"]


def test_half_precision_is_accelerates_to_ask_for(tmp_path):
    half = train(tmp_path, "budget.env_steps=960", ranks=2, mixed_precision="bf16", real=True)
    assert json.loads((half / "summary.json").read_text())["env_steps"] == 960
    code, said = Run(tmp_path, "resume", "runs/run", "budget.env_steps=1440", ranks=2).wait()
    assert code != 0
    assert "mixed_precision: cannot change in a run that has begun ('bf16', got 'no')" in said
    words = ("train", configured(tmp_path / "fp16"))
    code, said = Run(tmp_path / "fp16", *words, ranks=2, mixed_precision="fp16").wait()
    assert code != 0
    assert "mixed_precision: must be no or bf16, got fp16" in said
    assert not (tmp_path / "fp16" / "runs").exists()


def test_a_rank_that_has_another_moment_stops_the_run_and_is_named(tmp_path):
    done = launch_world(tmp_path, "spoiled")
    assert done.code != 0
    assert "rank 1: agent 2 has other weights than on the main rank" in done.output
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (run / "checkpoints" / "generation-000002").exists()
    assert not (run / "checkpoints" / "generation-000003").exists()


def test_every_rank_learns_from_what_it_collected_itself(tmp_path):
    done = launch_world(tmp_path, "own_replay")
    assert done.code == 0, done.output
    both = [(tmp_path / f"collected-{rank}").read_bytes() for rank in (0, 1)]
    rows = [{data[i : i + 16] for i in range(0, len(data), 16)} for data in both]
    assert min(map(len, rows)) > 100
    assert not rows[0] & rows[1]  # so what is one's own is not the other's


def test_gradients_over_two_ranks_are_those_of_both_batches(tmp_path):
    """In float64, over 100 updates: mixed architectures, prioritised weights, clipping."""
    done = launch_world(tmp_path, "gradients")
    assert done.code == 0, done.output
    differences = [float(text) for text in done.said("difference").values()]
    assert len(differences) == 2
    assert max(differences) < 1e-9


def test_fitness_from_training_is_the_same_on_any_ranks_and_after_resuming(tmp_path):
    """Two ranks along population, too; agents have different numbers of episodes."""
    options = ("evaluation.source=training", "evolution.selection.eval_loop=2")
    options += ("evolution.selection.min_gap=0.5",)
    one = train(tmp_path / "one", *options)
    lines = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
    assert len({line["ids"][0] for line in lines} | {line["ids"][3] for line in lines}) > 2
    same_but_mesh(one, train(tmp_path / "two", *options, ranks=2))
    folder = tmp_path / "resumed"
    train(folder, *options, "budget.env_steps=1440")
    code, said = Run(folder, "resume", "runs/run", "budget.env_steps=2880").wait()
    assert code == 0, said
    assert deterministic(folder / "runs" / "run") == deterministic(one)
    both = newest(
        train(tmp_path / "data", *options, "mesh.data=2", "budget.env_steps=960", ranks=2)
    )
    returns = load(both[1]["population.safetensors"])["context.returns"]
    assert returns.isnan().any()
    assert (~returns.isnan()).sum() > 8  # episodes of both ranks
