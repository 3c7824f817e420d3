"""Evolution of agents with several networks: policies and values, actors and critics."""

import json
from contextlib import ExitStack
from typing import NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file

from evorl.config import load_config, parse_config
from evorl.evolution.lineage import read_lineage
from evorl.evolution.schedule import read_schedule
from evorl.networks import NetworkSpec
from evorl.networks.module import to_module
from evorl.pipeline.snapshot import unpack
from evorl.runs.agent import read_agent
from evorl.training.build import Parts, env_spec
from evorl.training.trainer import train
from tests.pipeline.snapshots import alone

torch.set_num_threads(1)

COMMON = {
    "compile": False,
    "network": {"hidden": [16, 16], "activation": "tanh"},
    "population": {"size": 6},
    "evaluation": {
        "every": 32,
        "episodes": 2,
        "confirm_episodes": 2,
        "final_episodes": 2,
        "max_steps": 30,
        "final_max_steps": 30,
    },
    "evolution": {"selection": {"fraction": 0.5, "min_gap": 0.0}},
    "budget": {"env_steps": 6 * 2 * 32 * 6},
    "checkpoint": {"keep": 99},
}
ALGORITHMS = {
    "ppo": {
        "env": {"id": "CartPole-v1", "num_envs": 2},
        "algorithm": {"name": "ppo", "rollout_steps": 12, "epochs": 2, "lr": 1e-2},
    },
    "sac": {
        "env": {"id": "Pendulum-v1", "num_envs": 2},
        "algorithm": {"name": "sac", "learning_starts": 16, "batch_size": 8, "lr": 1e-2},
        "replay": {"capacity": 500},
    },
    "a2c": {
        "env": {"id": "CartPole-v1", "num_envs": 2},
        "algorithm": {"name": "a2c", "rollout_steps": 4, "lr": 1e-2},
    },
    "impala": {
        "env": {"id": "CartPole-v1", "num_envs": 2},
        "algorithm": {"name": "impala", "rollout_steps": 8, "updates": 2, "replay_unrolls": 8},
    },
    "ddpg": {
        "env": {"id": "Pendulum-v1", "num_envs": 2},
        "algorithm": {"name": "ddpg", "learning_starts": 16, "batch_size": 8, "lr": 1e-2},
        "replay": {"capacity": 500},
    },
    "td3": {
        "env": {"id": "Pendulum-v1", "num_envs": 2},
        "algorithm": {"name": "td3", "learning_starts": 16, "batch_size": 8, "lr": 1e-2},
        "replay": {"capacity": 500, "kind": "prioritized"},
    },
}
POLICY, TWIN = {"policy", "value"}, {"actor", "critic", "critic2"}
NETWORKS = {"ppo": POLICY, "sac": TWIN, "a2c": POLICY, "impala": POLICY} | {
    "ddpg": {"actor", "critic"},
    "td3": TWIN,
}
GENERATIONS = 6
pytestmark = pytest.mark.filterwarnings("ignore:evaluation.every")
SHAPES = "evolution.mutation={architecture: 1, hyperparameters: 0, parameters: 0, new_layer: 0.5}"
PB2 = "evolution.explore.strategy=pb2"
VALUES = "evolution.mutation={architecture: 0.2, hyperparameters: 1, parameters: 0}"
SEARCH = "evolution.method=random_search"


class Runs(NamedTuple):
    """What the tests of an algorithm share."""

    name: str
    shapes: object  # run directories: architectures evolve
    values: object  # hyperparameters by PB2
    search: object  # nothing evolves


def run(folder, name, *overrides):
    config = parse_config(COMMON | ALGORITHMS[name], [f"run.folder={folder}", *overrides])
    return train(config).directory


@pytest.fixture(scope="module", params=ALGORITHMS)
def runs(request, tmp_path_factory):
    name, folder = request.param, tmp_path_factory.mktemp("runs")
    shapes = run(folder, name, "name=shapes", SHAPES, "evolution.selection.champion=0.0")
    values = run(folder, name, "name=values", PB2, VALUES)
    return Runs(name, shapes, values, run(folder, name, "name=search", SEARCH))


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def steps(path):
    """Of training and evaluation."""
    found = json.loads((path / "summary.json").read_text())
    return found["env_steps"] + found["evaluation_steps"]


OF_POLICIES = {"gradient_norm", "value", "value_loss", "entropy"}
MEASURED = {
    "ppo": OF_POLICIES,
    "a2c": OF_POLICIES,
    "impala": OF_POLICIES,
    "sac": {"q_value", "entropy", "temperature", "gradient_norm/log_temperature"},
    "ddpg": {"q_value"},
    "td3": {"q_value"},
}


def test_training_has_curves_by_steps(runs):
    lines = metrics(runs.values)
    before = 0
    for line in lines:
        told, agents = line["training"], len(line["ids"])
        steps = told["env_steps"]
        assert steps == sorted(set(steps))
        assert steps[-1] == line["env_steps"]
        assert steps[0] > before
        for name in ("return", "length", "loss", "updates_per_step"):
            assert [len(row) for row in told[name]] == [agents] * len(steps)
        before = line["env_steps"]
    assert len(lines[-1]["training"]["env_steps"]) == 5
    known = [row for line in lines for row in line["training"]["return"] if any(row)]
    # some episodes have ended; Pendulum's are longer than a generation
    assert bool(known) == (ALGORITHMS[runs.name]["env"]["id"] == "CartPole-v1")
    networks = {f"gradient_norm/{name}" for name in NETWORKS[runs.name]}
    expected = MEASURED[runs.name] | (networks if runs.name in ("sac", "ddpg", "td3") else set())
    measured = lines[-1]["training"]["measured"]
    assert set(measured) == expected
    for name, values in measured.items():
        assert None not in values, name
        assert not name.startswith("gradient_norm") or min(values) > 0


def births(path):
    """All agents that are somebody's children."""
    found = read_lineage(path / "lineage.jsonl").births.values()
    return [birth for birth in found if birth.genome.parent is not None]


def states_at(path, generation):
    """The weights that a generation begins with, by agent."""
    folder = path / "checkpoints" / f"generation-{generation:06d}"
    agents = json.loads((folder / "manifest.json").read_text())["state"]["agents"]
    states = unpack(load_file(folder / "population.safetensors"), [a["updates"] for a in agents])
    return {own["genome"]["id"]: state for own, state in zip(agents, states, strict=True)}


def specs_of(path):
    """The networks, by what they read and give."""
    config = load_config(path / "config.yaml")
    with ExitStack() as stack:
        found = Parts(config, alone(), env_spec(config), stack).population.specs
    return {name: spec for name, spec in found.items() if isinstance(spec, NetworkSpec)}


def outputs(spec, architecture, weights):
    """Of one network, on inputs that are always the same."""
    random = torch.Generator().manual_seed(1)
    obs = torch.randn(50, spec.inputs, generator=random)
    extra = (torch.rand(50, spec.extra, generator=random),) if spec.extra else ()
    own = {name: value.double() for name, value in weights.items()}
    with torch.no_grad():
        return to_module(spec, architecture, own)(obs, *extra)


def test_architectures_change_on_every_network_and_keep_its_function(runs):
    """What is added changes nothing at birth: neither the network nor its target, nor others."""
    known, specs = read_lineage(runs.shapes / "lineage.jsonl").births, specs_of(runs.shapes)
    assert specs.keys() == NETWORKS[runs.name]
    grown, moves = set(), set()
    for birth in births(runs.shapes):
        states, genome = states_at(runs.shapes, birth.generation), birth.genome
        parent = known[genome.parent].genome
        child_state, parent_state = states[genome.id], states[genome.parent]
        changed = [
            name for name in specs if genome.architectures[name] != parent.architectures[name]
        ]
        assert len(changed) == 1
        assert child_state.updates == parent_state.updates
        for name, spec in specs.items():
            both = [(genome, child_state.network(name)), (parent, parent_state.network(name))]
            if name not in changed:
                child, before = (own.online | own.v for _, own in both)
                assert all(torch.equal(child[n], before[n]) for n in before)
            elif genome.mutation.startswith("add"):
                grown.add(name)
                moves.add(genome.mutation)
                for part in ("online", "target"):
                    child, before = (
                        outputs(spec, own.architectures[name], getattr(state, part))
                        for own, state in both
                    )
                    torch.testing.assert_close(child, before, rtol=0, atol=1e-12)
        assert genome.hyperparameters == parent.hyperparameters
    assert grown == NETWORKS[runs.name]
    assert moves == {"add units", "add layer"}


def test_agents_learn_after_all_of_that(runs):
    for path in runs[1:]:
        last = metrics(path)[-1]
        assert last["generation"] == GENERATIONS - 1
        assert all(last["alive"])
        assert last["hidden"].keys() == NETWORKS[runs.name]


def test_pb2_moves_hyperparameters_within_their_spaces(runs):
    spaces = load_config(runs.values / "config.yaml").spaces
    assert {"lr", "gamma"} < spaces.keys()
    found = [birth.genome for birth in births(runs.values)]
    moved = [own.hyperparameters for own in found if own.mutation == "hyperparameters"]
    for name, space in spaces.items():
        low, high = space.bounds
        assert all(low <= values[name] <= high for values in moved)
        assert len({values[name] for values in moved}) > 2


def test_random_search_draws_once(runs):
    first, *_, last = metrics(runs.search)
    assert first["ids"] == last["ids"] == list(range(6))
    assert first["hyperparameters"] == last["hyperparameters"]
    for name in load_config(runs.search / "config.yaml").spaces:
        assert len(set(first["hyperparameters"][name])) > 1


def test_the_lineage_of_the_best(runs, evorl):
    code, out, err = evorl("lineage", runs.shapes)
    assert (code, err) == (0, "")
    best = read_agent(runs.shapes / "best").genome
    assert f"agent {best.id}, the best" in out
    for network in NETWORKS[runs.name]:
        assert network in out
    youngest = births(runs.shapes)[-1].genome.id
    code, out, _ = evorl("lineage", runs.shapes, "--agent", youngest)
    ancestry = read_lineage(runs.shapes / "lineage.jsonl").ancestry(youngest)
    assert len(ancestry) > 1
    assert all(one.change.split()[0] in out for one in ancestry[1:])


def test_a_schedule_is_replayed(runs, evorl, tmp_path):
    """That of an agent whose line has changed its hyperparameters and an architecture."""
    found = read_lineage(runs.values / "lineage.jsonl")
    last = [birth.genome for birth in births(runs.values) if birth.generation == GENERATIONS - 1]
    agent = max(last, key=lambda genome: len(found.ancestry(genome.id)))
    code, out, err = evorl("schedule", runs.values, "--agent", agent.id)
    assert (code, err) == (0, "")
    (tmp_path / "schedule.yaml").write_text(out)
    schedule = read_schedule(tmp_path / "schedule.yaml")
    assert schedule.algorithm == runs.name
    assert schedule.architectures == agent.architectures
    assert len(schedule.segments) > 1
    config = COMMON | ALGORITHMS[runs.name] | {"name": "again"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    code, out, err = evorl("train", "run.yaml", "--replay-schedule", "schedule.yaml", "--quiet")
    assert code == 0
    assert all(line.startswith("warning: evaluation.every=32 is") for line in err.splitlines())
    again = tmp_path / "runs" / "again-seed1"
    lines = metrics(again)
    assert lines[-1]["env_steps"] == schedule.steps
    for line in lines:
        now = {name: own for name, (own,) in line["hyperparameters"].items()}
        assert now == schedule.at(line["env_steps"] - 1)
    assert read_agent(again / "best").genome.architectures == agent.architectures


def test_runs_are_compared(runs, evorl):
    code, out, err = evorl("compare", *runs[1:])
    assert (code, err) == (0, "")
    for what in ("selection.champion=0.0", "explore.strategy=pb2", "method=random_search"):
        assert f"evolution.{what}" in out
    for path in runs[1:]:
        assert f"{steps(path):,}" in out
