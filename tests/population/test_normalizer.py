"""Running statistics of agents: against numpy, and networks on them against plain PyTorch."""

import numpy as np
import pytest
import torch

from evorl.algorithms.base import Trained
from evorl.algorithms.ddpg import DDPG
from evorl.algorithms.dqn import DQN
from evorl.algorithms.ppo import PPO
from evorl.algorithms.sac import SAC
from evorl.config import ExploreConfig, MutationConfig
from evorl.envs.spaces import ActionSpec
from evorl.evolution.explore import Explore
from evorl.evolution.mutation import Mutation
from evorl.experience.transitions import RolloutBatch, scaled_rewards
from evorl.genome import Architecture, Genome
from evorl.networks.normalizer import CLIP, EPS, MOST
from evorl.networks.spec import NORMALIZER, NetworkSpec, NormalizerSpec
from evorl.population.compiled import has_compiler
from evorl.population.population import Population
from tests.algorithms.test_actor_critics import ACTION, OBS, agents_of, lone, random_round
from tests.population.checks import check
from tests.population.test_population import MIXED, SPEC, updates_of
from tests.reference import (
    LoneAgent,
    genome,
    learn_alone,
    outside,
    places,
    population_of,
    random_samples,
)

torch.set_num_threads(1)

READS = NetworkSpec(SPEC.inputs, SPEC.outputs, normalize=True)
AGENTS = len(MIXED)
PAIR = [genome(i, Architecture((20 + i,)), lr=1e-3 * (i + 1), gamma=0.9) for i in range(2)]
needs_compiler = pytest.mark.skipif(not has_compiler(), reason="torch.compile needs g++")


def normalizing(genomes=MIXED, algorithm=None, rewards=True, spec=READS, action=None, **options):
    """A population with statistics, of observations and, by default, of rewards."""
    algorithm = algorithm or DQN()
    action = action or ActionSpec("discrete", spec.outputs)
    own = Trained(NormalizerSpec(spec.inputs if spec.normalize else 0, rewards))
    networks = algorithm.networks(spec, action) | {NORMALIZER: own}
    return Population(genomes, networks, algorithm, **options)


def statistics(population, agent):
    start = f"{NORMALIZER}."
    online = population.state(agent).online
    return {k.removeprefix(start): v.numpy() for k, v in online.items() if k.startswith(start)}


def shown(population, random, steps=3, size=SPEC.inputs, rewards=True):
    """The population after some steps in which every agent sees numbers of its own."""
    for _ in range(steps):
        scale = 1 + np.arange(population.size)[:, None, None]
        obs = random.normal(1, 2, (population.size, 5, size)) * scale
        population.observe(obs.astype(np.float32))
        if rewards:
            reward = 3 * random.normal(size=(population.size, 5))
            population.observe_rewards(reward, random.random(reward.shape) < 0.2)
    return population


def normal(obs, own):
    """As a network reads it, by the definition."""
    mean, var = (torch.from_numpy(own[name]).to(obs) for name in ("obs_mean", "obs_var"))
    return ((obs - mean) / torch.sqrt(var + EPS)).clamp(-CLIP, CLIP)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_statistics_are_those_of_all_that_was_seen(offset):
    population, random = normalizing(), np.random.default_rng(0)
    assert not population._in_order
    assert len(population.groups) > 2
    scale = random.uniform(0.1, 5, (AGENTS, 1, SPEC.inputs))
    rounds = [
        (offset + scale * random.normal(size=(AGENTS, n, SPEC.inputs))).astype(np.float32)
        for n in (1, 4, 2, 30, 7)
    ]
    for obs in rounds:
        population.observe(obs)
    seen = np.concatenate(rounds, 1).astype(np.float64)
    for i in range(AGENTS):
        own = statistics(population, i)
        np.testing.assert_allclose(own["obs_mean"], seen[i].mean(0), rtol=1e-6, atol=1e-6)
        tolerance = 1e-3 if offset else 1e-5  # by the mean's own rounding, in float32
        np.testing.assert_allclose(own["obs_var"], seen[i].var(0), rtol=tolerance)
        assert own["obs_samples"] == seen.shape[1]
    for group in population.groups:
        assert not any(values.any() for values in outside(group).values())


def test_statistics_in_float64_are_numpys():
    population, random = normalizing(dtype=torch.float64), np.random.default_rng(1)
    rounds = random.normal(3, 2, (6, AGENTS, 4, SPEC.inputs))
    for obs in rounds:
        population.observe(obs)
    for i in range(AGENTS):
        seen, own = rounds[:, i].reshape(-1, SPEC.inputs), statistics(population, i)
        np.testing.assert_allclose(own["obs_mean"], seen.mean(0), rtol=1e-12)
        np.testing.assert_allclose(own["obs_var"], seen.var(0), rtol=1e-12)


def test_scaled_and_masked_observations():
    """Bytes are scaled first, and what says which actions are allowed is no observation."""
    spec = NetworkSpec(4, 3, scale=1 / 255, mask=3, normalize=True)
    population = normalizing(PAIR, spec=spec)
    obs = np.random.default_rng(0).integers(0, 256, (2, 50, 7)).astype(np.uint8)
    population.observe(obs)
    seen = obs[1, :, :4] / 255
    np.testing.assert_allclose(statistics(population, 1)["obs_mean"], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics(population, 1)["obs_var"], seen.var(0), rtol=1e-5)
    assert population.greedy(obs).shape == (2, 50)


def test_only_living_agents_and_everybody_for_itself():
    population, random = shown(normalizing(), np.random.default_rng(0)), np.random.default_rng(1)
    before = [statistics(population, i) for i in range(AGENTS)]
    population.alive[3] = False
    obs = random.normal(size=(AGENTS, 2, SPEC.inputs)).astype(np.float32)
    obs[3] = np.nan
    population.observe(obs)
    reward, ended = np.ones((AGENTS, 5)), np.zeros((AGENTS, 5), bool)
    reward[3] = np.nan
    population.observe_rewards(reward, ended)
    for i, own in enumerate(before):
        same = {k: np.array_equal(v, statistics(population, i)[k]) for k, v in own.items()}
        assert all(same.values()) if i == 3 else not any(same.values()), same
    obs[3] = 0
    for agent in range(AGENTS):  # others' observations change nothing for it
        other = np.where(np.arange(AGENTS)[:, None, None] == agent, obs, 7).astype(np.float32)
        one, two = (shown(normalizing(), np.random.default_rng(0)) for _ in range(2))
        one.observe(obs)
        two.observe(other)
        mine, yours = statistics(one, agent), statistics(two, agent)
        assert all(np.array_equal(mine[name], yours[name]) for name in mine)


def test_the_bits_do_not_depend_on_the_neighbours():
    random = np.random.default_rng(5)
    data = [random.normal(9, 3, (AGENTS, n, SPEC.inputs)).astype(np.float32) for n in (8, 8, 33)]
    together = normalizing()
    alone = [normalizing([own]) for own in MIXED]
    for obs in data:
        together.observe(obs)
        for i, own in enumerate(alone):
            own.observe(obs[i : i + 1])
    for i, own in enumerate(alone):
        mine, yours = statistics(together, i), statistics(own, 0)
        assert all(np.array_equal(mine[name], yours[name]) for name in mine)


def test_later_data_still_moves_them():
    population = normalizing(PAIR)
    for _ in range(3):
        population.observe(np.zeros((2, MOST // 2, SPEC.inputs), np.float32))
    assert statistics(population, 0)["obs_samples"] == MOST
    for _ in range(4):
        population.observe(np.full((2, MOST // 2, SPEC.inputs), 3, np.float32))
    own = statistics(population, 0)
    assert own["obs_samples"] == MOST
    assert (own["obs_mean"] > 2).all()


def test_ranks_that_train_the_same_agents_share_what_they_see():
    random, sent = np.random.default_rng(0), []
    data = random.normal(4, 2, (2, AGENTS, 6, SPEC.inputs)).astype(np.float32)
    other = normalizing(average=lambda sums: sent.append(sums.clone()))
    own = normalizing(average=lambda sums: sums.add_(sent.pop()).div_(2))
    for obs in (data[:, :, :2], data[:, :, 2:]):
        mean = statistics(own, 0)["obs_mean"]
        other.rebuild(own.genomes, [own.state(i) for i in range(AGENTS)])
        other.observe(obs[1])
        own.observe(obs[0])
        assert (statistics(own, 0)["obs_mean"] != mean).all()
    for i in range(AGENTS):
        seen = data[:, i].reshape(-1, SPEC.inputs).astype(np.float64)
        found = statistics(own, i)
        np.testing.assert_allclose(found["obs_mean"], seen.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found["obs_var"], seen.var(0), rtol=1e-5)


def test_rewards_are_scaled_as_stable_baselines3_does():
    """Returns of every environment by the agent's own gamma, cut where an episode ends."""
    population, random = normalizing(), np.random.default_rng(2)
    gamma = population.hyperparameter("gamma")
    returns, seen = np.zeros((AGENTS, 4)), [[] for _ in range(AGENTS)]
    for _ in range(40):
        reward = random.normal(1, 2, (AGENTS, 4))
        ended, valid = random.random((2, AGENTS, 4)) < np.array([0.2, 0.9])[:, None, None]
        population.observe_rewards(reward, ended, valid)
        for i in range(AGENTS):
            for n in range(4):
                returns[i, n] = gamma[i] * returns[i, n] + reward[i, n] if valid[i, n] else 0
                seen[i] += [returns[i, n]] if valid[i, n] else []
                returns[i, n] *= not ended[i, n]
    scale = population.reward_scale().numpy()
    for i in range(AGENTS):
        assert statistics(population, i)["return_samples"] == len(seen[i])
        assert scale[i] == pytest.approx(1 / np.sqrt(np.var(seen[i]) + EPS), rel=1e-5)
    rewards = torch.from_numpy(random.normal(0, 50, (3, AGENTS, 4)))
    expected = np.clip(rewards.numpy() * scale[None, :, None], -10, 10)
    found = scaled_rewards(rewards, population.reward_scale())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert (np.abs(expected) == 10).any()
    population.rebuild(population.genomes, [population.state(i) for i in range(AGENTS)])
    assert population.running_returns is None  # episodes were cut
    np.testing.assert_array_equal(population.reward_scale().numpy(), scale)


def test_without_statistics_nothing_changes():
    population = population_of(MIXED, SPEC)
    rows = [group.theta.clone() for group in population.groups]
    population.observe(np.ones((AGENTS, 2, SPEC.inputs), np.float32))
    population.observe_rewards(np.ones((AGENTS, 2)), np.ones((AGENTS, 2), bool))
    assert population.reward_scale() is None
    rewards = torch.full((1, AGENTS, 2), 99.0)
    assert scaled_rewards(rewards, None) is rewards
    for group, before, other in zip(population.groups, rows, normalizing().groups, strict=True):
        assert torch.equal(group.theta, before)
        assert torch.equal(other.theta[:, : group.layout.length], before)  # behind all else


@pytest.mark.parametrize("rewards", [True, False])
def test_a_mixed_population_equals_plain_pytorch_on_normalised_inputs(rewards):
    """While statistics move between rounds; targets read by the online ones."""
    algorithm, random = DQN(), np.random.default_rng(0)
    population = normalizing(dtype=torch.float64, rewards=rewards)
    alone = [
        LoneAgent(SPEC, own, population.state(i), double=True, loss_kind="huber", periodic=False)
        for i, own in enumerate(MIXED)
    ]
    for _ in range(5):
        shown(population, random, steps=1, rewards=rewards)
        requests = population.requests(updates_of(MIXED))
        samples = random_samples(requests, SPEC, random, steps=3)
        learned = population.learn(samples, requests)
        changed = [field.clone() for field in samples]
        for agent, _, where in places(requests):
            own = statistics(population, agent)
            for k in (0, 3):
                changed[k][where] = normal(samples[k][where], own)
            if rewards:
                scale = 1 / np.sqrt(own["return_var"] + EPS)
                changed[2][where] = (samples.rewards[where] * scale).clamp(-10, 10)
        expected = learn_alone(alone, type(samples)(*changed), requests)
        np.testing.assert_allclose(learned.loss, expected, rtol=1e-9)
    assert algorithm.has_closed_form()
    for i, one in enumerate(alone):
        state = population.state(i)
        for part, own in one.parts().items():
            for name, value in own.items():
                found = getattr(state, part)[name]
                torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9, msg=f"{i} {name}")
        for part in (state.m, state.v):
            assert not any(v.any() for name, v in part.items() if name.startswith(NORMALIZER))


def sac_round(population, random):
    """A round, and the same with normalised observations and scaled rewards."""
    requests = population.requests(np.full(population.size, 4))
    samples = random_round(requests, population.algorithm, random, population.dtype)
    changed = [field.clone() for field in samples]
    for agent, _, where in places(requests):
        own = statistics(population, agent)
        for k in (0, 3):
            changed[k][where] = normal(samples[k][where], own)
        scale = torch.from_numpy(1 / np.sqrt(own["return_var"] + EPS)).to(population.dtype)
        changed[2][where] = (samples.rewards[where] * scale).clamp(-10, 10)
    return samples, type(samples)(*changed), requests


def test_autograd_leaves_them_alone():
    """An actor and two critics that read actions beside observations, by plain autograd."""
    genomes, random = agents_of(SAC()), np.random.default_rng(0)
    spec = NetworkSpec(OBS, 0, normalize=True)
    population = normalizing(genomes, SAC(), spec=spec, action=ACTION, dtype=torch.float64)
    alone = [
        lone(SAC(), population.specs, own, population.state(i)) for i, own in enumerate(genomes)
    ]
    for _ in range(5):
        shown(population, random, steps=1, size=OBS)
        before = [statistics(population, i) for i in range(len(genomes))]
        samples, changed, requests = sac_round(population, random)
        population.learn(samples, requests)
        for i, _, where in places(requests):
            *fields, weight, _, noise = (field[where] for field in changed)
            alone[i].learn(*fields, weight * len(where), noise)
        for i, own in enumerate(before):
            assert all(np.array_equal(v, statistics(population, i)[k]) for k, v in own.items())
    for i, one in enumerate(alone):
        state = population.state(i)
        for part, own in one.parts().items():
            for name, value in own.items():
                found = getattr(state, part)[name]
                torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9, msg=f"{i} {name}")


def test_a_norm_over_all_networks_has_nothing_of_them():
    """PPO clips policy and value together: by the same norm with statistics and without."""
    values = PPO().hyperparameters | {"max_grad_norm": 0.01, "batch_size": 6}
    shapes = {"policy": Architecture((12,)), "value": Architecture((9, 9))}
    genomes = [Genome(i, shapes, values) for i in range(2)]
    action, random = ActionSpec("discrete", 3), np.random.default_rng(0)
    spec = NetworkSpec(4, 0, normalize=True)
    with_them = normalizing(genomes, PPO(), spec=spec, action=action, dtype=torch.float64)
    networks = PPO().networks(NetworkSpec(4, 0), action)
    without = Population(genomes, networks, PPO(), dtype=torch.float64)
    shown(with_them, random, size=4)
    requests = with_them.requests(np.full(2, 3))
    count = sum(int(np.prod(request.shape)) for request in requests)
    obs, rest = torch.randn(count, 4).double(), torch.randn(3, count).double()
    weight = torch.full((count,), 1 / 6).double()
    chosen = torch.from_numpy(random.integers(0, 3, count))
    batch = RolloutBatch(obs, chosen, -rest[0].abs(), rest[1], rest[2], weight)
    changed = obs.clone()
    for agent, _, where in places(requests):
        changed[where] = normal(obs[where], statistics(with_them, agent))
    one = with_them.learn(batch, requests)
    two = without.learn(batch._replace(obs=changed), requests)
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-12)
    for i in range(2):
        for name, value in without.state(i).online.items():
            torch.testing.assert_close(with_them.state(i).online[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["parameters", "architecture", "activation"])
def test_children_inherit_them(kind):
    population = shown(normalizing(), np.random.default_rng(0))
    none = dict.fromkeys(("hyperparameters", "parameters", "architecture"), 0.0)
    config = MutationConfig(**none | {kind: 1.0, "noise_fraction": 1.0})
    mutation = Mutation(config, population.specs, Explore(ExploreConfig(), {}), DQN())
    children, random = [], np.random.default_rng(1)
    for i in range(AGENTS):
        parent, state = population.genomes[i], population.state(i)
        child = mutation(parent, state, id=100 + i, generation=1, fitness=0.0, random=random)
        own = {k: v for k, v in child.state.online.items() if k.startswith(NORMALIZER)}
        assert own
        assert all(torch.equal(v, state.online[k]) for k, v in own.items())
        children.append(child)
    before = [statistics(population, i) for i in range(AGENTS)]
    states = [child.state for child in children][::-1]
    population.rebuild([child.genome for child in children][::-1], states)
    check(population, states)
    for own, i in zip(before, range(AGENTS)[::-1], strict=True):
        found = statistics(population, i)
        assert all(np.array_equal(value, found[name]) for name, value in own.items())


def compiled_and_eager(algorithm, genomes, **options):
    pair = [normalizing(genomes, algorithm, compiled=c, **options) for c in (True, False)]
    return [shown(own, np.random.default_rng(0), size=options["spec"].inputs) for own in pair]


def assert_near(left, right, tolerance):
    for i in range(left.size):
        for part in ("online", "target", "m", "v"):
            for name, value in getattr(left.state(i), part).items():
                other = getattr(right.state(i), part)[name]
                torch.testing.assert_close(value, other, rtol=0, atol=tolerance, msg=name)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["dqn", "ddpg"])
def test_compiled_equals_eager(name):
    """With a closed form and by autograd, and with one program as statistics move."""
    if name == "dqn":
        compiled, eager = compiled_and_eager(DQN(), PAIR, spec=READS)
    else:
        shape = Architecture((16,))
        genomes = [
            Genome(own.id, dict.fromkeys(own.architectures, shape), own.hyperparameters)
            for own in agents_of(DDPG())[:2]
        ]
        spec = NetworkSpec(OBS, 0, normalize=True)
        compiled, eager = compiled_and_eager(DDPG(), genomes, spec=spec, action=ACTION)
    random, size = np.random.default_rng(3), SPEC.inputs if name == "dqn" else OBS
    for round_ in range(2):
        requests = eager.requests(np.full(2, 4))
        if name == "dqn":
            samples = random_samples(requests, SPEC, random, dtype=torch.float32)
        else:
            samples = random_round(requests, DDPG(), random, torch.float32)
        found, expected = (own.learn(samples, requests) for own in (compiled, eager))
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4)
        for own in (compiled, eager):
            shown(own, np.random.default_rng(round_), size=size)
    assert not compiled.compiled.failed
    assert len(compiled.compiled._ways) == 2  # the first way worked
    assert len(compiled.compiled._ways[-1].functions) == 1
    assert_near(compiled, eager, 1e-5)
