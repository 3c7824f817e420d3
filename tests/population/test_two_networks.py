"""Two networks and a bare parameter in one row: a toy actor–critic against plain PyTorch.

The actor maps observations to actions, the critic values both. Each network has its own learning
rate, clipping and target, and the loss goes through the critic into the actor.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from evorl.algorithms.base import Algorithm, Loss, Trained
from evorl.algorithms.hyperparameters import OffPolicy
from evorl.config import hyperparameter
from evorl.envs.spaces import ActionSpec
from evorl.evolution.surgery import add_layer, add_units, all_units, remove_layer, remove_units
from evorl.experience.transitions import Samples
from evorl.genome import Architecture, Genome
from evorl.networks.layout import network_part
from evorl.networks.spec import NetworkSpec, ParameterSpec
from evorl.population.grouping import kinds_of
from evorl.population.population import Population
from tests.population.checks import check
from tests.reference import LoneNetwork, fold_one, outside, places

torch.set_num_threads(1)

OBS, ACTIONS = 5, 2
ACTION = ActionSpec("continuous", None, (ACTIONS,), np.dtype(np.float32))
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}


class ToyActorCritic(OffPolicy, Algorithm):
    """Deterministic actor, critic of observation and action, and a learned scale of its values."""

    actor_lr: float = hyperparameter(1e-3, "Adam's step size of the actor.", gt=0)
    actor_norm: float = hyperparameter(0.5, "Largest norm of the actor's gradient.", ge=0)
    actor_tau: float = hyperparameter(0.02, "Fraction of a soft update of the actor.", gt=0)

    def networks(self, observation, action):
        return {
            "actor": Trained(
                observation.giving(ACTIONS),
                lr="actor_lr",
                max_grad_norm="actor_norm",
                tau="actor_tau",
            ),
            "critic": Trained(
                observation.giving(1, extra=ACTIONS), max_grad_norm="max_grad_norm", tau="tau"
            ),
            "log_scale": Trained(ParameterSpec(1, 0.1)),
        }

    def loss(self, networks, targets, batch, hp):
        value = networks["critic"](batch.obs, batch.action).squeeze(-1)
        scale = networks.parameter("log_scale").exp()
        with torch.no_grad():
            action = torch.tanh(targets["actor"](batch.next_obs))
            future = targets["critic"](batch.next_obs, action).squeeze(-1)
            goal = batch.reward + batch.discount * future
        td_error = scale * value - goal
        chosen = torch.tanh(networks["actor"](batch.obs))
        worth = networks["critic"].detached()(batch.obs, chosen).squeeze(-1)
        each = td_error**2 - worth
        return Loss((each * batch.weight).sum(-1), td_error.detach().abs())

    def greedy(self, networks, obs):
        return torch.tanh(networks["actor"](obs))


class LoneActorCritic:
    """The same agent alone: nn.Modules, autograd, an optimizer for each network."""

    def __init__(self, specs, genome, state):
        self.hp = genome.hyperparameters
        self.online, self.target = {}, {}
        for name in ("actor", "critic"):
            spec = NetworkSpec(specs[name].inputs + specs[name].extra, specs[name].outputs)
            network = LoneNetwork(spec, genome.architectures[name])
            network.load(network_part(state.online, name))
            self.online[name], self.target[name] = network, copy.deepcopy(network)
        self.scale = nn.Parameter(state.online["log_scale.value"].clone())
        rates = {"actor": self.hp["actor_lr"], "critic": self.hp["lr"]}
        self.optimizers = {
            name: torch.optim.Adam(self.online[name].parameters(), lr=lr)
            for name, lr in rates.items()
        }
        self.optimizers["scale"] = torch.optim.Adam([self.scale], lr=self.hp["lr"])

    def value(self, networks, obs, action):
        return networks["critic"](torch.cat((action, obs), 1)).squeeze(1)

    def learn(self, obs, action, rewards, next_obs, bootstrap, importance):
        windows = zip(rewards.tolist(), bootstrap.tolist(), strict=True)
        folded = [fold_one(window, steps, self.hp["gamma"]) for window, steps in windows]
        reward, discount = torch.tensor(folded, dtype=obs.dtype).T
        with torch.no_grad():
            next_action = torch.tanh(self.target["actor"](next_obs))
            goal = reward + discount * self.value(self.target, next_obs, next_action)
        td_error = self.scale.exp() * self.value(self.online, obs, action) - goal
        critic_loss = (importance * td_error**2).mean()
        worth = self.value(self.online, obs, torch.tanh(self.online["actor"](obs)))
        actor_loss = (importance * -worth).mean()
        parameters = [*self.online["critic"].parameters(), self.scale]
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(critic_loss, parameters), strict=True
        ):
            parameter.grad = gradient
        own = list(self.online["actor"].parameters())
        for parameter, gradient in zip(own, torch.autograd.grad(actor_loss, own), strict=True):
            parameter.grad = gradient
        for name, limit in (("actor", "actor_norm"), ("critic", "max_grad_norm")):
            if self.hp[limit] > 0:
                nn.utils.clip_grad_norm_(self.online[name].parameters(), self.hp[limit])
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._move_targets()
        return (critic_loss + actor_loss).item()

    @torch.no_grad()
    def _move_targets(self):
        for name, tau in (("actor", "actor_tau"), ("critic", "tau")):
            pairs = zip(self.target[name].parameters(), self.online[name].parameters(), strict=True)
            for slow, fast in pairs:
                slow.copy_((1 - self.hp[tau]) * slow + self.hp[tau] * fast)

    def parts(self):
        found = {"online": {}, "target": {}, "m": {}, "v": {}}
        for name in ("actor", "critic"):
            moments = self.optimizers[name].state
            reads = {
                "online": self.online[name].read(),
                "target": self.target[name].read(),
                **{
                    part: self.online[name].read(lambda p, key=key, of=moments: of[p][key])
                    for part, key in MOMENTS.items()
                },
            }
            for part, own in reads.items():
                found[part] |= {f"{name}.{segment}": value for segment, value in own.items()}
        found["online"]["log_scale.value"] = self.scale.detach()
        for part, key in MOMENTS.items():
            found[part]["log_scale.value"] = self.optimizers["scale"].state[self.scale][key]
        return found


def agent(number, actor, critic, **changed):
    values = ToyActorCritic().hyperparameters | {"batch_size": 16} | changed
    return Genome(number, {"actor": actor, "critic": critic}, values)


MIXED = [
    agent(0, Architecture((16, 12)), Architecture((24,)), lr=3e-3),
    agent(1, Architecture((9,)), Architecture((20, 20, 8)), actor_lr=2e-4, batch_size=7),
    agent(2, Architecture((16, 16), "tanh"), Architecture((16,), layer_norm=True), tau=0.3),
    agent(
        3,
        Architecture((12, 12), gated=(False, True)),
        Architecture((20, 20), gated=(False, True)),
        max_grad_norm=0.05,
        gamma=0.9,
    ),
    agent(4, Architecture((16, 10), layer_norm=True), Architecture((8, 8), "elu"), actor_norm=0.0),
    agent(5, Architecture((30,), "tanh"), Architecture((16,), layer_norm=True), lr=5e-4),
]


# One program of its own for each kind takes 20 s: these share one, with a gate and two depths.
ALIKE = [
    agent(0, Architecture((16, 12)), Architecture((24, 24), gated=(False, True)), lr=3e-3),
    agent(1, Architecture((9,)), Architecture((20, 20)), actor_lr=2e-4, batch_size=7, gamma=0.9),
    agent(2, Architecture((30, 16)), Architecture((16,)), tau=0.3, max_grad_norm=0.05),
]


def make(genomes, **options):
    algorithm = ToyActorCritic()
    networks = algorithm.networks(NetworkSpec(OBS, 0), ACTION)
    population = Population(genomes, networks, algorithm, dtype=torch.float64, **options)
    return opened_gates(population)


def opened_gates(population):
    """Gated layers matter from the first update."""
    states = [population.state(i) for i in range(population.size)]
    for state in states:
        for name, value in state.online.items():
            if name.endswith("gate"):
                value.fill_(0.3)
    population.rebuild(
        population.genomes, [state._replace(target=dict(state.online)) for state in states]
    )
    return population


def random_round(requests, random, steps=2):
    count = sum(int(np.prod(request.shape)) for request in requests)
    weight = np.zeros(count)
    for _, _, where in places(requests):
        weight[where] = random.uniform(0.5, 1.0, len(where)) / len(where)
    length = random.integers(1, steps + 1, count)
    rewards = random.normal(size=(count, steps))
    rewards[np.arange(steps) >= length[:, None]] = 0
    terminated = random.random(count) < 0.2
    obs, next_obs = (torch.from_numpy(random.normal(size=(count, OBS))) for _ in range(2))
    return Samples(
        obs=obs,
        action=torch.from_numpy(random.uniform(-1, 1, (count, ACTIONS))),
        rewards=torch.from_numpy(rewards),
        next_obs=next_obs,
        bootstrap=torch.from_numpy(np.where(terminated, 0, length).astype(np.uint8)),
        weight=torch.from_numpy(weight),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=torch.zeros(count, 0),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("genomes", "compiled"), [(MIXED, False), (ALIKE, True)])
def test_a_mixed_population_equals_plain_pytorch_after_300_updates(genomes, compiled):
    population = make(genomes, compiled=compiled)
    alone = [
        LoneActorCritic(population.specs, genome, population.state(i))
        for i, genome in enumerate(genomes)
    ]
    random, each = np.random.default_rng(3), 6
    for _ in range(300 // each):
        requests = population.requests(np.full(len(genomes), each))
        samples = random_round(requests, random)
        learned = population.learn(samples, requests)
        losses = {i: [] for i in range(len(genomes))}
        for i, _, where in places(requests):
            obs, action, rewards, next_obs, bootstrap, weight, *_ = (f[where] for f in samples)
            losses[i].append(
                alone[i].learn(obs, action, rewards, next_obs, bootstrap, weight * len(where))
            )
        expected = [np.mean(own) for own in losses.values()]
        np.testing.assert_allclose(learned.loss, expected, rtol=1e-9, atol=1e-9)
    assert compiled == (population.compiled is not None and not population.compiled.failed)
    for i, one in enumerate(alone):
        state = population.state(i)
        for part, own in one.parts().items():
            for name, value in own.items():
                found = getattr(state, part)[name]
                torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9, msg=f"{i} {name}")
    for group in population.groups:
        assert not any(values.any() for values in outside(group).values())


def test_networks_have_their_own_learning_rates():
    still = agent(0, Architecture((8,)), Architecture((8,)), actor_lr=1e-300)
    population = make([still, still])
    before = population.state(0)
    requests = population.requests(np.full(2, 3))
    population.learn(random_round(requests, np.random.default_rng(0)), requests)
    after = population.state(0)
    for name, value in before.online.items():
        assert torch.equal(value, after.online[name]) == name.startswith("actor.")


def test_greedy_actions_are_the_actors():
    population = make(MIXED)
    obs = np.random.default_rng(1).normal(size=(len(MIXED), 7, OBS))
    found = population.greedy(obs)
    assert found.shape == (len(MIXED), 7, ACTIONS)
    for i, genome in enumerate(MIXED):
        actor = LoneNetwork(NetworkSpec(OBS, ACTIONS), genome.architectures["actor"])
        actor.load(network_part(population.state(i).online, "actor"))
        expected = torch.tanh(actor(torch.from_numpy(obs[i]))).detach().numpy()
        np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-12)


def test_agents_of_one_kind_share_a_matrix_only_if_all_networks_are_alike():
    kinds = kinds_of(make(MIXED).specs, MIXED, compiled=False)
    relu = [kinds[0], kinds[1], kinds[3]]
    assert len(set(relu)) < 3
    assert kinds[2] == kinds[5]
    assert kinds[4] not in (*relu, kinds[2])


def outputs(genome, state, obs, action):
    """What both networks of an agent give."""
    population = make([genome])
    population.rebuild([genome], [state])
    networks = population.groups[0].online
    actor = networks["actor"](obs[None])
    return actor, networks["critic"](obs[None], action[None])


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("move", ["units", "layer"])
def test_growing_either_network_preserves_the_function(name, move):
    genome = agent(0, Architecture((12, 16)), Architecture((16, 8)))
    population = make([genome, genome])
    requests = population.requests(np.full(2, 5))
    population.learn(random_round(requests, np.random.default_rng(0)), requests)
    state, random = population.state(0), np.random.default_rng(1)
    own, spec = genome.architectures[name], population.specs[name]
    if move == "layer":
        changed = add_layer(own, state.network(name), 0, random)
    else:
        layer = all_units(spec, own)[0]
        changed = add_units(own, state.network(name), layer, 5, random)
    grown = Genome(1, genome.architectures | {name: changed.architecture}, genome.hyperparameters)
    new = state.with_network(name, changed.state)
    obs, action = torch.randn(9, OBS).double(), torch.rand(9, ACTIONS).double()
    for before, after in zip(
        outputs(genome, state, obs, action), outputs(grown, new, obs, action), strict=True
    ):
        torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    # and it goes on learning, with the other network as it was
    population.rebuild([grown, genome], [new, state])
    check(population, [new, state])
    population.learn(random_round(requests, random), population.requests(np.full(2, 5)))
    assert population.alive.all()


def test_shrinking_one_network_leaves_the_other():
    genome = agent(0, Architecture((12, 16)), Architecture((16, 8)))
    state = make([genome]).state(0)
    spec = make([genome]).specs["critic"]
    own = genome.architectures["critic"]
    for changed in (
        remove_layer(own, state.network("critic")),
        remove_units(own, state.network("critic"), all_units(spec, own)[0], 4),
    ):
        new = state.with_network("critic", changed.state)
        for key, value in state.online.items():
            if not key.startswith("critic."):
                assert torch.equal(new.online[key], value)


def test_a_critic_is_differentiated_by_what_it_reads():
    genomes = MIXED[:2]
    population = make(genomes)
    for group, numbers in zip(population.groups, population.members, strict=True):
        obs = torch.randn(group.size, 3, OBS, dtype=torch.float64)
        action = torch.rand(group.size, 3, ACTIONS, dtype=torch.float64, requires_grad=True)
        value = group.online["critic"](obs, action).sum()
        (found,) = torch.autograd.grad(value, action)
        for row, i in enumerate(numbers):
            spec = NetworkSpec(OBS + ACTIONS, 1)
            critic = LoneNetwork(spec, genomes[i].architectures["critic"])
            critic.load(network_part(population.state(int(i)).online, "critic"))
            own = action[row].detach().requires_grad_()
            (expected,) = torch.autograd.grad(critic(torch.cat((own, obs[row]), 1)).sum(), own)
            torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


def test_every_pair_of_networks_differs():
    assert len({tuple(g.architectures.values()) for g in MIXED}) == len(MIXED)
    assert all(a != b for a, b in itertools.combinations(MIXED, 2))
