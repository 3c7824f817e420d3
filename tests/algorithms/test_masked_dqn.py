"""DQN where some actions are not allowed: it neither takes them nor hopes for them."""

from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.algorithms.base import Hyperparameters
from evorl.algorithms.dqn import DQN, choose_allowed
from evorl.envs import ActionSpec, EnvSpec, make_episodes
from evorl.genome import Architecture
from evorl.networks.layout import network_part
from evorl.population.compiled import RoundPrograms
from evorl.population.update import compute_gradient
from tests.algorithms.test_dqn import BATCH, SPEC, ByAutograd, Table, group_of, random_batch
from tests.envs import tiny  # noqa: F401  registers Maze-v0
from tests.population.test_compiled import assert_near
from tests.reference import LoneNetwork, genome, population_of, random_samples
from tests.training.test_known_values import GAMMA, TOLERANCE, Setup, learned

torch.set_num_threads(1)

ACTIONS = SPEC.outputs
MASKED = replace(SPEC, mask=ACTIONS)
NONE = Hyperparameters((), torch.zeros(0, 3))


def random_masks(*shape, seed=0):
    """Of four actions, at least one is allowed."""
    random = np.random.default_rng(seed)
    masks = random.random((*shape, ACTIONS)) < 0.5
    masks[..., 0] |= ~masks.any(-1)
    return torch.from_numpy(masks)


def test_greedy_takes_the_best_that_is_allowed():
    values = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 50, ACTIONS)))
    masks = random_masks(3, 50)
    found = DQN().greedy(Table(values, masks), torch.zeros(3, 50, 5))
    for i, n in np.ndindex(3, 50):
        allowed = masks[i, n].nonzero().flatten().tolist()
        assert found[i, n] == max(allowed, key=lambda action: values[i, n, action])


@pytest.mark.parametrize("rate", [0.0, 1e-9, 0.3, 1.0])
def test_acting_takes_allowed_actions_only(rate):
    random = np.random.default_rng(1)
    values, masks = torch.from_numpy(random.normal(size=(3, 500, ACTIONS))), random_masks(3, 500)
    noise = DQN().noise(random, (3, 500), ActionSpec("discrete", ACTIONS))
    noise["chance"][0, :3] = 0.0
    drawn = {name: torch.from_numpy(part) for name, part in noise.items()}
    rates = torch.full((3,), rate, dtype=torch.float64)
    obs = torch.zeros(3, 500, 5)
    found = DQN().act(Table(values, masks), obs, NONE, drawn, rates)
    assert found.dtype == torch.int64
    assert masks.gather(2, found.unsqueeze(2)).all()
    greedy = DQN().greedy(Table(values, masks), obs)
    explored = drawn["chance"] < rate
    assert torch.equal(found[~explored], greedy[~explored])
    # where all are allowed it is what a run without masks does, to the digit
    free = DQN().act(Table(values, torch.ones_like(masks)), obs, NONE, drawn, rates)
    assert torch.equal(free, DQN().act(Table(values), obs, NONE, drawn, rates))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_random_actions_are_uniform_over_what_is_allowed(count):
    random = np.random.default_rng(count)
    allowed = np.sort(random.choice(5, count, replace=False))
    mask = torch.zeros(20_000, 5, dtype=torch.bool)
    mask[:, allowed] = True
    drawn = torch.from_numpy(random.integers(5, size=20_000) + random.random(20_000))
    found = np.bincount(choose_allowed(mask, drawn).numpy(), minlength=5)
    assert set(np.flatnonzero(found)) == set(allowed)
    assert abs(found[allowed] - 20_000 / count).max() < 4 * np.sqrt(20_000 / count)
    last = torch.full((1,), 5.0)  # where rounding led to
    assert choose_allowed(mask[:1], last).item() == allowed[-1]


def masked_batch(seed=0):
    """Observations with masks behind them."""
    batch = random_batch()
    masks = random_masks(*batch.obs.shape[:2], seed=seed).double()
    other = random_masks(*batch.obs.shape[:2], seed=seed + 1).double()
    obs, next_obs = torch.cat((batch.obs, other), -1), torch.cat((batch.next_obs, masks), -1)
    return batch._replace(obs=obs, next_obs=next_obs), masks.bool()


@pytest.mark.parametrize("kind", [DQN, ByAutograd])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
def test_targets_hope_for_allowed_actions_only(kind, double, loss_kind, monkeypatch):
    """In closed form and by autograd, against plain modules."""
    monkeypatch.setattr("tests.algorithms.test_dqn.SPEC", MASKED)
    algorithm = kind(double=double, loss_kind=loss_kind)
    group, (batch, masks) = group_of(algorithm), masked_batch()
    found = compute_gradient(group, algorithm, batch)
    every, differs = torch.arange(BATCH), False
    for i in range(group.size):
        state, architecture = group.state(i), group.genomes[i].architectures["q"]
        online, target = LoneNetwork(SPEC, architecture), LoneNetwork(SPEC, architecture)
        online.load(network_part(state.online, "q"))
        target.load(network_part(state.target, "q"))
        obs, next_obs = (one[i, :, :-ACTIONS] for one in (batch.obs, batch.next_obs))
        following = target(next_obs)
        chooser = online(next_obs) if double else following
        best = chooser.masked_fill(~masks[i], -torch.inf).argmax(1)
        differs |= bool((best != chooser.argmax(1)).any())
        goal = batch.reward[i] + batch.discount[i] * following[every, best].detach()
        error = online(obs)[every, batch.action[i]] - goal
        loss = algorithm.loss_of(error, batch.weight[i])
        loss.backward()
        gradient = {f"q.{n}": value for n, value in online.read(lambda p: p.grad).items()}
        torch.testing.assert_close(found.priority[i], error, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            found.gradient[i], group.layout.pack(gradient), rtol=0, atol=1e-12
        )
    assert differs


@pytest.mark.parametrize("algorithm", [DQN(), ByAutograd()])
def test_programs_know_masks_and_are_shared_by_groups_of_any_size(algorithm, monkeypatch):
    # traced, and not compiled: sizes are settled before
    monkeypatch.setattr(RoundPrograms, "_backend", lambda self, graph, inputs: graph.forward)
    wide = replace(SPEC, inputs=SPEC.inputs + ACTIONS)
    first = [genome(0, Architecture((8,)))]
    population = population_of(first, MASKED, algorithm, dtype=torch.float64, compiled=True)
    torch._dynamo.utils.counters.clear()
    for size, updates, batch in ((1, 3, 4), (3, 3, 7), (2, 1, 4)):
        genomes = [genome(i, Architecture((8 + i,)), batch_size=batch) for i in range(size)]
        eager = population_of(genomes, MASKED, algorithm, dtype=torch.float64)
        population.rebuild(genomes, [eager.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, wide, np.random.default_rng(size))
        for field in (samples.obs, samples.next_obs):
            field[:, -ACTIONS:] = random_masks(len(field), seed=updates).double()
        found, expected = (each.learn(samples, requests).loss for each in (population, eager))
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert_near(population, eager, 1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class Fork(gymnasium.Env):
    """Left and right; from the left, right would pay 10 as elsewhere, but is not allowed.

    State 0 leads to 1, where only left is allowed and pays 1; state 2 shows that right pays 10.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, show="number"):
        self.state = 0

    def told(self):
        return np.array([self.state - 1], np.float32), {
            "action_mask": np.array([self.state != 2, self.state != 1])
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.choice([0, 2]))
        return self.told()

    def step(self, action):
        assert self.told()[1]["action_mask"][action]
        before, self.state = self.state, 1
        reward = {0: 0.0, 1: 1.0, 2: 10.0}[before]
        return self.told()[0], reward, before != 0, False, self.told()[1]


gymnasium.register("KnownFork-v0", Fork)


@pytest.mark.parametrize("double", [False, True])
def test_values_of_allowed_actions_are_learned(double):
    population = learned(Setup("KnownFork-v0", algorithm=DQN(double=double)))
    (group,) = population.groups
    obs = np.array([[[-1, 1, 1], [0, 1, 0], [1, 0, 1]]], np.float32)
    values = group.online["q"](torch.from_numpy(obs))[0]
    known = torch.tensor([[GAMMA, GAMMA], [1, torch.nan], [torch.nan, 10]])
    assert (values - known).abs().nan_to_num().max() < TOLERANCE
    assert values[1].argmax() == 1  # it believes that right would pay more
    assert population.greedy(obs)[0, 1:].tolist() == [0, 1]


def test_episodes_are_scored_with_masks():
    spec = EnvSpec("Maze-v0", "sync", {}, (), "auto", 0)
    with closing(make_episodes(spec, 4)) as episodes:
        population = population_of([genome(0, Architecture((8,)))], replace(SPEC, inputs=2, mask=4))
        running = np.arange(4)
        episodes.start(range(4), running)
        while running.size:
            actions = population.greedy(episodes.obs[None])[0]
            _, ended = episodes.step(actions[running], running)
            running = running[~ended]
        assert not episodes.failures.take()
