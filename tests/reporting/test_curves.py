"""A run's numbers by name, of a family whose fitness is known: 100 i + g."""

import json

import pytest

from evorl.config import parse_config
from evorl.evolution.lineage import Lineage, birth, parse_line
from evorl.reporting.curves import RunReader
from evorl.runs.directory import RunDirectory
from tests.synthetic import FAMILY, STEPS, child, evaluated, initial, make_family_run


def family(lines):
    found = Lineage()
    for line in lines:
        found.add(parse_line(json.dumps(line).encode()))
    return found


def test_the_effect_on_a_child_of_an_earlier_moment():
    lines = [birth(FAMILY[0], 0, None)]
    lines += [evaluated(0, generation, 10.0 * generation) for generation in range(4)]
    late = child(FAMILY[0], 7, 4)
    lines += [birth(late, 0, FAMILY[0], 1), evaluated(7, 4, 99.0)]
    found = family(lines)
    assert found.effect(found.births[7]).change == 89.0


def test_mutations_are_counted_with_their_mean_effect(tmp_path):
    directory = make_family_run(tmp_path)
    for generation, at_one in enumerate([1, 2, 3, 3, 4]):
        directory.append_metrics(metrics_line(generation, [0, at_one], [0.0, 1.0]))
    run = RunReader(directory.path, config())
    rows = list(run.new_rows())
    assert rows[1]["mutations/hyperparameters/effect"] == 201.0
    assert "mutations/architecture/births" not in rows[1]
    assert rows[4]["mutations/hyperparameters/births"] == 2
    assert rows[4]["mutations/hyperparameters/effect"] == pytest.approx((201.0 + 101.0) / 2)
    assert rows[4]["mutations/architecture/births"] == 1
    assert rows[4]["mutations/architecture/effect"] == 101.0


def test_the_dead_count_as_births_without_an_effect(tmp_path):
    dead = child(FAMILY[0], 9, 1, "remove units")
    lines = [birth(FAMILY[0], 0, None), evaluated(0, 0, 5.0), birth(dead, 0, FAMILY[0])]
    directory = RunDirectory.create(tmp_path, "run")
    directory.append_lineage([*lines, evaluated(9, 1, float("-inf"))])
    directory.append_metrics(metrics_line(1, [9], [None]))
    run = RunReader(directory.path, config())
    (row,) = run.new_rows()
    found = {name: value for name, value in row.items() if name.startswith("mutations/")}
    assert found == {"mutations/remove_units/births": 1.0}


def metrics_line(generation, ids, fitness):
    hyperparameters = [initial(id).hyperparameters for id in ids]
    return {
        "generation": generation,
        "env_steps": 4 * STEPS * (generation + 1),
        "evaluation_steps": 1,
        "updates": 2,
        "episodes": 3,
        "failures": 0,
        "seconds": 1.0,
        "steps_per_second": 5.0,
        "best": None,
        "ids": ids,
        "fitness": fitness,
        "alive": [value is not None for value in fitness],
        "loss": [None] * len(ids),
        "exploration": [0.5] * len(ids),
        "hyperparameters": {
            name: [own[name] for own in hyperparameters] for name in hyperparameters[0]
        },
        "hidden": {"q": [[64, 64], *[[32]] * (len(ids) - 1)]},
        "shares": {"update": 0.5},
    }


def config(*overrides):
    return parse_config({"env": {"id": "CartPole-v1"}}, overrides)


@pytest.fixture
def values(tmp_path):
    """The numbers of a line of metrics, in a run with these options."""

    def read(line, *overrides):
        return RunReader(tmp_path, config(*overrides)).values(line)

    return read


def test_the_dead_are_left_out_of_a_generations_numbers(values):
    values = values(metrics_line(0, [0, 1, 2], [None, 4.0, 2.0]))
    assert values["fitness/mean"] == 3.0
    assert values["fitness/worst"] == 2.0
    assert values["fitness/best_agent"] == 1
    assert values["population/alive"] == 2
    assert "population/loss" not in values
    assert "fitness/best_so_far" not in values


def test_a_generation_of_dead_agents_has_numbers_all_the_same(values):
    values = values(metrics_line(0, [0, 1], [None, None]))
    assert values["population/alive"] == 0
    assert not any(name.startswith(("fitness/", "hyperparameters/")) for name in values)


def test_hyperparameters_that_never_differ_have_no_curve(values):
    line = metrics_line(0, [0, 1], [1.0, 2.0])
    names = values(line, "evolution.method=none")
    assert not any(name.startswith("hyperparameters/lr") for name in names)
    line["hyperparameters"]["gamma"] = [0.99, 0.9]
    found = values(line, "evolution.method=none")
    assert found["hyperparameters/gamma/low"] == 0.9
    assert found["hyperparameters/gamma/best"] == 0.9


def test_actors(values):
    line = metrics_line(0, [0, 1], [1.0, 2.0])
    assert not any(name.startswith("actors/") for name in values(line))
    line["actors"] = {"alive": 2, "lag": 3.5, "queue": 0.5, "refused": {"lag": 2, "range": 1}}
    found = values(line)
    assert {name: value for name, value in found.items() if name.startswith("actors/")} == {
        "actors/alive": 2.0,
        "actors/lag": 3.5,
        "actors/queue": 0.5,
        "actors/refused": 3.0,
        "actors/refused_lag": 2.0,
        "actors/refused_range": 1.0,
    }


def test_layers_and_units_of_each_network(values):
    line = metrics_line(0, [0, 1], [1.0, 2.0])
    found = values(line)
    assert (found["population/layers"], found["population/units"]) == (1.5, 80.0)
    line["hidden"] = {"actor": [[8], [8]], "critic": [[64, 64], [64]]}
    found = values(line)
    assert (found["population/actor/layers"], found["population/critic/units"]) == (1.0, 96.0)
    assert "population/layers" not in found


def test_reading_continues_where_it_was(tmp_path):
    directory = make_family_run(tmp_path)
    run = RunReader(directory.path, config())
    assert list(run.new_rows()) == []
    for generation, at_one in enumerate([1, 2, 3, 3, 4]):
        fitness = [float(generation), 100.0 * at_one + generation]
        directory.append_metrics(metrics_line(generation, [0, at_one], fitness))
        (row,) = run.new_rows()
        assert row["generation"] == generation
        assert row["fitness/best"] == 100.0 * at_one + generation
    assert row["mutations/hyperparameters/births"] == 2
    assert row["mutations/hyperparameters/effect"] == 151.0
    assert list(RunReader(directory.path, config()).new_rows())[-1] == row


def test_a_line_that_is_not_complete_comes_later(tmp_path):
    directory = make_family_run(tmp_path)
    run, path = RunReader(directory.path, config()), tmp_path / "family" / "metrics.jsonl"
    lines = [json.dumps(metrics_line(g, [0, g + 1], [1.0, None])) + "\n" for g in range(2)]
    path.write_text(lines[0] + lines[1][:40])
    assert [row["generation"] for row in run.new_rows()] == [0]
    path.write_text("".join(lines))
    assert [row["generation"] for row in run.new_rows()] == [1]
    assert list(run.new_rows()) == []
