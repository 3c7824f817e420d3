"""Exported models, in a process that cannot import evorl, against the matrix that trains."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from evorl.cli.ship import FORMATS
from evorl.errors import RunError
from evorl.runs.agent import Agent
from evorl.shipping import export as exporting
from evorl.shipping.export import Decision, export_agent, model_of, random_observations
from evorl.shipping.play import select_agent
from tests.shipping.worlds import (
    ACTION_START,
    FORMS,
    INTERFACES,
    SPECS,
    architectures,
    in_our_form,
    make_run,
    matrix_values,
    population_of,
    raw_observations,
    saved,
)

torch.set_num_threads(1)

OBSERVATIONS = 1000
OUTSIDE = Path(__file__).with_name("outside.py")
DOCS = Path(__file__).parents[2] / "docs" / "shipping.md"
AGENTS = {form: len(list(architectures(form))) for form in FORMS}
CASES = [(form, k) for form in FORMS for k in range(AGENTS[form])]
# Every activation, head and kind of layer for vectors, less for the rest: a program takes a second.
SOME = {form: [6] for form in FORMS} | {"vector": [0, 3, 5, 6, 9], "pixels": [2, 7]}
CASES = [(form, k) for form, k in CASES if k in SOME[form]]


def documented_loader(folder):
    """The code of docs/shipping.md that reads weights, as a file."""
    text = DOCS.read_text(encoding="utf-8").partition("### The weights by hand")[2]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    path = folder / "loader.py"
    path.write_text(code, encoding="utf-8")
    return path


def run_outside(folder):
    """Run outside.py; it must not find evorl, and it says so if it does."""
    paths = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    loader = documented_loader(folder)
    command = [sys.executable, "-I", "-S", OUTSIDE, folder, loader, *sorted(paths)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
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
        export_agent(Agent(select_agent(directory.path, 10 + k).agent), request.param, target)
        np.save(target / "obs.npy", raw)
    run_outside(folder)
    return folder


@pytest.mark.parametrize(("form", "k"), CASES)
def test_the_same_outputs_and_actions_as_the_live_agent(exported, runs, form, k):
    expected = runs[form][2][k]
    answer = np.load(exported / f"{form}-{k}" / "answer.npz")
    assert answer["q"].shape == (OBSERVATIONS, 3)
    assert answer["q"].dtype == np.float32
    assert expected.std(0).min() > 1e-4 * np.abs(expected).max()  # they depend on the observation
    rounding = 3e-6 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(answer["q"], expected, rtol=0, atol=rounding)
    first, second = np.sort(expected, 1)[:, :-3:-1].T
    clear = first - second > 2 * rounding
    assert clear.mean() > 0.95
    best = ACTION_START + expected.argmax(1)
    np.testing.assert_array_equal(answer["action"][clear], best[clear])


def test_what_the_live_values_are_compared_with_is_by_hand(runs):
    """The adapter that training uses agrees with this test's own idea of it."""
    for form, (directory, raw, _) in runs.items():
        agent = select_agent(directory.path, 10).agent
        assert (agent.specs, agent.interface) == ({"q": SPECS[form]}, INTERFACES[form])
        ours, expected = Agent(agent).prepare(torch.from_numpy(raw)), in_our_form(form, raw)
        np.testing.assert_array_equal(ours.numpy().astype(expected.dtype), expected)


@pytest.mark.parametrize("form", FORMS)
def test_random_observations_are_like_the_environment_s(form):
    agent = saved(population_of(form, list(architectures(form))[:1]), form=form)
    found = random_observations(agent, 500, np.random.default_rng(0))
    real = raw_observations(form, 3)
    assert found.shape[1:] == real.shape[1:]
    assert found.dtype == real.dtype
    if found.dtype.kind != "f":  # networks take any fraction
        assert all(FORMS[form].contains(one) for one in found)
    assert found.std() > 0


def test_nothing_is_there_to_execute_but_the_model(exported):
    names = {path.name for path in exported.glob("*/*")} - {"obs.npy", "answer.npz"}
    model = {"model.pt2", "model.onnx", "weights.safetensors"}
    assert "agent.json" in names
    assert len(names - {"agent.json"}) == len(names & model) == 1


def test_who_may_read_one_file_may_read_all(exported):
    for folder in exported.iterdir():
        if folder.is_dir():
            assert len({file.stat().st_mode for file in folder.iterdir() if file.is_file()}) == 1


def agent_of(runs):
    return Agent(select_agent(runs["vector"][0].path).agent)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: {"q": found["q"] * np.float32(1.01)}, "by 0.01 of the largest output"),
        (lambda found: {"q": found["q"] * np.float32(np.nan)}, r"no q of shape \(1000, 3\)"),
        (lambda found: {"action": found["action"] + 1}, "in action"),
        (lambda found: {"action": found["action"][:1]}, "no action of shape"),
    ],
)
def test_a_model_that_differs_is_not_written(runs, tmp_path, monkeypatch, change, says):
    def wrong(format, folder):
        model = right(format, folder)
        return lambda obs: model(obs) | change(model(obs))

    right = exporting.read_model
    monkeypatch.setattr(exporting, "read_model", wrong)
    with pytest.raises(RunError, match=f"the pt2 model .*{says}.*nothing was written"):
        export_agent(agent_of(runs), "pt2", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_cannot_be_exported_is_one_line(runs, tmp_path):
    class Fickle:
        def greedy(self, networks, obs):
            q = networks["q"](obs)
            return q.max(-1).indices if q.sum() > 0 else q.min(-1).indices

    agent = agent_of(runs)
    agent.algorithm = Fickle()
    with pytest.raises(RunError, match="cannot export this agent as pt2: ") as caught:
        export_agent(agent, "pt2", tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(runs, tmp_path, monkeypatch):
    def full(agent, format, folder):
        (folder / "model.onnx").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_model", full)
    with pytest.raises(RunError, match=r"out: cannot export this agent .*No space left on device"):
        export_agent(agent_of(runs), "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_decision_has_the_action_and_what_it_comes_from(runs):
    _, raw, values = runs["vector"]
    found = model_of(Decision(agent_of(runs)))(raw)
    assert list(found) == ["action", "q"]
    np.testing.assert_allclose(found["q"], values[0], rtol=0, atol=1e-5)
