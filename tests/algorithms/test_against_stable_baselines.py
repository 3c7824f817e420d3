"""One update from the same weights and the same batch, here and in Stable-Baselines3.

Its optimizers get evorl's epsilon of 1e-8, and A2C gets Adam instead of RMSprop. Its actors learn
after the critics' step, and evorl's by the critics before it. So for the actor there is a second
model, whose critics have a learning rate of 0: everything else is compared with the first.
"""

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples, RolloutBufferSamples

from evorl.algorithms.a2c import A2C
from evorl.algorithms.ddpg import DDPG, TD3
from evorl.algorithms.dqn import DQN
from evorl.algorithms.ppo import PPO
from evorl.algorithms.returns import advantages
from evorl.algorithms.sac import SAC
from evorl.envs.spaces import ActionSpec
from evorl.experience.transitions import RolloutBatch, Samples
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.population.group import AgentState
from evorl.population.population import Population
from tests.reference import places

torch.set_num_threads(1)

OBS, BATCH = 5, 32
BOX = ActionSpec("continuous", None, (2,), np.dtype(np.float32))
DISCRETE = ActionSpec("discrete", 3)
PARTED = ActionSpec("multidiscrete", shape=(2,), parts=(3, 2))
SPACES = {
    "continuous": spaces.Box(-1, 1, (2,)),
    "discrete": spaces.Discrete(3),
    "multidiscrete": spaces.MultiDiscrete([3, 2]),
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Nowhere(gym.Env):
    """An environment that nobody steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBS,))

    def __init__(self, action_space):
        self.action_space = action_space


def model_of(kind, action, **options):
    """One of their models, with networks of 16-16 and evorl's Adam."""
    policy = {"net_arch": [16, 16], "optimizer_kwargs": {"eps": 1e-8}}
    space = SPACES[action.kind]
    model = kind("MlpPolicy", Nowhere(space), policy_kwargs=policy, device="cpu", **options)
    model.set_logger(Logger(None, []))
    return model


def said(model, name):
    return model.logger.name_to_value[f"train/{name}"]


def itself(parameter):
    return parameter.detach().clone()


class Network:
    """Their layers under evorl's names: hidden ones, and heads that evorl has as one."""

    def __init__(self, hidden, *heads, extra=0):
        self.hidden = [layer for layer in hidden if isinstance(layer, torch.nn.Linear)]
        self.heads, self.extra = list(heads), extra
        if not heads:
            *self.hidden, head = self.hidden
            self.heads = [head]

    def read(self, of=itself):
        found = {}
        for k, layer in enumerate(self.hidden):
            weight = of(layer.weight).T
            # evorl reads an action before the observation, they after it
            found[f"hidden{k}.weight"] = weight.roll(self.extra, 0) if k == 0 else weight
            found[f"hidden{k}.bias"] = of(layer.bias)
        found["head.weight"] = torch.cat([of(head.weight) for head in self.heads])
        found["head.bias"] = torch.cat([of(head.bias) for head in self.heads])
        return found


class Bare:
    """A parameter without a network."""

    def __init__(self, parameter):
        self.parameter = parameter

    def read(self, of=itself):
        return {"value": of(self.parameter)}


def named(networks, of=itself):
    return {
        f"{name}.{segment}": value
        for name, network in networks.items()
        for segment, value in network.read(of).items()
    }


def population_of(algorithm, action, activation, online, target, **changed):
    """An evorl agent with their weights, and with numbers of its own."""
    declared = algorithm.networks(NetworkSpec(OBS, 0), action)
    shape = Architecture((16, 16), activation)
    architectures = {n: shape for n, own in declared.items() if isinstance(own.spec, NetworkSpec)}
    values = algorithm.hyperparameters | {"batch_size": BATCH} | changed
    genome = Genome(0, architectures, values)
    population = Population([genome], declared, algorithm)
    weights = named(online)
    zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
    state = AgentState(weights, weights | named(target), zeros, zeros, 0)
    population.rebuild([genome], [state])
    return population


def learn(population, kind, batches):
    """One round of updates on these batches; the mean loss."""
    requests = population.requests(np.array([len(batches)]))
    (request,) = requests
    fields = []
    for each in zip(*batches, strict=True):
        rows = [torch.as_tensor(own) for own in each]
        flat = torch.zeros(int(np.prod(request.shape)), *rows[0].shape[1:], dtype=rows[0].dtype)
        for _, update, where in places(requests):
            flat[where] = rows[update]
        fields.append(flat)
    return population.learn(kind(*fields), requests).loss.item()


def assert_same(state, part, expected):
    found = getattr(state, part)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, **CLOSE, msg=lambda text, at=f"{part} {name}": f"{at}: {text}"
        )


def assert_moments(state, networks, *optimizers):
    """Adam's: with them the gradient is the same in size, too."""
    states = {p: own for optimizer in optimizers for p, own in optimizer.state.items()}
    assert_same(state, "m", named(networks, lambda p: states[p]["exp_avg"]))
    assert_same(state, "v", named(networks, lambda p: states[p]["exp_avg_sq"]))


def transitions(action, noise, gamma=0.97):
    """A batch of a replay, in their form and in evorl's."""
    random = np.random.default_rng(11)
    obs, next_obs = random.normal(size=(2, BATCH, OBS)).astype(np.float32)
    reward = 3 * random.normal(size=(BATCH, 1)).astype(np.float32)
    done = random.random((BATCH, 1)) < 0.3
    if action.kind == "discrete":
        chosen = random.integers(0, action.n, BATCH)
    else:
        chosen = random.uniform(-1, 1, (BATCH, *action.shape)).astype(np.float32)
    theirs = (obs, chosen.reshape(BATCH, -1), next_obs, np.float32(done), reward)
    weight, slots = np.full(BATCH, 1 / BATCH, np.float32), np.zeros(BATCH, np.int64)
    ours = (obs, chosen, reward, next_obs, np.uint8(~done[:, 0]), weight, slots, noise)
    return ReplayBufferSamples(*map(torch.from_numpy, theirs)), ours


def train(model, replayed, seed, frozen=None):
    """One update of theirs on a batch, with noise by a seed."""
    model.replay_buffer.sample = lambda *_, **__: replayed
    if frozen is not None:
        model._update_learning_rate = lambda _: None
        frozen.param_groups[0]["lr"] = 0.0
    torch.manual_seed(seed)
    model.train(gradient_steps=1, batch_size=BATCH)


def test_dqn():
    model = model_of(sb3.DQN, DISCRETE, learning_rate=2e-3, gamma=0.97, max_grad_norm=0.5, seed=1)
    with torch.no_grad():  # as after some updates: another target
        for parameter in model.q_net_target.parameters():
            parameter.mul_(1.5)
    online, target = {"q": Network(model.q_net.q_net)}, {"q": Network(model.q_net_target.q_net)}
    changed = {"lr": 2e-3, "gamma": 0.97, "max_grad_norm": 0.5}
    population = population_of(DQN(double=False), DISCRETE, "relu", online, target, **changed)
    theirs, ours = transitions(DISCRETE, np.zeros((BATCH, 0), np.float32))
    loss = learn(population, Samples, [ours])
    train(model, theirs, seed=0)
    assert loss == pytest.approx(said(model, "loss"), rel=1e-5)
    assert_same(population.state(0), "online", named(online))
    assert_moments(population.state(0), online, model.policy.optimizer)


def critics_of(critic):
    names = ("critic", "critic2")[: len(critic.q_networks)]
    each = (Network(own, extra=2) for own in critic.q_networks)
    return dict(zip(names, each, strict=True))


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_td3_and_ddpg(name):
    twin = name == "td3"
    options = {"learning_rate": 2e-3, "gamma": 0.97, "tau": 0.1, "policy_delay": 1, "seed": 1}
    options |= {"target_policy_noise": 0.2, "target_noise_clip": 0.3} if twin else {}
    if not twin:
        del options["policy_delay"]
    kind = sb3.TD3 if twin else sb3.DDPG
    model, still = (model_of(kind, BOX, **options) for _ in range(2))
    for own in (model, still):
        with torch.no_grad():
            for parameter in (*own.actor_target.parameters(), *own.critic_target.parameters()):
                parameter.mul_(1.5)
    actor, critics = {"actor": Network(model.actor.mu)}, critics_of(model.critic)
    targets = {"actor": Network(model.actor_target.mu)}, critics_of(model.critic_target)
    changed = {"lr": 2e-3, "actor_lr": 2e-3, "gamma": 0.97, "tau": 0.1, "policy_delay": 1}
    algorithm = TD3(target_noise=0.2, target_noise_clip=0.3) if twin else DDPG()
    population = population_of(
        algorithm,
        BOX,
        "relu",
        actor | critics,
        targets[0] | targets[1],
        **changed,
        max_grad_norm=0.0,
    )
    torch.manual_seed(5)
    noise = torch.empty(BATCH, 2).normal_(0, 0.2) / 0.2
    theirs, ours = transitions(BOX, noise if twin else torch.zeros(BATCH, 0))
    loss = learn(population, Samples, [ours])
    train(model, theirs, seed=5)
    train(still, theirs, seed=5, frozen=still.critic.optimizer)
    assert said(model, "critic_loss") == said(still, "critic_loss")
    assert loss == pytest.approx(said(model, "critic_loss"), rel=1e-5)  # the actor's is not shown
    state = population.state(0)
    assert_same(state, "online", named(critics))
    assert_same(state, "target", named(targets[1]))
    assert_moments(state, critics, model.critic.optimizer)
    actor = {"actor": Network(still.actor.mu)}
    assert_same(state, "online", named(actor))
    assert_same(state, "target", named({"actor": Network(still.actor_target.mu)}))
    assert_moments(state, actor, still.actor.optimizer)


def test_sac():
    options = {"learning_rate": 2e-3, "gamma": 0.97, "tau": 0.1, "ent_coef": "auto_0.5", "seed": 1}
    model, still = (model_of(sb3.SAC, BOX, **options) for _ in range(2))
    for own in (model, still):
        own.actor.action_dist.epsilon = 0.0  # of their density at the ends of tanh
        with torch.no_grad():
            for parameter in own.critic_target.parameters():
                parameter.mul_(1.5)

    def actor_of(own):
        return {"actor": Network(own.actor.latent_pi, own.actor.mu, own.actor.log_std)}

    critics, targets = critics_of(model.critic), critics_of(model.critic_target)
    temperature = {"log_temperature": Bare(model.log_ent_coef)}
    rates = dict.fromkeys(("lr", "actor_lr", "temperature_lr"), 2e-3)
    population = population_of(
        SAC(initial_temperature=0.5),
        BOX,
        "relu",
        actor_of(model) | critics | temperature,
        targets,
        **rates,
        gamma=0.97,
        tau=0.1,
        max_grad_norm=0.0,
    )
    torch.manual_seed(5)
    own, following = torch.empty(BATCH, 2).normal_(), torch.empty(BATCH, 2).normal_()
    theirs, ours = transitions(BOX, torch.cat((following, own), 1))
    loss = learn(population, Samples, [ours])
    train(model, theirs, seed=5)
    train(still, theirs, seed=5, frozen=still.critic.optimizer)
    assert said(model, "critic_loss") == said(still, "critic_loss")
    expected = said(model, "critic_loss") + said(still, "actor_loss") + said(model, "ent_coef_loss")
    assert loss == pytest.approx(expected, rel=1e-5)
    state = population.state(0)
    assert_same(state, "online", named(critics | temperature))
    assert_same(state, "target", named(targets))
    optimizers = model.critic.optimizer, model.ent_coef_optimizer
    assert_moments(state, critics | temperature, *optimizers)
    assert_same(state, "online", named(actor_of(still)))
    assert_moments(state, actor_of(still), still.actor.optimizer)


def rollouts(model, action, shifts):
    """Batches of rollouts, in their form and in evorl's; with noise on the probabilities."""
    random = np.random.default_rng(12)
    theirs, ours = [], []
    for shift in shifts:
        obs = torch.from_numpy(random.normal(size=(BATCH, OBS)).astype(np.float32))
        if action.kind == "continuous":
            chosen = torch.from_numpy(random.normal(size=(BATCH, 2)).astype(np.float32))
        else:
            sizes = action.choices
            chosen = torch.from_numpy(random.integers(0, sizes, (BATCH, len(sizes)))).squeeze(1)
        noise, advantage, returns = random.normal(size=(3, BATCH)).astype(np.float32)
        log_prob = model.policy.evaluate_actions(obs, chosen)[1].detach()
        log_prob = log_prob + shift * torch.from_numpy(noise)
        value, weight = torch.zeros(BATCH), torch.full((BATCH,), 1 / BATCH)
        judged = torch.from_numpy(advantage), torch.from_numpy(returns)
        stored = chosen.float().reshape(BATCH, -1)
        theirs.append(RolloutBufferSamples(obs, stored, value, log_prob, *judged))
        ours.append((obs, chosen, log_prob, *judged, weight))
    return theirs, ours


def agree_on_rollouts(kind, algorithm, action, shifts, options, changed):
    """Their model and the state of evorl's agent after batches of rollouts, and both losses."""
    model = model_of(kind, action, learning_rate=2e-3, ent_coef=0.02, seed=1, **options)
    with torch.no_grad():  # their policies begin near zero
        model.policy.action_net.weight.mul_(100)
    extractor, policy = model.policy.mlp_extractor, model.policy
    networks = {
        "policy": Network(extractor.policy_net, policy.action_net),
        "value": Network(extractor.value_net, policy.value_net),
    }
    if action.kind == "continuous":
        networks["log_std"] = Bare(policy.log_std)
    changed = {"lr": 2e-3, "entropy_coef": 0.02} | changed
    population = population_of(algorithm, action, "tanh", networks, {}, **changed)
    theirs, ours = rollouts(model, action, shifts)
    loss = learn(population, RolloutBatch, ours)
    model.rollout_buffer.get = lambda *_, **__: iter(theirs)
    model.train()
    state = population.state(0)
    assert_same(state, "online", named(networks))
    assert_moments(state, networks, policy.optimizer)
    return model, state, loss


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("action", [DISCRETE, PARTED, BOX], ids=lambda own: own.kind)
def test_a2c(action, normalized):
    options = {"use_rms_prop": False, "normalize_advantage": normalized, "n_steps": BATCH}
    algorithm = A2C(normalize_advantage=normalized)
    model, _, loss = agree_on_rollouts(sb3.A2C, algorithm, action, [0.0], options, {})
    expected = said(model, "policy_loss") + 0.5 * said(model, "value_loss")
    expected += 0.02 * said(model, "entropy_loss")
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("action", [DISCRETE, PARTED, BOX], ids=lambda own: own.kind)
def test_ppo(action):
    options = {"batch_size": BATCH, "n_steps": BATCH, "n_epochs": 1, "clip_range": 0.1}
    model, _, loss = agree_on_rollouts(sb3.PPO, PPO(), action, [0.3], options, {"clip": 0.1})
    assert 0.1 < said(model, "clip_fraction") < 0.9
    assert loss == pytest.approx(said(model, "loss"), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("target_kl", "made"), [(None, 5), (0.1, 2)])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=lambda own: own.kind)
def test_ppo_stops_before_the_update_that_shows_the_distance(action, target_kl, made):
    options = {"batch_size": BATCH, "n_steps": BATCH, "n_epochs": 1, "target_kl": target_kl}
    changed = {"target_kl": target_kl or 0.0}
    shifts = [0.0, 0.0, 1.0, 0.0, 0.0]
    model, state, _ = agree_on_rollouts(sb3.PPO, PPO(), action, shifts, options, changed)
    assert state.updates == made
    assert {int(own["step"]) for own in model.policy.optimizer.state.values()} == {made}


def test_advantages():
    """Theirs add what a truncated episode's last observation is worth to its last reward."""
    steps, envs, gamma, lam = 40, 3, 0.9, 0.8
    random = np.random.default_rng(13)
    reward, value, final = random.normal(size=(3, steps, envs)).astype(np.float32)
    terminated, truncated = random.random((2, steps, envs)) < 0.1
    ended = terminated | truncated
    last = random.normal(size=envs).astype(np.float32)
    buffer = RolloutBuffer(
        steps, Nowhere.observation_space, SPACES["discrete"], "cpu", lam, gamma, envs
    )
    for t in range(steps):
        cut = truncated[t] & ~terminated[t]
        nothing = np.zeros((envs, OBS)), np.zeros((envs, 1))
        starts = ended[t - 1] if t else np.ones(envs)
        values = torch.from_numpy(value[t])
        buffer.add(*nothing, reward[t] + gamma * final[t] * cut, starts, values, values)
    buffer.compute_returns_and_advantage(torch.from_numpy(last), ended[-1])
    following = np.where(ended, final, np.concatenate((value[1:], last[None])))
    arrays = (reward, value, following, terminated, ended, np.float32(gamma), np.float32(lam))
    found = advantages(*map(torch.as_tensor, arrays))
    np.testing.assert_allclose(found, buffer.advantages, rtol=1e-5, atol=1e-5)
