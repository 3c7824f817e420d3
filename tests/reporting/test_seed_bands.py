"""Runs of one configuration together, in the data of a page and as a chart."""

import pytest

from evorl.reporting.run_data import read_payload
from evorl.reporting.seed_bands import POINTS, seed_bands
from tests.synthetic import make_run

from .runs import finished, going


def known(folder, name, steps, best, state="finished", **config):
    """A run of which this is known."""
    directory = make_run(folder, name, **config)
    if state != "finished":
        directory.remove_summary()
    rows = {"env_steps": steps, "best": best}
    return {"path": str(directory.path), "state": state, "rows": rows}


def test_the_middle_of_the_runs_and_its_interval(tmp_path):
    runs = [
        known(tmp_path, "a", [10, 20, 30], [None, 1.0, 2.0], seed=1),
        known(tmp_path, "b", [10, 20, 30], [0.0, 3.0, 6.0], seed=2),
    ]
    (band,) = seed_bands(runs)
    assert band == {
        "env": "CartPole-v1",
        "label": "a",
        "runs": 2,
        "steps": [20, 30],  # where both have an agent
        "iqm": [2.0, 4.0],
        "low": [1.0, 2.0],  # two runs, drawn twice: one may come twice
        "high": [3.0, 6.0],
    }


def test_what_has_ended_keeps_its_best_and_what_has_not_ends_the_band(tmp_path):
    early = known(tmp_path, "a", [10], [5.0], seed=1)
    late = known(tmp_path, "b", [10, 20, 30], [1.0, 3.0, 7.0], seed=2)
    (band,) = seed_bands([early, late])
    assert (band["steps"], band["iqm"]) == ([10, 20, 30], [3.0, 4.0, 6.0])
    going = known(tmp_path, "c", [10, 20], [3.0, 3.0], "running", seed=3)
    (band,) = seed_bands([early, late, going])
    assert band["steps"] == [10, 20]
    assert band["runs"] == 3


def test_a_band_is_of_one_configuration(tmp_path):
    one = known(tmp_path, "a", [10], [1.0], seed=1)
    other = known(tmp_path, "b", [10], [2.0], seed=2, algorithm={"lr": 0.5})
    third = known(tmp_path, "c", [10], [3.0], seed=3, algorithm={"lr": 0.5})
    assert seed_bands([one, other]) == []
    (band,) = seed_bands([one, other, third])
    assert (band["label"], band["iqm"]) == ("algorithm.lr=0.5", [2.5])


def test_runs_that_have_nothing_in_common_have_no_band(tmp_path):
    one = known(tmp_path, "a", [10], [1.0], "running", seed=1)
    other = known(tmp_path, "b", [20], [2.0], seed=2)
    assert seed_bands([one, other]) == []
    assert seed_bands([one, known(tmp_path, "c", [], [], "running", seed=3)]) == []


def test_long_runs_are_thinned_out(tmp_path):
    steps = list(range(10, 10_010, 10))
    runs = [known(tmp_path, str(seed), steps, [1.0] * 1000, seed=seed) for seed in (1, 2)]
    (band,) = seed_bands(runs)
    assert len(band["steps"]) == POINTS
    assert (band["steps"][0], band["steps"][-1]) == (10, 10_000)


def test_the_report_of_several_runs_has_them(tmp_path):
    paths = [finished(tmp_path, "one").path, going(tmp_path, "two").path]
    assert read_payload(paths[:1])["bands"] == []
    assert read_payload(paths)["bands"] == []  # they differ in population.size
    (band,) = read_payload([paths[0], finished(tmp_path, "three").path])["bands"]
    assert band["iqm"] == [90.0, 91.0, 92.0, 93.0, 94.0]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_draws_them(evorl, tmp_path, visit, width, scheme):
    for name in ("one", "two"):
        finished(tmp_path, name)
    assert evorl("report", "one", "two")[0] == 0
    page = visit((tmp_path / "report.html").as_uri(), width, scheme)
    chart = page.locator("svg[data-chart='bands-CartPole-v1']")
    assert chart.locator("path.over-runs").count() == 1
    assert chart.locator("path.curve").count() == 1
    chart.scroll_into_view_if_needed()
    chart.focus()
    page.keyboard.press("End")
    assert "94" in page.locator("#tooltip").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
