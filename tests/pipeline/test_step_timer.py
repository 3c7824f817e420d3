"""The table of StepTimer. Times are slept, so that means and shares are known from below."""

import asyncio
import re
import time

import pytest

from evorl import StepTimer, Task
from evorl.errors import ConfigError
from evorl.pipeline.step_timer import Row, duration, table


def sleeps(ctx):
    time.sleep(0.01)


def halves(ctx):
    time.sleep(0.01)
    yield
    time.sleep(0.02)


async def awaits(ctx):
    await asyncio.sleep(0.01)


class Idle:
    def __call__(self, ctx):
        pass


def rows_of(text):
    """By stage: seconds of a call, share, count."""
    units = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    found = re.findall(r"^  (.+?) +(\S+) (s|ms|µs|ns) +([\d.]+)% +(\d+)$", text, re.MULTILINE)
    return {
        name: (float(mean) * units[unit], float(share) / 100, int(count))
        for name, mean, unit, share, count in found
    }


def test_every_n_iterations_and_the_rest_at_the_end():
    tables = []
    task = Task().use_step_wrapper(StepTimer(print_per_step=3, print_on=tables.append))
    task.use(Idle()).use(Idle(), every=5)
    task.run(max_step=8)
    heads = [text.splitlines()[0].split(" in ")[0] for text in tables]
    assert heads == ["iteration 3: 3", "iteration 6: 3", "iteration 8: 2"]
    counts = [{name: row[2] for name, row in rows_of(text).items()} for text in tables]
    assert counts == [{"Idle": 3}, {"Idle": 3, "Idle (2)": 1}, {"Idle": 2}]


def test_means_shares_and_counts_with_halves_together_and_equal_names_apart():
    tables = []
    task = Task()
    task.use(sleeps).use(halves).use(sleeps, every=2)
    task.use_step_wrapper(StepTimer(print_per_step=4, print_on=tables.append))  # also after use
    task.use(awaits).use(task.serial(Idle(), halves))
    task.run(max_step=4)
    (rows,) = map(rows_of, tables)
    assert {name: row[2] for name, row in rows.items()} == {
        "sleeps": 4,
        "halves": 4,
        "sleeps (2)": 2,
        "awaits": 4,
        "Idle": 4,
        "halves (2)": 4,
    }
    for name, least in {"sleeps": 0.01, "halves": 0.03, "awaits": 0.01, "halves (2)": 0.03}.items():
        assert rows[name][0] >= 0.99 * least
    assert 0.9 < sum(share for _, share, _ in rows.values()) < 1.01
    assert rows["Idle"][1] < 0.05


@pytest.mark.parametrize("mode", [False, True])
def test_background_and_asynchronous_stages_are_timed_in_their_threads(mode):
    tables = []
    task = Task(async_mode=mode)
    task.use_step_wrapper(StepTimer(print_per_step=100, print_on=tables.append))
    task.use(sleeps, background=True).use(halves).use(awaits)
    task.run(max_step=3)
    (rows,) = map(rows_of, tables)
    assert {name: row[2] for name, row in rows.items()} == {"sleeps": 3, "halves": 3, "awaits": 3}
    assert rows["halves"][0] >= 0.0295
    if mode:  # they overlap
        assert sum(share for _, share, _ in rows.values()) > 1.01


def test_a_failing_stage_is_timed_and_the_table_printed():
    tables = []

    def fails(ctx):
        raise ValueError("broken")

    task = Task().use_step_wrapper(StepTimer(print_per_step=1, print_on=tables.append))
    with pytest.raises(ValueError, match="broken"):
        task.use(sleeps).use(fails, every=2).run()
    assert [rows_of(text)["sleeps"][2] for text in tables] == [1]


def test_only_the_main_rank_prints(monkeypatch):
    tables = []
    monkeypatch.setenv("RANK", "1")
    task = Task(labels=["node.1"]).use_step_wrapper(StepTimer(1, tables.append))
    task.use(Idle()).run(max_step=2)
    assert tables == []


def test_the_table():
    rows = [Row("collect", 8.0, 100), Row("evaluate", 1.5, 10)]
    assert table(rows, iteration=1200, iterations=100, total=10.0).splitlines() == [
        "iteration 1,200: 100 in 10 s, 100 ms each",
        "  stage         mean   share    count",
        "  collect      80 ms   80.0%      100",
        "  evaluate    150 ms   15.0%       10",
    ]
    assert [duration(s) for s in (12.34, 0.5, 2e-5, 3e-8)] == ["12.3 s", "500 ms", "20 µs", "30 ns"]


def test_it_prints_to_the_terminal_unless_told_otherwise(capsys):
    Task().use_step_wrapper(StepTimer(print_per_step=1)).use(Idle()).run(max_step=1)
    assert capsys.readouterr().out.startswith("iteration 1: 1 in ")


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_a_wrong_number_is_refused(wrong):
    with pytest.raises(ConfigError, match="print_per_step: expected a number from 1 on, got"):
        StepTimer(print_per_step=wrong)
