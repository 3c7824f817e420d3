"""From a line of descent to a schedule, to YAML and back, and on to a configuration."""

import dataclasses

import pytest
import yaml

from evorl.config import parse_config
from evorl.errors import ConfigError
from evorl.evolution.lineage import birth
from evorl.evolution.schedule import (
    Schedule,
    Segment,
    config_for_schedule,
    read_schedule,
    schedule_of,
)
from evorl.genome import Architecture
from evorl.runs.directory import RunDirectory
from tests.synthetic import FAMILY, HYPERPARAMETERS, STEPS, child, evaluated, family_lines, initial

GATED = Architecture((64, 96, 96), "tanh", layer_norm=True, gated=(False, False, True))
IMAGE = Architecture((32,), dueling=True, channels=(8, 16), kernels=(3, 2), strides=(2, 1))


def lineage_of(lines, tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    directory.append_lineage(lines)
    return directory.lineage()


@pytest.fixture
def schedule(tmp_path):
    lineage = lineage_of(family_lines(), tmp_path)
    return schedule_of("CartPole-v1", "dqn", lineage.ancestry(4), 5 * STEPS)


def some(architecture=None, segments=((0, {}),), env="CartPole-v1", steps=5000):
    parts = tuple(Segment(step, HYPERPARAMETERS | changes) for step, changes in segments)
    return Schedule(env, steps, {"q": architecture or Architecture()}, parts)


def read_back(schedule, tmp_path, heading=""):
    (tmp_path / "schedule.yaml").write_text(schedule.to_yaml(heading))
    return read_schedule(tmp_path / "schedule.yaml")


def test_the_schedule_of_a_family(schedule):
    assert (schedule.env, schedule.steps) == ("CartPole-v1", 5 * STEPS)
    assert schedule.algorithm == "dqn"
    assert schedule.architectures == FAMILY[4].architectures
    # agent 3 changed its architecture only: no segment of its own
    assert [part.step for part in schedule.segments] == [0, STEPS, 4 * STEPS]
    for part, id in zip(schedule.segments, (0, 2, 4), strict=True):
        assert part.hyperparameters == FAMILY[id].hyperparameters


def test_at(schedule):
    for step, id in ((0, 0), (999, 0), (1000, 2), (3999, 2), (4000, 4), (5000, 4), (10**9, 4)):
        assert schedule.at(step) == FAMILY[id].hyperparameters
    schedule.at(0)["lr"] = 7.0  # a copy
    assert schedule.at(0)["lr"] == 1e-3


def test_whole_numbers_stay_whole(schedule):
    assert isinstance(schedule.at(0)["batch_size"], int)
    assert isinstance(schedule.at(0)["lr"], float)
    assert "batch_size: 128," in schedule.to_yaml()


def test_who_never_trained_leaves_no_segment(tmp_path):
    """A parent that was copied before its first evaluation, as the first in line."""
    first, second = initial(0, lr=1e-3), child(initial(0), 1, 1, lr=2e-3)
    lines = [birth(first, 0, None), birth(second, 0, first), evaluated(1, 1, own_steps=500)]
    lineage = lineage_of(lines, tmp_path)
    found = schedule_of("CartPole-v1", "dqn", lineage.ancestry(1), 500)
    assert [(part.step, part.hyperparameters["lr"]) for part in found.segments] == [(0, 2e-3)]


@pytest.mark.parametrize("architecture", [Architecture((64, 96)), GATED, IMAGE])
def test_yaml_and_back(tmp_path, architecture):
    lr = 0.1 + 0.2
    schedule = some(architecture, [(0, {"lr": 1e-05}), (40, {"lr": lr, "batch_size": 1})])
    assert read_back(schedule, tmp_path, "a heading\nof two lines") == schedule


def test_yaml_as_others_read_it(schedule):
    text = schedule.to_yaml("The schedule of agent 4.")
    assert text.startswith(
        "# The schedule of agent 4.\nenv: CartPole-v1\nalgorithm: dqn\nsteps: 5000\n"
    )
    plain = yaml.safe_load(text)
    assert plain["architectures"]["q"]["hidden"] == [64, 96]
    assert plain["schedule"][1]["batch_size"] == 128
    assert list(plain) == ["env", "algorithm", "steps", "architectures", "schedule"]
    assert text.splitlines()[-4] == "schedule:"  # and a line for each segment


def test_numbers_by_hand(tmp_path):
    text = some().to_yaml().replace("lr: 0.001,", "lr: 1e-4,").replace("tau: 0.01,", "tau: 1,")
    (tmp_path / "a.yaml").write_text(text)
    assert read_schedule(tmp_path / "a.yaml").at(0)["lr"] == 1e-4
    assert read_schedule(tmp_path / "a.yaml").at(0)["tau"] == 1.0


def edited(old, new):
    """A good file with one thing replaced."""
    text = some(Architecture((64, 96)), [(0, {}), (40, {"lr": 0.5})]).to_yaml()
    assert text.count(old) == 1
    return text.replace(old, new)


ASCEND = "schedule: must have whole steps that ascend from 0 to less than steps = 5000, got a list"
WRONG = {
    "empty": ("", "expected a mapping, got nothing"),
    "a list": ("- 1\n", "got a list"),
    "not YAML": ("env: [", "invalid YAML"),
    "no env": (edited("env: CartPole-v1\n", ""), "env: required, but not given"),
    "no architecture": (
        "env: a\nalgorithm: dqn\nsteps: 1\nschedule: []\n",
        "architectures: required, but not given",
    ),
    "no schedule": (edited("schedule:", "#").split("#")[0], "schedule: required"),
    "no segments": (
        edited("schedule:", "schedule: []#").split("#")[0],
        "schedule: must have at least 1 item",
    ),
    "unknown key": (
        edited("steps: 5000", "stesp: 5000"),
        "stesp: unknown key; did you mean steps?",
    ),
    "not from 0": (edited("step: 0,", "step: 5,"), ASCEND),
    "not ascending": (edited("step: 40", "step: 0"), ASCEND),
    "not whole": (edited("step: 40", "step: soon"), ASCEND),
    "negative": (edited("step: 40", "step: -1"), ASCEND),
    "no step": (edited("step: 40, ", ""), ASCEND),
    "no end": (edited("steps: 5000", "steps: 40"), ASCEND.replace("5000", "40")),
    "unknown activation": (
        edited("activation: relu", "activation: rleu"),
        "architectures.q: activation: Input should be 'relu', 'elu', 'gelu', 'tanh' or 'silu'",
    ),
    "no layers": (edited("[64, 96]", "[]"), "architectures.q: Value error, hidden needs one"),
    "gates of unlike layers": (
        edited("gated: [false, false]", "gated: [false, true]"),
        "architectures.q: Value error, gated layer 1 must be as wide as the layer before it",
    ),
    "kernels alone": (
        edited("dueling: false", "kernels: [3]"),
        "architectures.q: Value error, channels, kernels",
    ),
    "no algorithm": (edited("algorithm: dqn\n", ""), "algorithm: required, but not given"),
    "no networks": (
        "env: a\nalgorithm: dqn\nsteps: 1\narchitectures: {}\nschedule: []\n",
        "architectures: must have at least 1 item",
    ),
    "unknown part": (edited("dueling", "duelling"), "architectures.q: duelling: Unexpected"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_files_are_one_line(tmp_path, kind):
    text, says = WRONG[kind]
    path = tmp_path / "schedule.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_schedule(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "\n" not in message


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_schedule(tmp_path / "schedule.yaml")


def config(**changes):
    return parse_config(
        {
            "name": "lander",
            "seed": 7,
            "env": {"id": "CartPole-v1", "num_envs": 3},
            "algorithm": {"n_step": 3, "lr": 0.9, "learning_starts": 77},
            "network": {"hidden": [8], "activation": "elu", "kernels": [5, 5]},
            "evolution": {"selection": {"fraction": 0.5}},
            "population": {"size": 8, "init": "sample", "agents": [{"hidden": [9]}]},
            "budget": {"env_steps": 10**6, "counts": "all", "stop_at": 400.0},
            **changes,
        }
    )


def test_the_config_of_a_schedule():
    schedule = some(Architecture((64, 96), "tanh", layer_norm=True), [(0, {"lr": 0.25})])
    found = config_for_schedule(config(), schedule)
    assert (found.population.size, found.population.agents) == (1, [])
    assert found.population.init == "config"
    alone = parse_config({"env": {"id": "X"}, "evolution": {"method": "none"}})
    assert found.evolution == alone.evolution
    assert found.replay.share == "agent"
    given = found.budget.model_dump(exclude_none=True)
    assert given == {"env_steps": 5000, "counts": "training", "stop_at": 400.0}
    assert found.agent_hyperparameters(0) == schedule.at(0)
    network = found.agent_network(0)
    assert (network.hidden, network.activation) == ([64, 96], "tanh")
    assert (network.layer_norm, network.dueling) == (True, False)
    # what the schedule does not speak of stays
    assert (found.name, found.seed, found.env) == ("lander", 7, config().env)
    assert (found.algorithm.n_step, found.algorithm.learning_starts) == (3, 77)
    assert found.network.kernels == [5, 5]


def test_with_images_and_gates():
    network = config_for_schedule(config(), some(IMAGE)).network
    assert (network.channels, network.kernels, network.strides) == ([8, 16], [3, 2], [2, 1])
    assert network.dueling
    assert config_for_schedule(config(), some(GATED)).network.hidden == [64, 96, 96]


def test_another_environment():
    with pytest.raises(ConfigError, match="is CartPole-v1, but the schedule is for Acrobot-v1"):
        config_for_schedule(config(), some(env="Acrobot-v1"))


def test_another_algorithm():
    other = dataclasses.replace(some(), algorithm="my_module:Other")
    with pytest.raises(ConfigError, match="is dqn, but the schedule is for my_module:Other"):
        config_for_schedule(config(), other)


def test_several_networks(tmp_path):
    schedule = dataclasses.replace(some(), architectures={"actor": GATED, "critic": IMAGE})
    assert read_back(schedule, tmp_path) == schedule
    network = config_for_schedule(config(), schedule).network
    assert network.hidden == [64, 96, 96]  # the first one's; agents start from the schedule's own


OWN = """
from evorl.algorithms.hyperparameters import Declaration
from evorl.config import hyperparameter

class Own(Declaration):
    speed: int = hyperparameter(3, "Steps.", ge=1)
"""


def test_an_algorithm_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_schedule.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    parts = (Segment(0, {"speed": 3}), Segment(5, {"speed": 7}))
    schedule = Schedule("CartPole-v1", 9, {"a": Architecture()}, parts, "own_schedule:Own")
    assert read_back(schedule, tmp_path) == schedule
    found = config_for_schedule(config(algorithm={"name": "own_schedule:Own"}), schedule)
    assert found.agent_hyperparameters(0) == {"speed": 3}
    wrong = dataclasses.replace(schedule, segments=(*parts, Segment(8, {"speed": 0})))
    with pytest.raises(ConfigError, match=r"schedule\.2: .*\.speed: must be at least 1, got 0"):
        config_for_schedule(config(algorithm={"name": "own_schedule:Own"}), wrong)


UNFIT = {"lr": -1, "gamma": "high", "batch_size": 6.5, "lrr": 0.5, "n_step": 3}
SAYS = {
    "lr": "config with schedule.1: algorithm.lr: must be greater than 0, got -1",
    "gamma": "config with schedule.1: algorithm.gamma: expected a number, got the string 'high'",
    "batch_size": "config with schedule.1: algorithm.batch_size: expected a whole number, got 6.5",
    "lrr": "schedule.1: must have all hyperparameters, and nothing else; look at lrr",
    "n_step": "schedule.1: must have all hyperparameters, and nothing else; look at n_step",
}


@pytest.mark.parametrize("name", UNFIT)
def test_hyperparameters_of_any_segment_that_do_not_fit_are_refused(name):
    schedule = some(segments=[(0, {}), (10, {name: UNFIT[name]})])
    with pytest.raises(ConfigError) as caught:
        config_for_schedule(config(), schedule)
    assert str(caught.value) == SAYS[name]


def test_with_a_replay_that_is_too_small():
    small = config(replay={"capacity": 600})
    schedule = some(segments=[(0, {}), (10, {"batch_size": 1024})])
    with pytest.raises(ConfigError, match=r"schedule\.1: replay\.capacity: must be"):
        config_for_schedule(small, schedule)
    assert config_for_schedule(small, some()).replay.capacity == 600


REFUSED = {
    "population.size=4": "population.size",
    "population.agents.0.lr=1e-3": "population.agents.0.lr",
    "population={init: sample}": "population",
    "evolution={}": "evolution",
    "evolution.selection.fraction=0.5": "evolution.selection.fraction",
    "evolution.spaces.lr=": "evolution.spaces.lr",
    "algorithm.lr=1e-3": "algorithm.lr",
    "algorithm.name=my_module:Other": "algorithm.name",
    " algorithm . tau =0.5": "algorithm.tau",
    "algorithm={n_step: 2, gamma: 0.9}": "algorithm",
    "network.hidden=[8]": "network.hidden",
    "network={activation: elu}": "network",
    "replay.share=rank": "replay.share",
    "budget.env_steps=5": "budget.env_steps",
    "budget.counts=all": "budget.counts",
    "budget={stop_at: 3, env_steps: 9}": "budget",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_schedule_fixes_is_refused_by_name(text):
    with pytest.raises(ConfigError) as caught:
        config_for_schedule(config(), some(), ["seed=3", text])
    says = f"override {text}: {REFUSED[text]}: is fixed by the schedule that is replayed;"
    assert str(caught.value) == f"{says} leave it out"


def test_what_a_schedule_leaves_is_not_refused():
    options = "seed=3 name=a algorithm.n_step=2 budget.stop_at=3 run.folder=x env.num_envs=3"
    more = ["algorithm.double=false", "network.channels_last=true", "network.channels=[8]"]
    config_for_schedule(config(), some(), [*options.split(), *more])
