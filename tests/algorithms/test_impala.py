"""IMPALA in the matrix against each agent alone in plain PyTorch, and against A2C."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from evorl.algorithms.a2c import A2C
from evorl.algorithms.impala import IMPALA
from evorl.algorithms.returns import advantages
from evorl.experience.transitions import RolloutBatch, UnrollBatch
from evorl.genome import Architecture
from evorl.networks.spec import NetworkSpec
from evorl.population.compiled import CompiledRounds
from evorl.population.population import Population
from evorl.population.update import compute_gradient
from tests.algorithms.test_policy_gradients import ACTIONS, OBS, Compared, Lone, agents_of
from tests.reference import places

torch.set_num_threads(1)

T = 6
UPDATES = np.array([6, 4, 5, 6, 4])  # of each agent in a round
UNROLLS = np.array([3, 5, 2, 4, 1])  # of each agent in a batch
ALGORITHM = IMPALA(rollout_steps=T, initial_log_std=-0.5)
NUMBERS = [
    {"rho_max": 0.5, "c_max": 1.0},
    {"rho_max": 3.0, "c_max": 0.0, "lr": 3e-3},
    {"rho_max": 1.0, "c_max": 2.0, "gae_lambda": 0.7},
    {"rho_max": 10.0, "c_max": 0.3, "gae_lambda": 0.0},
    {"rho_max": 0.1, "c_max": 0.1, "gamma": 0.7},
]


class LoneImpala(Lone):
    """One agent that learns from unrolls, step by step; what is to be learned is a constant."""

    def learn(self, batch):
        """One update on unrolls [B, T, ...]."""
        gains, errors, entropies = [], [], []
        for unroll in zip(*batch, strict=True):
            obs, action, old, reward, next_obs, terminated, ended, weight = unroll
            log_prob, entropy = self.judged(obs, action)
            value = self.networks["value"](obs[:, :OBS]).squeeze(1)
            with torch.no_grad():
                future = self.networks["value"](next_obs[:, :OBS]).squeeze(1)
                ratio = (log_prob - old).exp()
            goal, advantage = self.traced(ratio, reward, value.detach(), future, terminated, ended)
            gains.append(advantage * log_prob * weight)
            errors.append((value - goal) ** 2 * weight)
            entropies.append(entropy * weight)
        gain, error, entropy = (torch.stack(own).sum() for own in (gains, errors, entropies))
        loss = self.hp["value_coef"] * error - gain - self.hp["entropy_coef"] * entropy
        self.optimizer.zero_grad()
        loss.backward()
        if self.hp["max_grad_norm"] > 0:
            nn.utils.clip_grad_norm_(self.parameters, self.hp["max_grad_norm"])
        self.optimizer.step()
        self.updates += 1
        return loss.item()

    def traced(self, ratio, reward, value, future, terminated, ended):
        """V-trace from the last step to the first."""
        gamma, lam, rho_max, c_max = (
            self.hp[name] for name in ("gamma", "gae_lambda", "rho_max", "c_max")
        )
        goals, found, later = [], [], 0.0
        for t in reversed(range(T)):
            rho, c = min(ratio[t].item(), rho_max), min(ratio[t].item(), c_max)
            later = 0.0 if ended[t] else later  # target less value, of the next step
            error = reward[t] - value[t] + (0.0 if terminated[t] else gamma * future[t])
            found.append(rho * (error + gamma * lam * later))
            later = rho * error + gamma * lam * c * later
            goals.append(value[t] + later)
        return torch.stack(goals[::-1]), torch.stack(found[::-1])


def agents():
    """Agents that differ in architectures, activations, LayerNorm and every number."""
    return [
        dataclasses.replace(own, hyperparameters=own.hyperparameters | numbers)
        for own, numbers in zip(agents_of(ALGORITHM), NUMBERS, strict=True)
    ]


class ComparedImpala(Compared):
    """A population, and the same agents alone."""

    def __init__(self, action, genomes, masked=False, **options):
        super().__init__(ALGORITHM, action, genomes, masked, **options)
        self.alone = [
            LoneImpala(ALGORITHM, action, masked, genome, self.population.state(i))
            for i, genome in enumerate(genomes)
        ]

    def unrolls(self, requests):
        """Random unrolls, also in the padding, of policies that are near the agents' own.

        Some episodes end, and some steps are none: they weigh nothing, and the one before is the
        last of its episode.
        """
        random, count = self.random, sum(int(np.prod(request.shape)) for request in requests)
        drawn, action = random.normal(size=(count, T + 1, OBS)), self.action
        obs, next_obs = drawn[:, :-1].copy(), drawn[:, 1:].copy()
        terminated, truncated = random.random((2, count, T)) < 0.15
        valid = random.random((count, T)) < 0.9
        ended = terminated | truncated | ~valid
        ended[:, :-1] |= ~valid[:, 1:]
        next_obs[ended] = random.normal(size=(ended.sum(), OBS))  # the true last ones
        shape = (count, T)
        if action.kind == "continuous":
            chosen = random.normal(size=(*shape, *action.shape))
        else:
            chosen = random.integers(0, action.choices, (*shape, len(action.choices)))
        if self.masked:
            allowed = random.random((*shape, sum(action.choices))) < 0.6
            starts = np.cumsum(action.choices) - action.choices
            np.put_along_axis(allowed, starts + chosen, True, 2)
            obs, next_obs = (np.concatenate((own, allowed), 2) for own in (obs, next_obs))
        chosen = chosen[..., 0] if action.n is not None else chosen
        log_prob, reward = random.normal(size=(2, *shape))
        weight = np.zeros(shape)
        for i, _, where in places(requests):
            own = [torch.from_numpy(field[where].reshape(-1, *field.shape[2:]).copy())
                   for field in (obs, chosen)]  # fmt: skip
            judged = self.alone[i].judged(*own)[0].detach().numpy()
            log_prob[where] += judged.reshape(-1, T)
            weight[where] = valid[where] / max(1, valid[where].sum())
        fields = (obs, chosen, log_prob, reward, next_obs, terminated, ended, weight)
        each = map(torch.from_numpy, fields)
        return UnrollBatch(*(f.to(self.dtype) if f.is_floating_point() else f for f in each))

    def round(self, updates, sizes):
        """One round in the matrix and alone: the mean losses of each agent, in both."""
        requests = self.population.requests(updates, sizes)
        samples = self.unrolls(requests)
        learned = self.population.learn(samples, requests)
        losses = [[] for _ in self.alone]
        for i, _, where in places(requests):
            own = (f[where].double() if f.is_floating_point() else f[where] for f in samples)
            losses[i].append(self.alone[i].learn(tuple(own)))
        return learned.loss, [np.mean(own) for own in losses]


@pytest.mark.parametrize("kind", [*ACTIONS, "masked"])
def test_a_mixed_population_equals_plain_pytorch_after_200_updates(kind):
    action = ACTIONS["multidiscrete" if kind == "masked" else kind]
    compared = ComparedImpala(action, agents(), masked=kind == "masked")
    for _ in range(50):
        found, expected = compared.round(UPDATES, UNROLLS)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    compared.assert_equal(1e-9)
    assert [one.updates for one in compared.alone] == (50 * UPDATES).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "private"), [("discrete", True), ("continuous", False)])
def test_compiled_updates_equal_plain_pytorch(kind, private):
    """One program for all widths, numbers of agents, updates and unrolls."""
    genomes = [
        dataclasses.replace(
            own, architectures=dict.fromkeys(("policy", "value"), Architecture((16 + 16 * own.id,)))
        )
        for own in agents()[:3]
    ]
    compiled = CompiledRounds(ALGORITHM, private)
    torch._dynamo.utils.counters.clear()
    for count, unrolls in ((3, [1, 3, 2]), (2, [4, 1])) if private else ((3, [1, 3, 2]),):
        options = {"dtype": torch.float32, "compiled": True}
        compared = ComparedImpala(ACTIONS[kind], genomes[:count], **options)
        compared.population.compiled = compiled
        found, expected = compared.round(np.array([5, 4, 5])[:count], np.array(unrolls))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        compared.assert_equal(1e-5)
    assert not compiled.failed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def on_policy(a2c, impala, shape, lam, random):
    """The same steps [P, N, T] of the agents' own policies, as both algorithms get them."""
    agents, envs, steps = shape
    drawn = torch.from_numpy(random.normal(size=(agents, envs, steps + 1, OBS)))
    obs, next_obs = drawn[:, :, :-1].clone(), drawn[:, :, 1:].clone()
    terminated, truncated = torch.from_numpy(random.random((2, *shape)) < 0.2)
    ended = terminated | truncated
    next_obs[ended] = torch.from_numpy(random.normal(size=(int(ended.sum()), OBS)))
    action = torch.from_numpy(random.integers(0, 3, shape))
    reward = torch.from_numpy(random.normal(size=shape))
    log_prob = a2c.log_prob(obs.flatten(1, 2), action.flatten(1, 2)).view(shape)
    value, next_value = (a2c.value(own.flatten(1, 2)).view(shape) for own in (obs, next_obs))
    by_time = (own.movedim(2, 0) for own in (reward, value, next_value, terminated, ended))
    gamma = torch.from_numpy(a2c.hyperparameter("gamma").copy())[:, None]
    found = advantages(*by_time, gamma, torch.full_like(gamma, lam)).movedim(0, 2)
    weight = torch.full(shape, 1 / (envs * steps), dtype=torch.float64)
    plain = (obs, action, log_prob, found, found + value, weight)
    steps_ = (obs, action, log_prob, reward, next_obs, terminated, ended, weight)
    (request,) = a2c.requests(np.ones(agents, int), np.full(agents, envs * steps))
    (whole,) = impala.requests(np.ones(agents, int), np.full(agents, envs))
    rollout = RolloutBatch(*(own.flatten(0, 2) for own in plain))
    unrolls = UnrollBatch(*(own.flatten(0, 1) for own in steps_))
    return (rollout, [request]), (unrolls, [whole])


@pytest.mark.parametrize(("lam", "rho_max", "c_max"), [(1.0, 1.0, 1.0), (0.6, 7.0, 1.5)])
def test_without_lag_it_is_a2c(lam, rho_max, c_max):
    """Of one update for each rollout, with thresholds of 1 or more, whatever lambda is."""
    random, action = np.random.default_rng(4), ACTIONS["discrete"]
    own = {"lr": 3e-3, "gamma": 0.95, "gae_lambda": lam, "entropy_coef": 0.02, "value_coef": 0.7}
    populations = []
    for algorithm in (A2C(**own), IMPALA(rollout_steps=T, rho_max=rho_max, c_max=c_max, **own)):
        first = agents_of(algorithm)[0]
        values = algorithm.hyperparameters
        genomes = [
            dataclasses.replace(first, id=i, hyperparameters=values | {"gamma": gamma})
            for i, gamma in enumerate((0.9, 0.99, 1.0))
        ]
        networks = algorithm.networks(NetworkSpec(OBS, 0), action)
        populations.append(Population(genomes, networks, algorithm, dtype=torch.float64))
    for _ in range(20):
        batches = on_policy(*populations, (3, 2, T), lam, random)
        losses = [own.learn(*given).loss for own, given in zip(populations, batches, strict=True)]
        np.testing.assert_allclose(*losses, rtol=1e-10, atol=1e-10)
    for agent in range(3):
        expected, found = (own.state(agent) for own in populations)
        for part in ("online", "m", "v"):
            for name, value in getattr(expected, part).items():
                other = getattr(found, part)[name]
                torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-9)


def fixed_targets(group, batch):
    """Targets and advantages by the weights as they are."""
    obs, next_obs = batch.obs.flatten(1, 2), batch.next_obs.flatten(1, 2)
    with torch.no_grad():
        log_prob = ALGORITHM.log_prob(group.online, obs, batch.action.flatten(1, 2))
        values = (ALGORITHM.value(group.online, own) for own in (obs, next_obs))
        return ALGORITHM.traced(log_prob, *values, batch, group.hyperparameters)


def test_gradients_are_those_of_differences(monkeypatch):
    """Of targets and advantages as they were: these are constants of the loss."""
    compared = ComparedImpala(ACTIONS["discrete"], agents()[:1])
    (request,) = compared.population.requests(np.array([1]), np.array([3]))
    samples, (group,) = compared.unrolls([request]), compared.population.groups
    batch = UnrollBatch(*(own.view(1, 3, *own.shape[1:]) for own in samples))
    gradient = compute_gradient(group, ALGORITHM, batch).gradient.clone()
    fixed = fixed_targets(group, batch)
    monkeypatch.setattr(IMPALA, "traced", lambda *_: fixed)

    def loss():
        found = ALGORITHM.loss(group.online, group.target, batch, group.hyperparameters)
        return float(found.loss.sum())

    columns = np.flatnonzero(gradient[0].numpy())
    for column in np.random.default_rng(1).choice(columns, 25, replace=False):
        before, step, sides = group.theta[0, column].item(), 1e-6, []
        for side in (before + step, before - step):
            group.theta[0, column] = side
            sides.append(loss())
        group.theta[0, column] = before
        found = (sides[0] - sides[1]) / (2 * step)
        assert found == pytest.approx(gradient[0, column].item(), rel=1e-5, abs=1e-8)


def test_a_round_has_the_rewards_as_they_are_scaled():
    compared = ComparedImpala(ACTIONS["discrete"], agents())
    requests = compared.population.requests(UPDATES, UNROLLS)
    samples = compared.unrolls(requests)
    scale = torch.tensor([0.5, 100.0])
    shape = (1, 2, len(samples.reward) // 2)
    batch = UnrollBatch(*(own[: 2 * shape[2]].view(*shape, *own.shape[1:]) for own in samples))
    found = batch.batches(torch.ones(2), scale)
    expected = (batch.reward * scale.view(1, 2, 1, 1)).clamp(-10, 10)
    assert torch.equal(found.reward, expected)
    assert torch.equal(batch.batches(torch.ones(2)).reward, batch.reward)


def test_updates_and_unrolls_of_a_round():
    values = {"updates": np.array([1.0, 4.0, 2.0]), "replay_ratio": np.array([0.0, 1.5, 3.0])}
    updates, sizes = IMPALA(replay_unrolls=64).minibatches(values, 3)
    assert updates.tolist() == [1, 4, 2]
    assert sizes.tolist() == [3, 7, 12]  # 4.5 is rounded to the even one
    assert IMPALA().minibatches(values, 3)[1].tolist() == [3, 3, 3]
    assert IMPALA(rollout_steps=10).update_rate({"updates": 4}, 8) == 0.05
    assert IMPALA().unused == {"replay_ratio"}
    assert IMPALA(replay_unrolls=8).unused == set()
