"""What mattered is found where it is known; chance and too little are called so."""

import numpy as np
import pytest

from evorl.evolution.lineage import Lineage, birth, parse_line
from evorl.reporting.forest import coded
from evorl.reporting.importance import find_importance, importance, standing
from evorl.runs.files import strict_json
from tests.synthetic import child, initial


def samples(agents, each, weights, noise, seed=0):
    """Agents whose target is a weighted sum of what they have, evaluated several times."""
    random = np.random.default_rng(seed)
    own = random.random((agents, len(weights)))
    target = np.repeat(own @ weights, each) + noise * random.normal(size=agents * each)
    columns = {f"x{k}": np.repeat(own[:, k], each).tolist() for k in range(len(weights))}
    return columns, target.tolist(), np.repeat(np.arange(agents), each).tolist()


def test_shares_are_those_of_the_variance():
    """Of 4a + 2b + noise with variance 1: 16, 4 and 12 parts of 32."""
    found = importance(*samples(250, 3, [4, 2, 0, 0], 1.0))
    assert found.features["x0"][0] == pytest.approx(16 / 32, abs=0.1)
    assert found.features["x1"][0] == pytest.approx(4 / 32, abs=0.05)
    assert list(found.features)[:2] == ["x0", "x1"]
    assert found.features["x1"][1] > 0
    for name in ("x2", "x3"):
        value, low, high = found.features[name]
        assert low <= 0 <= high
        assert abs(value) < 0.02
    assert 0.4 < found.explained[0] < 20 / 32  # a forest never finds all
    assert (found.agents, found.samples) == (250, 750)


def test_chance_explains_nothing():
    found = importance(*samples(60, 3, [0, 0, 0], 1.0))
    assert found.explained[1] <= 0
    assert all(low <= 0 for _, low, _ in found.features.values())


def test_a_few_lucky_agents_are_not_many_trials():
    """One agent's evaluations are alike by all that it has: drawn singly they would look sure."""
    random = np.random.default_rng(1)
    columns, _, agents = samples(12, 30, [1, 0], 0.0)
    luck = np.repeat(random.normal(size=12), 30).tolist()
    assert importance(columns, luck, agents).explained[1] <= 0


def test_the_same_samples_give_the_same_figures():
    given = samples(40, 2, [1, 0], 0.1)
    assert importance(*given) == importance(*given)


def test_nothing_is_said_of_too_little():
    assert importance(*samples(5, 30, [1, 0], 0.1)) is None
    columns, target, agents = samples(40, 2, [1], 0.1)
    assert importance({"x0": [1.0] * len(target)}, target, agents) is None
    assert importance(columns, [2.0] * len(target), agents) is None


def test_places_among_those_of_a_generation():
    assert standing([5.0, -np.inf, 7.0]) == [0.0, -1.0, 1.0]
    assert standing([3.0, 3.0, 9.0, 1.0]) == pytest.approx([0.0, 0.0, 1.0, -1.0])


def test_codes_keep_the_order():
    values = np.random.default_rng(0).lognormal(size=500)
    codes = coded(values)
    assert len(np.unique(codes)) == 16
    assert (np.diff(codes[np.argsort(values)].astype(int)) >= 0).all()


def test_a_run_of_which_the_cause_is_known():
    """Fitness is by lr alone; what was gained is by gamma alone; the dead are last."""
    random, lineage = np.random.default_rng(0), Lineage()
    rows, places = [], 16
    genomes = [
        initial(i, lr=float(10 ** random.uniform(-4, -2)), gamma=float(random.uniform(0.9, 0.99)))
        for i in range(places)
    ]
    lines = [birth(genome, i, None) for i, genome in enumerate(genomes)]
    gained = np.zeros(places)
    for generation in range(4):
        gained += [10 * genome.hyperparameters["gamma"] for genome in genomes]
        fitness = [100 * np.log10(g.hyperparameters["lr"]) for g in genomes] + gained
        hyperparameters = {
            name: [genome.hyperparameters[name] for genome in genomes] for name in ("lr", "gamma")
        }
        rows.append(
            {
                "generation": generation,
                "ids": [genome.id for genome in genomes],
                "fitness": [None, *fitness[1:].tolist()],
                "alive": [False] + [True] * (places - 1),
                "hyperparameters": hyperparameters,
            }
        )
    for line in lines:
        lineage.add(parse_line(strict_json(line).encode()))
    found = find_importance(rows, lineage, ["lr", "gamma"])
    assert next(iter(found["fitness"].features)) == "lr"
    assert next(iter(found["gain"].features)) == "gamma"
    assert found["fitness"].samples == 4 * places
    assert found["gain"].samples == 3 * (places - 1)  # nor has the first evaluation a gain


def test_a_childs_gain_is_since_its_parent():
    lineage = Lineage()
    parent, other = initial(0), initial(1)
    young = child(parent, 2, 1, lr=5e-4)
    for line in (birth(parent, 0, None), birth(other, 1, None), birth(young, 1, parent)):
        lineage.add(parse_line(strict_json(line).encode()))
    from evorl.reporting.importance import _samples

    rows = [
        {"generation": 0, "ids": [0, 1], "fitness": [5.0, 1.0], "alive": [True, True]},
        {"generation": 1, "ids": [0, 2], "fitness": [6.0, 8.0], "alive": [True, True]},
    ]
    assert [own.gain for own in _samples(rows, lineage)] == [None, None, 1.0, 3.0]
