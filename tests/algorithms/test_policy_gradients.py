"""A2C and PPO in the matrix against each agent alone in plain PyTorch."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

from evorl.algorithms.a2c import A2C
from evorl.algorithms.base import Hyperparameters
from evorl.algorithms.policies import policy_of
from evorl.algorithms.ppo import PPO
from evorl.envs.spaces import ActionSpec
from evorl.experience.transitions import RolloutBatch
from evorl.genome import Architecture, Genome
from evorl.networks.layout import network_part
from evorl.networks.spec import NetworkSpec
from evorl.population.compiled import CompiledRounds
from evorl.population.population import Population
from tests.reference import LoneNetwork, outside, places

torch.set_num_threads(1)

OBS = 5
ACTIONS = {
    "discrete": ActionSpec("discrete", 3),
    "multidiscrete": ActionSpec("multidiscrete", shape=(2,), parts=(3, 2)),
    "continuous": ActionSpec("continuous", None, (2,), np.dtype(np.float32)),
}
ALGORITHMS = {
    "a2c": A2C(initial_log_std=-0.5),
    "a2c-normalized": A2C(normalize_advantage=True),
    "ppo": PPO(initial_log_std=-0.5),
    "ppo-plain": PPO(normalize_advantage=False),
}
EPOCHS = np.array([6, 4, 5, 6, 4])  # updates of each agent in a round


class Lone:
    """One agent alone: nn.Modules, autograd, one optimizer of everything; in float64."""

    def __init__(self, algorithm, action, masked, genome, state):
        self.algorithm, self.action, self.masked = algorithm, action, masked
        self.hp, self.updates = genome.hyperparameters, 0
        outputs = {"policy": sum(action.choices) or action.shape[0], "value": 1}
        self.networks = {}
        for name, architecture in genome.architectures.items():
            network = LoneNetwork(NetworkSpec(OBS, outputs[name]), architecture)
            network.load(network_part(state.online, name))
            self.networks[name] = network
        self.log_std = None
        if action.kind == "continuous":
            self.log_std = nn.Parameter(state.online["log_std.value"].double())
        self.parameters = [p for own in self.networks.values() for p in own.parameters()]
        self.parameters += [] if self.log_std is None else [self.log_std]
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.hp["lr"])

    def judged(self, obs, action):
        """Log-probability and entropy, by torch's distributions."""
        seen = obs[:, :OBS]
        outputs = self.networks["policy"](seen)
        if self.action.kind == "continuous":
            normal = Normal(outputs, self.log_std.exp())
            return normal.log_prob(action).sum(1), normal.entropy().sum(1)
        if self.masked:
            outputs = outputs.masked_fill(obs[:, OBS:] <= 0, -torch.inf)
        parts = [Categorical(logits=own) for own in outputs.split(self.action.choices, 1)]
        chosen = action.reshape(len(obs), -1).unbind(1)
        each = [part.log_prob(own) for part, own in zip(parts, chosen, strict=True)]
        return sum(each), sum(part.entropy() for part in parts)

    def learn(self, obs, action, old, advantage, returns):
        """One update; None if it stops before it."""
        if self.algorithm.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob, entropy = self.judged(obs, action)
        gain = advantage * log_prob
        if "clip" in self.hp:
            ratio = (log_prob - old).exp()
            near = ratio.clamp(1 - self.hp["clip"], 1 + self.hp["clip"])
            gain = torch.min(ratio * advantage, near * advantage)
            distance = (ratio - 1 - (log_prob - old)).mean().item()
            if self.hp["target_kl"] > 0 and distance > 1.5 * self.hp["target_kl"]:
                return None
        values = self.networks["value"](obs[:, :OBS]).squeeze(1)
        error = nn.functional.mse_loss(values, returns)
        loss = self.hp["value_coef"] * error - gain.mean()
        loss = loss - self.hp["entropy_coef"] * entropy.mean()
        self.optimizer.zero_grad()
        loss.backward()
        if self.hp["max_grad_norm"] > 0:
            nn.utils.clip_grad_norm_(self.parameters, self.hp["max_grad_norm"])
        self.optimizer.step()
        self.updates += 1
        return loss.item()

    def parts(self):
        moments = self.optimizer.state

        def of(parameter, key):
            return moments[parameter][key] if moments else torch.zeros_like(parameter)

        found = {"online": {}, "m": {}, "v": {}}
        reads = {
            "online": lambda p: p.detach(),
            "m": lambda p: of(p, "exp_avg"),
            "v": lambda p: of(p, "exp_avg_sq"),
        }
        for part, read in reads.items():
            for name, network in self.networks.items():
                found[part] |= {f"{name}.{k}": v for k, v in network.read(read).items()}
            if self.log_std is not None:
                found[part]["log_std.value"] = read(self.log_std)
        return found


def agents_of(algorithm, **changed):
    """Agents that differ in architectures, activations, LayerNorm and every number."""
    shapes = [
        (Architecture((16, 12)), Architecture((24,))),
        (Architecture((9,)), Architecture((20, 20, 8))),
        (Architecture((16, 16), "tanh"), Architecture((16,), layer_norm=True)),
        (Architecture((12, 12), gated=(False, True)), Architecture((20, 20), "elu")),
        (Architecture((16, 10), layer_norm=True), Architecture((8, 8), "silu")),
    ]
    changes = [
        {"lr": 3e-3, "entropy_coef": 0.01},
        {"gamma": 0.9, "batch_size": 7, "clip": 0.05, "value_coef": 1.0},
        {"lr": 1e-3, "gamma": 0.5, "clip": 0.4, "max_grad_norm": 0.0},
        {"max_grad_norm": 0.05, "gae_lambda": 0.5, "entropy_coef": 0.1},
        {"batch_size": 11, "max_grad_norm": 2.0, "value_coef": 0.1},
    ]
    found = []
    for number, ((policy, value), own) in enumerate(zip(shapes, changes, strict=True)):
        values = algorithm.hyperparameters | {"batch_size": 16}
        values |= {name: v for name, v in own.items() if name in values} | changed
        architectures = {"policy": policy, "value": value}
        found.append(Genome(number, architectures, values))
    return found


class Compared:
    """A population, and the same agents alone."""

    def __init__(self, algorithm, action, genomes, masked=False, seed=3, **options):
        self.algorithm, self.action, self.masked = algorithm, action, masked
        self.dtype = options.setdefault("dtype", torch.float64)
        spec = NetworkSpec(OBS, 0, mask=sum(action.choices) if masked else 0)
        networks = algorithm.networks(spec, action)
        self.population = Population(genomes, networks, algorithm, **options)
        self.alone = [
            Lone(algorithm, action, masked, genome, self.population.state(i))
            for i, genome in enumerate(genomes)
        ]
        self.random = np.random.default_rng(seed)

    def samples(self, requests, shifts):
        """Random rollouts, also in the padding. The policies behind them are the agents' own, with
        noise of a size for each update, so that there are ratios on both sides of the clip.
        """
        random, action = self.random, self.action
        count = sum(int(np.prod(request.shape)) for request in requests)
        obs = random.normal(size=(count, OBS))
        if action.kind == "continuous":
            chosen = random.normal(size=(count, *action.shape))
        else:
            chosen = random.integers(0, action.choices, (count, len(action.choices)))
        if self.masked:
            allowed = random.random((count, sum(action.choices))) < 0.6
            starts = np.cumsum(action.choices) - action.choices
            np.put_along_axis(allowed, starts + chosen, True, 1)
            obs = np.concatenate((obs, allowed), 1)
        if action.n is not None:
            chosen = chosen[:, 0]
        weight, (log_prob, advantage, returns) = np.zeros(count), random.normal(size=(3, count))
        for i, update, where in places(requests):
            weight[where] = 1 / len(where)
            log_prob[where] *= shifts[update]
            given = torch.from_numpy(obs[where]), torch.from_numpy(chosen[where])
            log_prob[where] += self.alone[i].judged(*given)[0].detach().numpy()
        fields = map(torch.from_numpy, (obs, chosen, log_prob, advantage, returns, weight))
        return RolloutBatch(*(f.to(self.dtype) if f.is_floating_point() else f for f in fields))

    def round(self, updates, shifts=(0.2,) * 8):
        """One round in the matrix and alone: the mean losses of each agent, in both."""
        requests = self.population.requests(np.asarray(updates))
        samples = self.samples(requests, shifts)
        learned = self.population.learn(samples, requests)
        losses, over = [[] for _ in self.alone], set()
        for i, _, where in places(requests):
            if i in over:
                continue
            *fields, _ = (f[where].double() if f.is_floating_point() else f[where] for f in samples)
            loss = self.alone[i].learn(*fields)
            if loss is None:
                over.add(i)
            else:
                losses[i].append(loss)
        return learned.loss, [np.mean(own) if own else np.nan for own in losses]

    def assert_equal(self, tolerance):
        for i, one in enumerate(self.alone):
            state = self.population.state(i)
            assert state.updates == one.updates, i
            for part, own in one.parts().items():
                for name, value in own.items():
                    torch.testing.assert_close(
                        getattr(state, part)[name].double(),
                        value,
                        rtol=tolerance,
                        atol=tolerance,
                        msg=lambda text, at=f"agent {i}, {part} {name}": f"{at}: {text}",
                    )
        for group in self.population.groups:
            assert not any(values.any() for values in outside(group).values())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(("a2c", "ppo"), ACTIONS),
        ("a2c-normalized", "discrete"),
        ("ppo-plain", "continuous"),
        ("ppo", "masked"),
    ],
)
def test_a_mixed_population_equals_plain_pytorch_after_200_updates(name, kind):
    algorithm = ALGORITHMS[name]
    action = ACTIONS["multidiscrete" if kind == "masked" else kind]
    compared = Compared(algorithm, action, agents_of(algorithm), masked=kind == "masked")
    for _ in range(50):
        found, expected = compared.round(EPOCHS)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    compared.assert_equal(1e-9)
    assert [one.updates for one in compared.alone] == (50 * EPOCHS).tolist()


STOPPING = {"shifts": (0.2, 0.2, 1.0, 0.2, 0.2)}  # the third of five batches is far from the policy
LIMITS = (0.0, 0.1, 10.0, 0.1, 0.1)


def stopping():
    """Two agents that a distance does not stop, and three that it does."""
    agents = agents_of(PPO(), lr=1e-4)
    return [
        dataclasses.replace(own, hyperparameters=own.hyperparameters | {"target_kl": limit})
        for own, limit in zip(agents, LIMITS, strict=True)
    ]


@pytest.mark.parametrize("kind", ACTIONS)
def test_an_agent_that_went_too_far_makes_no_more_updates_of_the_round(kind):
    """Not the one that shows the distance, and none of those after it, near or far."""
    compared = Compared(PPO(), ACTIONS[kind], stopping())
    compared.round([5, 5, 5, 5, 2], **STOPPING)
    assert [one.updates for one in compared.alone] == [5, 2, 5, 2, 2]
    compared.assert_equal(1e-9)
    compared.round([5] * 5)  # new experience: everyone again
    assert [one.updates for one in compared.alone] == [10, 7, 10, 7, 7]
    compared.assert_equal(1e-9)


def test_an_agent_may_stop_before_its_first_update():
    compared = Compared(PPO(), ACTIONS["discrete"], stopping())
    before = compared.population.state(1)
    losses, _ = compared.round([3] * 5, shifts=(1.0, 0.0, 0.0))
    assert [one.updates for one in compared.alone] == [3, 0, 3, 0, 0]
    np.testing.assert_array_equal(np.isnan(losses), [False, True, False, True, True])
    after = compared.population.state(1)
    for part in ("online", "m", "v"):
        for name, value in getattr(before, part).items():
            assert torch.equal(getattr(after, part)[name], value), (part, name)
    assert compared.population.alive.all()


def test_the_loss_of_a_round_is_that_of_the_updates_made():
    compared = Compared(PPO(), ACTIONS["discrete"], stopping())
    found, expected = compared.round([5] * 5, **STOPPING)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def kl_batch(action, random):
    """Every action at one place, as likely as an old policy says (for boxes, Gauss and Hermite's
    places): by these weights a mean over the batch is the expectation. Also that policy.
    """
    if action.kind == "continuous":
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        old = Normal(*torch.from_numpy(random.normal(0, 0.2, (2, *action.shape))).exp())
        grid = torch.cartesian_prod(*(torch.from_numpy(nodes),) * 2)
        weight = torch.cartesian_prod(*(torch.from_numpy(weights / weights.sum()),) * 2).prod(1)
        chosen = old.mean + old.stddev * grid
        return chosen, weight, old.log_prob(chosen).sum(1), [old]
    old = [Categorical(logits=torch.from_numpy(random.normal(size=n))) for n in action.choices]
    each = torch.tensor(list(itertools.product(*map(range, action.choices))))
    log_prob = sum(part.log_prob(own) for part, own in zip(old, each.unbind(1), strict=True))
    return each.squeeze(1), log_prob.exp(), log_prob, old


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_distance_is_the_divergence_of_the_old_policy_from_the_new(kind):
    action = ACTIONS[kind]
    genomes = [dataclasses.replace(agents_of(PPO())[0], id=i) for i in range(4)]
    group = Compared(PPO(), action, genomes).population.groups[0]
    random = np.random.default_rng(7)
    chosen, weight, log_prob, old = kl_batch(action, random)
    obs = torch.from_numpy(random.normal(size=(4, 1, OBS)))
    policy = policy_of(group.online, obs)
    if action.kind == "continuous":
        new = [Normal(policy.mean.squeeze(1), policy.log_std.squeeze(1).exp())]
    else:
        logits = policy.logits.squeeze(1).split(action.choices, 1)
        new = [Categorical(logits=own) for own in logits]
    kl = sum(kl_divergence(a, b).reshape(4, -1).sum(1) for a, b in zip(old, new, strict=True))
    nothing = torch.zeros(4, len(weight), dtype=torch.float64)
    batch = RolloutBatch(
        obs.expand(4, len(weight), OBS),
        chosen.expand(4, *chosen.shape),
        log_prob.expand(4, -1),
        nothing,
        nothing,
        weight.expand(4, -1),
    )
    for limit, stops in ((kl / 1.5 * (1 - 1e-9), True), (kl / 1.5 * (1 + 1e-9), False)):
        values = group.hyperparameters.values.clone()
        values[group.names.index("target_kl")] = limit
        hp = Hyperparameters(group.names, values)
        found = PPO().loss(group.online, group.target, batch, hp)
        assert (found.stop == stops).all(), (kl, limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "private"),
    [("a2c", "multidiscrete", True), ("ppo", "continuous", True), ("ppo", "continuous", False)],
)
def test_compiled_updates_equal_plain_pytorch(name, kind, private):
    """Of one kind, so that there is one program: three widths, every number their own, and PPO's
    second agent stops. Also by the public way of torch.compile.
    """
    algorithm = ALGORITHMS[name]
    genomes = [
        dataclasses.replace(
            own, architectures=dict.fromkeys(("policy", "value"), Architecture((16 + 16 * own.id,)))
        )
        for own in (stopping() if name == "ppo" else agents_of(algorithm))[:3]
    ]
    options = {"dtype": torch.float32, "compiled": True}
    compared = Compared(algorithm, ACTIONS[kind], genomes, **options)
    compared.population.compiled = CompiledRounds(algorithm, private)
    found, expected = compared.round([5, 5, 4], **STOPPING)
    assert [one.updates for one in compared.alone] == [5, 2 if name == "ppo" else 5, 4]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    compared.assert_equal(1e-5)
    assert not compared.population.compiled.failed
