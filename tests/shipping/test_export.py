"""Exported models, in a process that cannot import evorl, against the matrix that trains."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from evorl.errors import RunError
from evorl.shipping.export import export
from evorl.shipping.formats import FORMATS
from evorl.shipping.pick import pick
from tests.shipping.worlds import (
    ACTION_START,
    FORMS,
    PROBLEMS,
    architectures,
    in_our_form,
    make_run,
    matrix_values,
    population_of,
    raw_observations,
)

torch.set_num_threads(1)

OBSERVATIONS = 1000
OUTSIDE = Path(__file__).with_name("outside.py")
AGENTS = {form: len(list(architectures(form))) for form in FORMS}
CASES = [(form, k) for form in FORMS for k in range(AGENTS[form])]
# All for images and vectors, two of each for the rest: writing ONNX takes a fifth of a second.
WHOLE = ("vector", "pixels")
CASES = [(form, k) for form, k in CASES if form in WHOLE or k in (3, 6)]


def run_outside(folder):
    """Run outside.py; it must not find evorl, and it says so if it does."""
    paths = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    command = [sys.executable, "-I", "-S", str(OUTSIDE), str(folder), *sorted(paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run for each form of observation, and the Q values of all its agents, from the matrix."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for form in FORMS:
        population = population_of(form)
        directory = make_run(folder, population, form=form, name=form.replace(" ", "-"))
        raw = raw_observations(form, OBSERVATIONS)
        found[form] = directory, raw, matrix_values(population, in_our_form(form, raw))
    return found


@pytest.fixture(scope="module", params=FORMATS)
def exported(request, runs, tmp_path_factory):
    """All cases in one format, with the answers that they gave outside."""
    folder = tmp_path_factory.mktemp(request.param)
    for form, k in CASES:
        directory, raw, _ = runs[form]
        target = folder / f"{form}-{k}"
        export(pick(directory.path, 10 + k), request.param, target)
        np.save(target / "obs.npy", raw)
    run_outside(folder)
    return folder


@pytest.mark.parametrize(("form", "k"), CASES)
def test_the_same_q_values_as_the_live_agent(exported, runs, form, k):
    expected = runs[form][2][k]
    answer = np.load(exported / f"{form}-{k}" / "answer.npy")
    assert answer.shape == (OBSERVATIONS, 3)
    assert answer.dtype == np.float32
    assert expected.std(0).min() > 1e-4 * np.abs(expected).max()  # they depend on the observation
    rounding = 3e-6 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(answer, expected, rtol=0, atol=rounding)
    first, second = np.sort(expected, 1)[:, :-3:-1].T
    clear = first - second > 2 * rounding
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(answer.argmax(1)[clear], expected.argmax(1)[clear])


@pytest.mark.parametrize(("form", "k"), CASES)
def test_the_example_is_short_and_prints_an_action(exported, form, k):
    folder = exported / f"{form}-{k}"
    lines = (folder / "example.py").read_text().splitlines()
    assert len([line for line in lines[1:] if line]) <= 5
    (action,) = map(int, re.findall(r"\d+", (folder / "example.txt").read_text()))
    assert action in range(ACTION_START, ACTION_START + 3)


def test_what_the_live_values_are_compared_with_is_by_hand(runs):
    """The adapter that training uses agrees with this test's own idea of it."""
    for form, (directory, raw, _) in runs.items():
        picked = pick(directory.path)
        assert picked.interface.problem == PROBLEMS[form]
        ours = picked.interface.adapter.observations(raw)
        np.testing.assert_array_equal(ours, in_our_form(form, raw))


def test_nothing_of_evorl_is_in_the_files(exported):
    for path in exported.glob("*/*.py"):
        text = path.read_text()
        assert not re.search(r"(import|from) +evorl", text)


def test_who_may_read_one_file_may_read_all(exported):
    for folder in exported.iterdir():
        assert len({file.stat().st_mode for file in folder.iterdir() if file.is_file()}) == 1


def test_a_model_that_differs_is_not_written(runs, tmp_path, monkeypatch):
    directory = runs["vector"][0]
    picked = pick(directory.path)

    right = FORMATS["torchscript"]

    def wrong(folder):
        values = right.read(folder)
        return lambda obs: values(obs) * np.float32(1.01)

    chosen = right._replace(read=wrong)
    monkeypatch.setitem(FORMATS, "torchscript", chosen)
    with pytest.raises(RunError, match="differs from the live agent by"):
        export(picked, "torchscript", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_and_keeps_the_old(runs, tmp_path, monkeypatch):
    picked = pick(runs["vector"][0].path)
    folder = tmp_path / "out"
    export(picked, "torchscript", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(parcel, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(FORMATS, "onnx", FORMATS["onnx"]._replace(write=full))
    with pytest.raises(RunError, match="out: cannot be written: No space left on device"):
        export(picked, "onnx", folder, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
