"""DDPG, TD3 and SAC in the matrix against each agent alone in plain PyTorch."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

from evorl.algorithms.ddpg import DDPG, TD3
from evorl.algorithms.sac import SAC
from evorl.envs.spaces import ActionSpec
from evorl.errors import ConfigError
from evorl.experience.transitions import Batch, Samples
from evorl.genome import Architecture, Genome
from evorl.networks.layout import network_part
from evorl.networks.spec import NetworkSpec
from evorl.population.population import Population
from tests.reference import LoneNetwork, fold_one, outside, places

torch.set_num_threads(1)

OBS, ACTIONS = 5, 2
ACTION = ActionSpec("continuous", None, (ACTIONS,), np.dtype(np.float32))
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
ALGORITHMS = {
    "ddpg": DDPG(),
    "ddpg-twin": DDPG(twin=True),
    "td3": TD3(),
    "sac": SAC(),
    "sac-one": SAC(twin=False, initial_temperature=0.2),
}


class Lone:
    """One agent alone: nn.Modules, autograd, an optimizer for each network; in float64."""

    def __init__(self, algorithm, specs, genome, state):
        self.algorithm, self.hp, self.updates = algorithm, genome.hyperparameters, 0
        self.online, self.target = {}, {}
        for name, architecture in genome.architectures.items():
            spec = NetworkSpec(specs[name].inputs + specs[name].extra, specs[name].outputs)
            network = LoneNetwork(spec, architecture)
            network.load(network_part(state.online, name))
            self.online[name], self.target[name] = network, copy.deepcopy(network)
        self.critics = [name for name in self.online if name != "actor"]
        self.optimizers = {
            name: torch.optim.Adam(
                network.parameters(), lr=self.hp["actor_lr" if name == "actor" else "lr"]
            )
            for name, network in self.online.items()
        }
        self.bare = {}
        if "log_temperature.value" in state.online:
            own = nn.Parameter(state.online["log_temperature.value"].double())
            self.bare["log_temperature"] = own
            self.optimizers["log_temperature"] = torch.optim.Adam(
                [own], lr=self.hp["temperature_lr"]
            )

    def values(self, networks, obs, action):
        x = torch.cat((action, obs), 1)
        return [networks[name](x).squeeze(1) for name in self.critics]

    def learn(self, obs, action, rewards, next_obs, bootstrap, importance, noise):
        windows = zip(rewards.tolist(), bootstrap.tolist(), strict=True)
        folded = [fold_one(window, steps, self.hp["gamma"]) for window, steps in windows]
        reward, discount = torch.tensor(folded, dtype=torch.float64).T
        self.updates += 1
        losses = self.losses(obs, action, reward, next_obs, discount, importance, noise)
        total = 0.0
        for names, loss in losses:
            parameters = [p for name in names for p in self.parameters(name)]
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.grad = g
            if names != ["actor"] or self.bare:  # DDPG's loss is what its critics lose
                total += loss.item()
        due = self.updates % self.hp.get("policy_delay", 1) == 0
        for name, optimizer in self.optimizers.items():
            if name == "actor" and not due:
                continue
            if name in self.online and self.hp["max_grad_norm"] > 0:
                nn.utils.clip_grad_norm_(self.parameters(name), self.hp["max_grad_norm"])
            optimizer.step()
        if due:
            self.move_targets()
        return total

    def parameters(self, name):
        return [self.bare[name]] if name in self.bare else list(self.online[name].parameters())

    @torch.no_grad()
    def move_targets(self):
        tau = self.hp["tau"]
        for name, network in self.online.items():
            for slow, fast in zip(
                self.target[name].parameters(), network.parameters(), strict=True
            ):
                slow.copy_((1 - tau) * slow + tau * fast)

    def parts(self):
        found = {part: {} for part in ("online", "target", "m", "v")}
        for name, network in self.online.items():
            moments = self.optimizers[name].state
            found["online"] |= {f"{name}.{k}": v for k, v in network.read().items()}
            if name != "actor" or not self.bare:  # SAC's actor has no target
                found["target"] |= {f"{name}.{k}": v for k, v in self.target[name].read().items()}
            for part, key in MOMENTS.items():
                own = network.read(lambda p, of=moments, key=key: of[p][key])
                found[part] |= {f"{name}.{k}": v for k, v in own.items()}
        for name, value in self.bare.items():
            found["online"][f"{name}.value"] = value.detach()
            for part, key in MOMENTS.items():
                found[part][f"{name}.value"] = self.optimizers[name].state[value][key]
        return found


class LoneDDPG(Lone):
    @torch.no_grad()
    def goal(self, reward, next_obs, discount, noise):
        algorithm = self.algorithm
        following = torch.tanh(self.target["actor"](next_obs))
        if algorithm.target_noise:
            limit = algorithm.target_noise_clip
            shift = (algorithm.target_noise * noise).clamp(-limit, limit)
            following = (following + shift).clamp(-1, 1)
        future = torch.stack(self.values(self.target, next_obs, following)).min(0).values
        return reward + discount * future

    def losses(self, obs, action, reward, next_obs, discount, importance, noise):
        goal = self.goal(reward, next_obs, discount, noise)
        critic = sum(
            (importance * (value - goal) ** 2).mean()
            for value in self.values(self.online, obs, action)
        )
        own = torch.tanh(self.online["actor"](obs))
        actor = -(importance * self.values(self.online, obs, own)[0]).mean()
        return [(self.critics, critic), (["actor"], actor)]


class LoneSAC(Lone):
    def policy(self, obs, noise):
        mean, log_std = self.online["actor"](obs).chunk(2, 1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        before = normal.mean + normal.stddev * noise
        action = torch.tanh(before)
        log_prob = normal.log_prob(before) - torch.log(1 - action**2)
        return action, log_prob.sum(1)

    @torch.no_grad()
    def goal(self, reward, next_obs, discount, noise):
        following, log_prob = self.policy(next_obs, noise.chunk(2, 1)[0])
        future = torch.stack(self.values(self.target, next_obs, following)).min(0).values
        return reward + discount * (future - self.bare["log_temperature"].exp() * log_prob)

    def losses(self, obs, action, reward, next_obs, discount, importance, noise):
        log_temperature = self.bare["log_temperature"]
        temperature = log_temperature.detach().exp()
        second = noise.chunk(2, 1)[1]
        goal = self.goal(reward, next_obs, discount, noise)
        critic = 0.5 * sum(
            (importance * (value - goal) ** 2).mean()
            for value in self.values(self.online, obs, action)
        )
        own, log_prob = self.policy(obs, second)
        worth = torch.stack(self.values(self.online, obs, own)).min(0).values
        actor = (importance * (temperature * log_prob - worth)).mean()
        wanted = -self.hp["entropy_scale"] * ACTIONS
        entropy = -(importance * log_temperature * (log_prob.detach() + wanted)).mean()
        return [(self.critics, critic), (["actor"], actor), (["log_temperature"], entropy)]


def agents_of(algorithm):
    """Agents that differ in architectures, activations, LayerNorm and every number."""
    shapes = [
        (Architecture((16, 12)), Architecture((24,))),
        (Architecture((9,)), Architecture((20, 20, 8))),
        (Architecture((16, 16), "tanh"), Architecture((16,), layer_norm=True)),
        (Architecture((12, 12), gated=(False, True)), Architecture((20, 20), "elu")),
        (Architecture((16, 10), layer_norm=True), Architecture((8, 8), "silu")),
    ]
    changes = [
        {"lr": 3e-3},
        {"actor_lr": 2e-4, "batch_size": 7, "policy_delay": 3},
        {"tau": 0.3, "gamma": 0.9, "temperature_lr": 1e-2},
        {"max_grad_norm": 0.05, "gamma": 0.5, "policy_delay": 1},
        {"batch_size": 11, "max_grad_norm": 0.0, "entropy_scale": 0.5},
    ]
    names = list(algorithm.networks(NetworkSpec(OBS, 0), ACTION))
    found = []
    for number, ((actor, critic), own) in enumerate(zip(shapes, changes, strict=True)):
        values = algorithm.hyperparameters | {"batch_size": 16}
        values |= {name: value for name, value in own.items() if name in values}
        architectures = {
            name: actor if name == "actor" else critic for name in names if "log" not in name
        }
        if "critic2" in architectures:
            architectures["critic2"] = shapes[number - 1][1]  # mutations make them differ
        found.append(Genome(number, architectures, values))
    return found


def make(algorithm, genomes, **options):
    networks = algorithm.networks(NetworkSpec(OBS, 0), ACTION)
    options = {"dtype": torch.float64} | options
    return Population(genomes, networks, algorithm, **options)


def random_round(requests, algorithm, random, dtype=torch.float64, steps=2):
    count = sum(int(np.prod(request.shape)) for request in requests)
    weight = np.zeros(count)
    for _, _, where in places(requests):
        weight[where] = random.uniform(0.5, 1.0, len(where)) / len(where)
    length = random.integers(1, steps + 1, count)
    rewards = random.normal(size=(count, steps))
    rewards[np.arange(steps) >= length[:, None]] = 0
    terminated = random.random(count) < 0.2

    def tensor(array):
        return torch.from_numpy(array).to(dtype)

    return Samples(
        obs=tensor(random.normal(size=(count, OBS))),
        action=tensor(random.uniform(-1, 1, (count, ACTIONS))),
        rewards=tensor(rewards),
        next_obs=tensor(random.normal(size=(count, OBS))),
        bootstrap=torch.from_numpy(np.where(terminated, 0, length).astype(np.uint8)),
        weight=tensor(weight),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=tensor(random.normal(size=(count, algorithm.loss_noise(ACTION)))),
    )


def lone(algorithm, *given):
    return (LoneSAC if isinstance(algorithm, SAC) else LoneDDPG)(algorithm, *given)


def compare(algorithm, genomes, updates, each, tolerance, dtype=torch.float64, **options):
    population = make(algorithm, genomes, dtype=dtype, **options)
    alone = [
        lone(algorithm, population.specs, genome, population.state(i))
        for i, genome in enumerate(genomes)
    ]
    random = np.random.default_rng(3)
    for _ in range(updates // each):
        requests = population.requests(np.full(len(genomes), each))
        samples = random_round(requests, algorithm, random, dtype)
        learned = population.learn(samples, requests)
        losses = {i: [] for i in range(len(genomes))}
        for i, _, where in places(requests):
            *fields, weight, _, noise = (
                field[where].double() if field.is_floating_point() else field[where]
                for field in samples
            )
            losses[i].append(alone[i].learn(*fields, weight * len(where), noise))
        expected = [np.mean(own) for own in losses.values()]
        np.testing.assert_allclose(learned.loss, expected, rtol=tolerance, atol=tolerance)
    for i, one in enumerate(alone):
        state = population.state(i)
        for part, own in one.parts().items():
            for name, value in own.items():
                torch.testing.assert_close(
                    getattr(state, part)[name].double(),
                    value,
                    rtol=tolerance,
                    atol=tolerance,
                    msg=lambda text, at=f"agent {i}, {part} {name}": f"{at}: {text}",
                )
    for group in population.groups:
        assert not any(values.any() for values in outside(group).values())
    return population


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_mixed_population_equals_plain_pytorch_after_200_updates(name):
    algorithm = ALGORITHMS[name]
    compare(algorithm, agents_of(algorithm), updates=204, each=6, tolerance=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3", "sac"])
def test_compiled_updates_equal_plain_pytorch(name):
    """Of one kind, so that there is one program: three widths, and every number their own. With
    one layer: a program of two takes twice as long to make, and DQN's have them.
    """
    algorithm = ALGORITHMS[name]
    genomes = [
        Genome(
            own.id,
            {n: Architecture((16 + 16 * own.id,)) for n in own.architectures},
            own.hyperparameters,
        )
        for own in agents_of(algorithm)[:3]
    ]
    population = compare(
        algorithm, genomes, updates=5, each=5, tolerance=1e-5, dtype=torch.float32, compiled=True
    )
    assert not population.compiled.failed


def test_a_delayed_actor_waits_and_its_targets_with_it():
    genome = agents_of(TD3())[1]  # one in three
    population = make(TD3(), [genome, genome])
    requests = population.requests(np.full(2, 1))
    random = np.random.default_rng(0)
    for update in range(1, 7):
        before = population.state(0)
        population.learn(random_round(requests, TD3(), random), requests)
        after = population.state(0)
        for name, value in before.online.items():
            moved = not torch.equal(value, after.online[name])
            assert moved == (update % 3 == 0 or not name.startswith("actor.")), (update, name)
            moved = not torch.equal(before.target[name], after.target[name])
            assert moved == (update % 3 == 0), (update, name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_priorities_are_the_first_critics_errors_at_the_stored_actions(name):
    """Not at the actor's own actions, and whatever a sample's weight is."""
    algorithm, random, size = ALGORITHMS[name], np.random.default_rng(4), 30
    genomes = agents_of(algorithm)
    population = make(algorithm, genomes)
    for _ in range(3):  # targets fall behind
        requests = population.requests(np.full(len(genomes), 6))
        population.learn(random_round(requests, algorithm, random), requests)
    for numbers, group in zip(population.members, population.groups, strict=True):
        shape = (len(numbers), size)
        draws = [(OBS,), (ACTIONS,), (), (OBS,), (), (), (algorithm.loss_noise(ACTION),)]
        parts = [torch.from_numpy(random.normal(size=(*shape, *own))) for own in draws]
        batch = Batch._make(parts)
        batch = batch._replace(
            action=batch.action.tanh(), discount=batch.discount.abs(), weight=batch.weight.relu()
        )
        found = algorithm.loss(group.online, group.target, batch, group.hyperparameters).priority
        assert found.shape == shape
        assert not found.requires_grad
        for k, i in enumerate(numbers):
            state = population.state(i)
            one = lone(algorithm, population.specs, genomes[i], state)
            for own, network in one.target.items():
                if own != "actor" or not one.bare:
                    network.load(network_part(state.target, own))
            assert not torch.equal(
                state.online["critic.head.bias"], state.target["critic.head.bias"]
            )
            obs, action, reward, next_obs, discount, _, noise = (field[k] for field in batch)
            goal = one.goal(reward, next_obs, discount, noise)
            stored = one.values(one.online, obs, action)[0] - goal
            greedy = torch.tanh(one.online["actor"](obs)[:, :ACTIONS])
            other = one.values(one.online, obs, greedy)[0] - goal
            torch.testing.assert_close(found[k], stored.detach(), rtol=1e-9, atol=1e-9)
            assert ((found[k] - other).abs() > 1e-4).double().mean() > 0.9


@pytest.mark.parametrize("algorithm", [DDPG(), TD3()], ids=["ddpg", "td3"])
def test_every_agent_explores_by_its_own_noise(algorithm):
    spreads, count = [0.05, 0.15, 0.02, 0.1, 0.0, 0.12], 4000
    agents = agents_of(algorithm)
    genomes = [
        Genome(i, own.architectures, {**own.hyperparameters, "action_noise": spread})
        for i, (own, spread) in enumerate(zip([*agents, agents[0]], spreads, strict=True))
    ]
    population = make(algorithm, genomes, dtype=torch.float32)
    assert not population._in_order  # the last is in the first one's group
    random = np.random.default_rng(5)
    obs = 0.1 * random.normal(size=(6, 1, OBS)).astype(np.float32).repeat(count, 1)
    noise = algorithm.noise(random, (6, count), ACTION)
    late = population.exploration(np.full(6, 10**6))
    np.testing.assert_array_equal(late, spreads)
    actions = population.act(obs, noise, late)
    assert (np.abs(actions) < 1).all()  # none was clipped
    added = actions - population.greedy(obs)
    for own, spread in zip(added, spreads, strict=True):
        assert own.std() == pytest.approx(spread, rel=0.04, abs=1e-6)  # five standard errors
        assert abs(own.mean()) < 5 * spread / np.sqrt(own.size) + 1e-6
    expected = np.array(spreads, np.float32)[:, None, None] * noise["normal"]
    np.testing.assert_allclose(added, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_are_within_bounds_and_at_random_before_learning(name):
    algorithm = ALGORITHMS[name]
    genomes = agents_of(algorithm)
    population = make(algorithm, genomes, dtype=torch.float32)
    obs = np.random.default_rng(1).normal(size=(5, 7, OBS)).astype(np.float32)
    noise = algorithm.noise(np.random.default_rng(2), (5, 7), ACTION)
    early = population.exploration(np.zeros(5, np.int64))
    late = population.exploration(np.full(5, 10**6))
    np.testing.assert_array_equal(early, 1.0)
    assert (late < 1).all()
    np.testing.assert_array_equal(population.act(obs, noise, early), noise["action"])
    actions = population.act(obs, noise, late)
    assert actions.shape == (5, 7, ACTIONS)
    assert (np.abs(actions) <= 1).all()
    assert (population.greedy(obs) != actions).any()
    still = {"normal": np.zeros_like(noise["normal"]), "action": noise["action"]}
    np.testing.assert_allclose(population.act(obs, still, late), population.greedy(obs), atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_discrete_actions_are_refused(name):
    with pytest.raises(ConfigError, match="takes Box actions"):
        ALGORITHMS[name].networks(NetworkSpec(OBS, 0), ActionSpec("discrete", 3))


def test_the_temperature_starts_where_it_is_set():
    population = make(SAC(initial_temperature=0.2), agents_of(SAC()))
    value = population.state(0).online["log_temperature.value"]
    assert value.item() == pytest.approx(math.log(0.2))


def test_a_temperature_without_a_step_size_stays_as_it_is():
    """To the bit, beside one that moves in the same group."""
    algorithm = SAC(initial_temperature=0.2)
    first = agents_of(algorithm)[0]
    genomes = [
        Genome(i, first.architectures, {**first.hyperparameters, "temperature_lr": rate})
        for i, rate in enumerate((0.0, 1e-2))
    ]
    population = make(algorithm, genomes, dtype=torch.float32)
    assert len(population.groups) == 1
    before = [population.state(i).online for i in range(2)]
    random = np.random.default_rng(6)
    for _ in range(20):
        requests = population.requests(np.full(2, 1))
        population.learn(random_round(requests, algorithm, random, torch.float32), requests)
    after = [population.state(i).online for i in range(2)]
    still, moved = (own["log_temperature.value"] for own in after)
    assert torch.equal(still, torch.tensor([0.2]).log())
    assert not torch.equal(moved, before[1]["log_temperature.value"])
    assert not torch.equal(after[0]["actor.head.weight"], before[0]["actor.head.weight"])
    assert population.state(0).updates == 20
