"""Runs grouped by configuration: labels, figures, warnings, and directories that are no runs."""

import json

import numpy as np
import pytest

from evorl.cli.compare import comparison_lines
from evorl.errors import EvorlError
from evorl.evolution.schedule import Schedule, Segment
from evorl.genome import Architecture
from evorl.runs.compare import compare_runs, probability_of_improvement, read_runs, summarise_group
from tests.synthetic import HYPERPARAMETERS, make_run

ENV = {"env": {"id": "Acrobot-v1"}}


def runs_of(folder, name, scores, *options, **config):
    """One run a score, with seeds 0, 1, …"""
    return [
        make_run(folder, f"{name}-{k}", score=float(score), options=options, seed=k, **config).path
        for k, score in enumerate(scores)
    ]


def compared(*paths):
    return compare_runs(read_runs([path for group in paths for path in group]))


def labels(comparison):
    return {env: [g.label for g in groups] for env, groups in comparison.groups.items()}


def test_groups_by_what_differs(tmp_path):
    evolved = runs_of(tmp_path, "a", [3, 1, 2])
    plain = runs_of(tmp_path, "b", [0, 1], "evolution.method=none")
    found = compared(plain, evolved)
    assert labels(found) == {"CartPole-v1": ["evolution.method=none", "evolution.method=evolution"]}
    first, second = found.groups["CartPole-v1"]
    assert (list(first.scores), list(second.scores)) == ([0, 1], [3, 1, 2])
    assert second.steps == 1100


def test_seeds_names_folders_and_trackers_make_no_groups(tmp_path):
    options = ["tracking.wandb=offline", "checkpoint.every=5"]
    one = make_run(tmp_path, "a", seed=1, run={"folder": "here"}, options=options)
    two = make_run(tmp_path, "b", seed=2, run={"folder": "there", "if_exists": "number"})
    found = compared([one.path, two.path])
    assert labels(found) == {"CartPole-v1": ["a"]}
    assert found.improvements == []
    assert found.warnings == []


def test_one_group_of_replayed_seeds_has_their_common_name(tmp_path):
    paths = [make_run(tmp_path, f"cart-seed{seed}", seed=seed).path for seed in (7, 8)]
    assert labels(compared(paths)) == {"CartPole-v1": ["cart"]}


@pytest.mark.parametrize(
    ("options", "label", "other"),
    [
        (["algorithm.lr=0.01"], "algorithm.lr=0.01", "algorithm.lr=0.001"),
        (["network.hidden=[8, 9]"], "network.hidden=[8, 9]", "network.hidden=[64, 64]"),
        (["algorithm.double=false"], "algorithm.double=false", "algorithm.double=true"),
        (
            ["population.size=2", "seed=9", "replay.share=agent"],
            "replay.share=agent population.size=2",
            "replay.share=rank population.size=4",
        ),
        (
            ["env.kwargs={max_episode_steps: 9}"],
            "env.kwargs.max_episode_steps=9",
            "env.kwargs.max_episode_steps=none",
        ),
    ],
)
def test_labels(tmp_path, options, label, other):
    paths = [make_run(tmp_path, "a").path, make_run(tmp_path, "b", options=options).path]
    assert labels(compared(paths)) == {"CartPole-v1": [other, label]}


def follow(directory, *segments, architecture=None):
    """Make a run of one that followed a schedule: (step, changed hyperparameters), …"""
    parts = tuple(Segment(step, HYPERPARAMETERS | changes) for step, changes in segments)
    schedule = Schedule("CartPole-v1", 5000, {"q": architecture or Architecture()}, parts)
    directory.write_schedule(schedule)
    return directory.path


ALONE = ["evolution.method=none", "population.size=1", "replay.share=agent"]


def replayed(folder, name, *segments, seed=1, **architecture):
    directory = make_run(folder, name, seed=seed, options=ALONE)
    return follow(directory, *segments, **architecture)


def test_schedules_make_groups(tmp_path):
    """Named by the first digits of a checksum."""
    paths = [
        replayed(tmp_path, "a", (0, {}), (1000, {"lr": 0.5}), seed=1),
        replayed(tmp_path, "b", (0, {}), (1000, {"lr": 0.5}), seed=2),
        replayed(tmp_path, "c", (0, {}), (4000, {"lr": 0.5})),
        make_run(tmp_path, "d", options=ALONE).path,
    ]
    assert labels(compared(paths[:2])) == {"CartPole-v1": ["a"]}
    groups = compared(paths).groups["CartPole-v1"]
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert [len(group.label) for group in groups[:2]] == [len("schedule=") + 8] * 2
    assert groups[2].label == "schedule=none"


def test_groups_in_several_environments(tmp_path):
    """What differs between environments is no difference between groups."""
    paths = [
        runs_of(tmp_path, "a", [1, 2, 3]),
        runs_of(tmp_path, "b", [2, 3, 9], "evolution.method=none"),
        runs_of(tmp_path, "c", [-90, -80], **ENV, algorithm={"lr": 0.5}),
        runs_of(tmp_path, "d", [-85, -95], "evolution.method=none", **ENV, algorithm={"lr": 0.5}),
        runs_of(tmp_path, "e", [5, 6], env={"id": "MountainCar-v0"}),
    ]
    found = compared(*paths)
    both = ["evolution.method=evolution", "evolution.method=none"]
    assert labels(found) == {"CartPole-v1": both, "Acrobot-v1": both, "MountainCar-v0": both[:1]}
    assert [pair[:3] for pair in found.improvements] == [
        ("CartPole-v1", *both),
        ("Acrobot-v1", *both),
    ]
    first, second = (pair.probability for pair in found.improvements)
    assert first == probability_of_improvement([1.0, 2, 3], [2.0, 3, 9])
    assert first.value == pytest.approx((1 + 0.5 + 0.5) / 9)
    assert second.value == 3 / 4


def test_groups_that_never_meet_are_not_compared(tmp_path):
    one = runs_of(tmp_path, "a", [1, 2]), runs_of(tmp_path, "b", [1], "algorithm.lr=0.1")
    other = runs_of(tmp_path, "c", [1, 2], "algorithm.lr=0.2", **ENV)
    found = compared(*one, other)
    assert [(pair.x, pair.y) for pair in found.improvements] == [
        ("algorithm.lr=0.001", "algorithm.lr=0.1")
    ]
    assert not found.improvements[0].probability.known


def test_figures_are_those_of_the_scores_and_stay(tmp_path):
    scores = np.random.default_rng(0).normal(100, 9, 7)
    paths = runs_of(tmp_path, "a", scores)
    (group,) = compared(paths).groups["CartPole-v1"]
    assert group.summary == summarise_group(scores)
    assert list(comparison_lines(compared(paths))) == list(comparison_lines(compared(paths)))


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((1000, 140), None),
        ((1000, 170), "one group had 6 % more environment steps than another"),
        ((900, 50), "one group had 16 % more environment steps than another"),
    ],
)
def test_unequal_budgets_are_told(tmp_path, steps, says):
    equal = make_run(tmp_path, "a")
    other = make_run(tmp_path, "b", steps=steps, options=["algorithm.lr=0.5"])
    found = compared([equal.path, other.path])
    assert found.warnings == ([f"CartPole-v1: {says}"] if says else [])
    assert [group.steps for group in found.groups["CartPole-v1"]] == [1100, sum(steps)]


def test_a_seed_that_is_there_twice_is_told(tmp_path):
    paths = [make_run(tmp_path, name, seed=3).path for name in ("a", "b")]
    assert compared(paths).warnings == [
        "CartPole-v1: 2 runs of a have seed 3, so they count too often"
    ]


def test_the_text(tmp_path):
    evolved = runs_of(tmp_path, "a", [30, 31, 32, 33])
    plain = runs_of(tmp_path, "b", [20.5], "evolution.method=none", "population.size=1")
    lines = list(comparison_lines(compared(evolved, plain)))
    assert " ".join(lines[0].split()) == (
        "CartPole-v1 runs IQM 95 % interval mean 95 % interval steps a run"
    )
    text = "\n".join(lines)
    assert "4  31.5" in text  # runs and IQM
    (alone,) = [line for line in lines if "20.5" in line]
    assert alone.split()[-6:] == ["1", "20.5", "—", "20.5", "—", "1,100"]
    assert max(map(len, lines)) <= 100
    (row,) = [line for line in lines if "1.000" in line]
    assert row.split()[-3:] == ["1.000", "—", "CartPole-v1"]


def test_long_labels_wrap(tmp_path):
    options = [f"algorithm.{name}=0.5" for name in ("lr", "gamma", "tau", "epsilon_end")]
    paths = [make_run(tmp_path, "a").path, make_run(tmp_path, "b", options=options).path]
    lines = list(comparison_lines(compared(paths)))
    assert max(map(len, lines)) <= 100
    for option in options:
        assert "\n".join(lines).count(option) == 2  # in the table, and as Y


def assert_refused(says, *paths):
    with pytest.raises(EvorlError) as caught:
        read_runs(paths)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_compared(tmp_path):
    good = make_run(tmp_path, "good").path
    assert_refused("no such run directory", good, tmp_path / "nothing")
    unfinished = make_run(tmp_path, "unfinished").path
    (unfinished / "summary.json").unlink()
    assert_refused("unfinished: the run is not finished", good, unfinished)
    assert_refused("not a run directory, as it has no config.yaml", tmp_path)


def test_what_is_not_finished_is_left_out_and_named(evorl, tmp_path):
    runs_of(tmp_path, "a", [30, 31])
    make_run(tmp_path, "stopped").remove_summary()
    failed = make_run(tmp_path, "failed")
    failed.remove_summary()
    (failed.path / "failure.json").write_text('{"reason": "no", "lasting": true}')
    (make_run(tmp_path, "damaged").path / "summary.json").write_text("{")
    (tmp_path / "notes.txt").write_text("no run")
    names = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = evorl("compare", *names)
    assert (code, err) == (0, "")
    assert " 2  30.5" in out
    left_out = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert [line.removeprefix("left out: ").split(":")[0] for line in left_out] == [
        "damaged/summary.json",
        "failed",
        "notes.txt",
        "stopped",
    ]
    assert left_out[1].endswith("failed, not finished")
    code, out, err = evorl("compare", "stopped", "failed")
    assert (code, out) == (2, "")
    assert err == "error: stopped: stopped, not finished; nor is any other of these\n"


def _spoil(key, value):
    def change(summary):
        summary[key] = value
        return json.dumps(summary)

    return change


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda summary: "", "not a summary of this version: invalid JSON"),
        (lambda summary: json.dumps(summary)[:40], "not a summary of this version: invalid JSON"),
        (lambda summary: "[]", "not a summary of this version"),
        (_spoil("score", None), "score"),
        (_spoil("env_steps", "many"), "env_steps"),
        (lambda summary: json.dumps(summary).replace("450.0", "null"), "score.mean.value"),
        (lambda summary: json.dumps(summary).replace("450.0", "NaN"), "NaN is no finite number"),
    ],
)
def test_damaged_summaries(tmp_path, spoil, says):
    directory = make_run(tmp_path, "a")
    path = directory.path / "summary.json"
    path.write_text(spoil(json.loads(path.read_text())))
    assert_refused(says, directory.path)


@pytest.mark.parametrize("text", ["", "env: [", "nonsense: 1\n", "- 1\n"])
def test_damaged_configurations(tmp_path, text):
    directory = make_run(tmp_path, "a")
    (directory.path / "config.yaml").write_text(text)
    assert_refused("config.yaml: ", directory.path)
