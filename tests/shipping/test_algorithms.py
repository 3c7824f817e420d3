"""Agents of every algorithm outside of training, against the matrices' greedy actions."""

import dataclasses
import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.cli.ship import FORMATS
from evorl.errors import RunError
from evorl.networks.spec import NetworkSpec
from evorl.runs.agent import FACTS, Agent, Interface, load_agent, read_agent, save_agent
from evorl.shipping.export import export_agent, random_inputs, random_observations, read_model
from evorl.shipping.play import _play
from tests.shipping.actors import (
    BOX,
    CASES,
    HIGH,
    INTERFACES,
    LOW,
    MEAN,
    PARTS,
    STARTS,
    Case,
    expected,
    inputs_of,
    population_of,
    saved,
)
from tests.shipping.test_export import run_outside

torch.set_num_threads(1)

COUNT = 200
# Of a network in float32 whose outputs are large: the matrix adds up in another order.
ROUNDING = 1e-5


def assert_same(case, found, wanted):
    """Equal; of choices all but ties."""
    assert found.shape == wanted.shape
    assert found.dtype == np.dtype(case.interface.action_dtype)
    if case.action.kind == "continuous":
        np.testing.assert_allclose(found, wanted, rtol=0, atol=ROUNDING)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture(scope="module")
def populations():
    return {name: population_of(case, seed) for seed, (name, case) in enumerate(CASES.items())}


@pytest.mark.parametrize("name", CASES)
def test_an_agent_does_what_its_row_would_do(populations, name):
    case, population = CASES[name], populations[name]
    inputs = inputs_of(case, COUNT)
    wanted = expected(case, population, inputs)
    for i in range(population.size):
        agent = Agent(saved(case, population, i))
        assert len(np.unique(wanted[i], axis=0)) > 1
        assert_same(case, agent.act(*inputs), wanted[i])
        assert_same(case, agent(*map(torch.from_numpy, inputs)).detach().numpy(), wanted[i])
        for k in range(3):
            assert_same(case, agent.act(*(one[k] for one in inputs)), wanted[i][k])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.action is BOX])
def test_continuous_actions_stay_in_the_box_to_the_last_bit(populations, name):
    case, population = CASES[name], populations[name]
    interface = case.interface
    dtype = np.dtype(interface.action_dtype)
    low, high = (np.array(own, dtype).reshape(interface.action_shape) for own in (LOW, HIGH))
    space = spaces.Box(low, high, dtype=dtype.type)
    (obs,) = inputs_of(case, COUNT)
    middle = MEAN.astype(np.float32) if case.normalize else 0
    far = middle + 100 * (obs - middle)
    at_ends = 0
    for i in range(population.size):
        actions = Agent(saved(case, population, i)).act(far)
        assert all(space.contains(one) for one in actions)
        at_ends += (actions == high).sum() + (actions == low).sum()
    assert at_ends > 0


@pytest.mark.parametrize("kind", ["ppo masked", "ppo masked multidiscrete"])
def test_what_a_mask_forbids_is_never_done(populations, kind):
    case, population = CASES[kind], populations[kind]
    obs, mask = inputs_of(case, COUNT)
    sizes = case.action.choices
    for i in range(population.size):
        agent = Agent(saved(case, population, i))
        actions = (agent.act(obs, mask) - np.array(case.interface.action_start)).reshape(COUNT, -1)
        free = (agent.act(obs) - np.array(case.interface.action_start)).reshape(COUNT, -1)
        assert (free != actions).any()
        np.testing.assert_array_equal(agent.act(obs, np.ones_like(mask)), agent.act(obs))
        parts = np.split(mask, np.cumsum(sizes)[:-1], 1)
        for part, chosen, wished in zip(parts, actions.T, free.T, strict=True):
            assert np.take_along_axis(part, chosen[:, None], 1).all()
            allowed = np.take_along_axis(part, wished[:, None], 1)[:, 0] > 0
            np.testing.assert_array_equal(chosen[allowed], wished[allowed])


def test_masks_of_several_parts_as_gymnasium_gives_them(populations):
    name = "ppo masked multidiscrete"
    agent = Agent(saved(CASES[name], populations[name], 0))
    obs, mask = inputs_of(CASES[name], 20)
    parts = np.split(mask, np.cumsum(PARTS)[:-1], 1)
    np.testing.assert_array_equal(agent.act(obs, tuple(parts)), agent.act(obs, mask))
    space = spaces.MultiDiscrete(PARTS, start=STARTS)
    for k in range(20):
        own = tuple(part[k] for part in parts)
        assert space.contains(agent.act(obs[k], own))
        for same in (list(own), mask[k].astype(bool), mask[k].tolist()):
            np.testing.assert_array_equal(agent.act(obs[k], same), agent.act(obs[k], own))


def test_masks_that_do_not_fit_are_refused(populations):
    name = "ppo masked"
    agent = Agent(saved(CASES[name], populations[name], 0))
    obs = np.zeros((2, 5), np.float32)
    for mask in (np.ones(4), np.ones((2, 3)), np.ones((3, 4))):
        with pytest.raises(ValueError, match=r"the mask must have shape \(2, 4\), got"):
            agent.act(obs, mask)
    with pytest.raises(ValueError, match=r"the mask must have shape \(4,\), got \(3,\)"):
        agent.act(obs[0], np.ones(3))
    without = Agent(saved(CASES["dqn"], populations["dqn"], 0))
    with pytest.raises(ValueError, match="without action masks"):
        without.act(obs, np.ones((2, 4)))


# files


@pytest.fixture(scope="module", params=FORMATS)
def exported(request, populations, tmp_path_factory):
    """One agent of each case, of another architecture each, with what it answers without evorl."""
    folder = tmp_path_factory.mktemp(request.param)
    for k, (name, case) in enumerate(CASES.items()):
        agent = Agent(saved(case, populations[name], k % 4))
        _, difference = export_agent(agent, request.param, folder / name)
        assert difference < ROUNDING
        for what, values in zip(("obs", "mask"), inputs_of(case, COUNT), strict=False):
            np.save(folder / name / f"{what}.npy", values)
    run_outside(folder)
    return folder, request.param


@pytest.mark.parametrize("name", CASES)
def test_an_exported_agent_does_what_its_row_would_do(populations, exported, name):
    """In a process that cannot import evorl."""
    case, folder = CASES[name], exported[0] / name
    number = list(CASES).index(name) % 4
    wanted = expected(case, populations[name], inputs_of(case, COUNT))[number]
    answer = np.load(folder / "answer.npz")
    found = answer["action"]
    if case.action.kind == "continuous":
        assert_same(case, found, wanted)
    else:
        assert (found.shape, found.dtype.name) == (wanted.shape, case.interface.action_dtype)
        assert (found == wanted).mean() > 0.99  # other kernels, which may settle a tie otherwise


def test_an_exported_agent_reads_what_its_facts_say(exported):
    folder, format = exported
    for name, case in CASES.items():
        if format == "safetensors":
            assert load_agent(folder / name).saved.interface == case.interface
        else:
            values = json.loads((folder / name / FACTS).read_text())["interface"]
            assert values == json.loads(json.dumps(dataclasses.asdict(case.interface)))
        model = read_model(format, folder / name)
        found = model(*inputs_of(case, 3))
        assert list(found) == ["action", case.reads]


def test_random_masks_leave_a_choice_of_every_part(populations):
    name = "ppo masked multidiscrete"
    agent = saved(CASES[name], populations[name], 0)
    drawn = random_inputs(agent, 500, np.random.default_rng(0))
    assert list(drawn) == ["obs", "mask"]
    assert drawn["mask"].dtype == np.int8
    for part in np.split(drawn["mask"], np.cumsum(PARTS)[:-1], 1):
        assert part.any(1).all()
        assert 0.5 < part.mean() < 0.9


@pytest.mark.parametrize("name", ["sac normalised", "ppo normalised"])
def test_normalised_agents_are_compared_where_their_observations_are(populations, name):
    agent = saved(CASES[name], populations[name], 0)
    drawn = random_observations(agent, 2000, np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((2000, len(MEAN)), np.float32)
    mean, var = (agent.parameters[f"normalizer.obs_{own}"].numpy() for own in ("mean", "var"))
    read = (drawn - mean) / np.sqrt(var)
    np.testing.assert_allclose(read.mean(0), 0, atol=0.12)  # five standard errors
    np.testing.assert_allclose(read.std(0), 1, atol=0.08)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_normalised_whole_numbers_stay_in_their_range(populations, dtype):
    before = saved(CASES["sac normalised"], populations["sac normalised"], 0)
    scale = 1 / 255 if dtype == "uint8" else 1.0
    agent = before._replace(
        interface=dataclasses.replace(before.interface, dtype=dtype),
        specs={
            name: dataclasses.replace(spec, scale=scale) if isinstance(spec, NetworkSpec) else spec
            for name, spec in before.specs.items()
        },
        parameters=before.parameters
        | {
            "normalizer.obs_mean": scale * torch.tensor([0.0, 50.0, 100.0, 200.0, 255.0]),
            "normalizer.obs_var": scale**2 * torch.full((5,), 64.0),
        },
    )
    drawn = random_observations(agent, 2000, np.random.default_rng(0))
    assert drawn.dtype == dtype
    np.testing.assert_allclose(drawn[:, 1:4].mean(0), [50, 100, 200], atol=1)
    np.testing.assert_allclose(drawn[:, 1:4].std(0), 8, atol=0.7)
    if dtype == "uint8":  # clipped, not wrapped around
        assert drawn[:, 0].max() < 60
        assert drawn[:, 4].min() > 195


# agent.json


@pytest.mark.parametrize("name", CASES)
def test_round_trip(populations, tmp_path, name):
    before = saved(CASES[name], populations[name], 1)
    save_agent(tmp_path, before)
    after = read_agent(tmp_path)
    assert after._replace(parameters={}) == before._replace(parameters={})
    inputs = inputs_of(CASES[name], 10)
    np.testing.assert_array_equal(load_agent(tmp_path).act(*inputs), Agent(before).act(*inputs))


def test_an_interface_from_before_continuous_actions_is_one_of_choices(populations, tmp_path):
    save_agent(tmp_path, saved(CASES["dqn"], populations["dqn"], 0))
    values = json.loads((tmp_path / FACTS).read_text())
    for name in ("action_shape", "action_dtype", "low", "high"):
        del values["interface"][name]
    (tmp_path / FACTS).write_text(json.dumps(values))
    assert read_agent(tmp_path).interface == INTERFACES["discrete"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"low": []}, "bounds of actions don't fit"),
        ({"high": [1.0, 2.0]}, "bounds of actions don't fit"),
        ({"action_shape": [4]}, "bounds of actions don't fit"),
        ({"low": [-2.0, 0.9, -5.0]}, "upside down"),
        ({"low": ["-2", "0", "0"]}, "low"),
        ({"high": None}, "high"),
        ({"action_start": [1, 2]}, "starts of actions don't fit"),
        ({"action_start": "1"}, "action_start"),
        ({"action_dtype": "object"}, "'object' is no type of numbers"),
        ({"action_dtype": "f4,(2"}, "is no type of numbers"),
        ({"dtype": "text" * 99}, "is no type of numbers"),
    ],
)
def test_an_interface_that_cannot_be_is_refused_in_one_line(populations, tmp_path, changes, says):
    save_agent(tmp_path, saved(CASES["sac"], populations["sac"], 0))
    values = json.loads((tmp_path / FACTS).read_text())
    values["interface"] |= changes
    (tmp_path / FACTS).write_text(json.dumps(values))
    with pytest.raises(RunError, match=says) as caught:
        read_agent(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_bounds_that_are_not_finite_are_refused(populations, tmp_path, number):
    save_agent(tmp_path, saved(CASES["sac"], populations["sac"], 0))
    text = (tmp_path / FACTS).read_text().replace("0.7", number)
    (tmp_path / FACTS).write_text(text)
    with pytest.raises(RunError):
        read_agent(tmp_path)


# watched


class Arena(gymnasium.Env):
    """Random observations; refuses actions that are not of its space, or not allowed."""

    def __init__(self, case: Case):
        interface: Interface = case.interface
        if case.action.kind == "continuous":
            low, high = np.float32(LOW), np.float32(HIGH)
            self.action_space = spaces.Box(low, high)
        elif case.action.kind == "multidiscrete":
            self.action_space = spaces.MultiDiscrete(PARTS, start=STARTS)
        else:
            self.action_space = spaces.Discrete(4, start=interface.action_start)
        self.case, self.taken, self.seed = case, [], 0

    def _next(self):
        self.seed += 1
        obs, *masks = (one[0] for one in inputs_of(self.case, 1, self.seed))
        self.mask = masks[0] if masks else None
        return obs, {"action_mask": self.mask if masks else np.zeros(4, np.int8)}

    def reset(self, *, seed=None, options=None):
        return self._next()

    def step(self, action):
        assert self.action_space.contains(action), action
        if self.mask is not None:
            assert self.mask[action - 5]
        self.taken.append(action)
        obs, info = self._next()
        return obs, 1.0, len(self.taken) == 30, False, info

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    "name", ["dqn", "sac", "ppo continuous", "ppo masked", "a2c multidiscrete"]
)
def test_a_film_shows_what_the_agent_does(populations, name):
    """An environment's mask is for agents that were trained with masks."""
    case = CASES[name]
    env = Arena(case)
    film = _play(env, Agent(saved(case, populations[name], 0)), 1, 100)
    assert sum(1 for _ in film) == 31
    assert len(np.unique(env.taken, axis=0)) > 1
