"""Which runs belong together, and what they are called."""

import pytest

from evorl.errors import ConfigError, EvorlError, RunError
from evorl.runs import Group, RunDirectory, expand_groups, make_grid, read_grid, read_group
from tests.synthetic import make_run

GIVEN = {"env": {"id": "CartPole-v1"}, "budget": {"env_steps": 400}}


def make_group(folder, runs, **changes):
    folder.mkdir()
    group = Group(folder, GIVEN, [], runs, 1)._replace(**changes)
    group.write()
    return group


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("algorithm.lr=1e-3,1e-4", [0.001, 0.0001]),
        ("network.hidden=[64],[64, 64]", [[64], [64, 64]]),
        ("env.kwargs={a: 1, b: 2},{}", [{"a": 1, "b": 2}, {}]),
        ("compile=auto, false", ["auto", False]),
    ],
)
def test_values_are_separated_by_commas(override, values):
    assert read_grid([override]) == ([], {override.partition("=")[0]: values})


@pytest.mark.parametrize("override", ["seed=1", "network.hidden=[64, 64]", "seed", "name="])
def test_one_value_is_an_override_like_any(override):
    assert read_grid([override]) == ([override], {})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["seed=1,1"], "1 is given twice"),
        (["seed=1,2", "seed=3,4"], "seed is given twice"),
        (["network.hidden=[64,[32"], "invalid YAML"),
        (["algorithm.lr=1], [2"], "invalid YAML"),
    ],
)
def test_values_that_are_refused(overrides, says):
    with pytest.raises(ConfigError, match=says):
        read_grid(overrides)


def test_a_grid_has_every_combination_by_a_name_that_says_which():
    found = make_grid("cart", {"algorithm.lr": [0.001, 0.01], "network.hidden": [[8, 9]]})
    assert found == {
        "cart-lr_0.001-hidden_8_9": ["algorithm.lr=0.001", "network.hidden=[8, 9]"],
        "cart-lr_0.01-hidden_8_9": ["algorithm.lr=0.01", "network.hidden=[8, 9]"],
    }
    assert list(make_grid("cart", {"seed": [7, 8]})) == ["cart-seed7", "cart-seed8"]


def test_options_of_one_name_are_told_apart():
    found = make_grid("x", {"replay.kind": ["uniform"], "evolution.selection.kind": ["tournament"]})
    assert list(found) == ["x-replay.kind_uniform-evolution.selection.kind_tournament"]


@pytest.mark.parametrize("values", [["a b", "a_b"], ["x" * 200, "y" * 200]])
def test_names_that_would_be_long_or_alike_are_numbers(values):
    assert list(make_grid("cart", {"replay.kind": values})) == ["cart-1", "cart-2"]


def test_too_many_runs_are_refused():
    with pytest.raises(ConfigError, match="1,001 runs are too many"):
        make_grid("cart", {"seed": range(1001)})


def test_a_group_is_read_as_it_was_written(tmp_path):
    group = make_group(tmp_path / "group", {"one": ["seed=1"]}, overrides=["population.size=2"])
    assert read_group(tmp_path / "group") == group
    (config,) = group.configs()
    assert (config.name, config.seed, config.population.size) == ("one", 1, 2)
    assert config.run.folder == str(tmp_path / "group")


def test_runs_of_a_group_are_a_group_on_wandb_too(tmp_path):
    group = make_group(tmp_path / "group", {"one": [], "two": ["tracking.group=mine"]})
    assert [config.tracking.group for config in group.configs()] == [None, "mine"]
    online = group._replace(overrides=["tracking.wandb=offline"])
    assert [config.tracking.group for config in online.configs()] == ["group", "mine"]


def test_what_is_finished_is_left_out_until_it_may_spend_more(tmp_path):
    group = make_group(tmp_path / "group", {"one": [], "two": []})
    make_run(tmp_path / "group", "one", **GIVEN)
    assert [config.name for config in group.unfinished()] == ["two"]
    more = group._replace(overrides=["budget.env_steps=800"])
    assert [config.name for config in more.unfinished()] == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "format: 2",
        "runs: [",
        "{format: 1, config: {}, overrides: [], jobs: 1}",
        "{format: 1, config: {}, overrides: [], jobs: 1, runs: {../out: []}}",
        "{format: 1, config: {}, overrides: [], jobs: 1, runs: {one: [1]}}",
        "{format: 1, config: {}, overrides: [], jobs: 1, runs: {1: []}}",
        "{format: 1, config: [], overrides: [], jobs: 1, runs: {one: []}}",
        "{format: 1, config: {}, overrides: [], jobs: many, runs: {one: []}}",
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, text):
    (tmp_path / "group.yaml").write_text(text)
    with pytest.raises(EvorlError, match=r"group\.yaml"):
        read_group(tmp_path)


def test_a_group_stands_for_its_runs_that_have_begun(tmp_path):
    make_group(tmp_path / "group", {"one": [], "two": []})
    with pytest.raises(RunError, match="none of its runs has begun"):
        expand_groups([tmp_path / "group"])
    inner = make_run(tmp_path / "group", "two").path
    make_run(tmp_path / "group", "stranger")
    other = make_run(tmp_path, "other").path
    assert expand_groups([other, tmp_path / "group"]) == [other, inner]


def test_a_group_is_no_run(tmp_path):
    make_group(tmp_path / "group", {"one": []})
    with pytest.raises(RunError, match="a group of runs; give one of those in it"):
        RunDirectory.open(tmp_path / "group")
