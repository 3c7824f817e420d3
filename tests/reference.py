"""The slow, obvious way: each agent alone, as torch modules with autograd and torch.optim.Adam.

Lone agents share no code with evorl's networks, losses or optimizer: only the names of the
segments, the genomes and the order of a round's flat samples.
"""

import copy
import itertools

import numpy as np
import torch
from torch import nn

from evorl.algorithms.dqn import DQN
from evorl.envs.spaces import ActionSpec
from evorl.experience.sampling import SampleRequest
from evorl.experience.transitions import Samples
from evorl.genome import Genome
from evorl.networks.layout import network_part
from evorl.networks.module import to_module
from evorl.population.population import Population

ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU}


def hyperparameters(**changed):
    """A full set of hyperparameters, with some changed."""
    usual = {
        "lr": 1e-3,
        "gamma": 0.99,
        "tau": 0.01,
        "batch_size": 16,
        "learn_step": 1,
        "max_grad_norm": 10.0,
        "target_period": 7,
        "epsilon_start": 1.0,
        "epsilon_end": 0.05,
        "epsilon_steps": 1000,
    }
    assert set(changed) <= set(usual)
    return usual | changed


def genome(number, architecture, **changed):
    return Genome(number, {"q": architecture}, hyperparameters(**changed))


def networks_of(spec, algorithm=None):
    """What an algorithm declares for an environment like this."""
    return (algorithm or DQN()).networks(spec, ActionSpec("discrete", spec.outputs))


def population_of(genomes, spec, algorithm=None, **options):
    """A population for an environment like this, by default of DQN agents."""
    algorithm = algorithm or DQN()
    return Population(genomes, networks_of(spec, algorithm), algorithm, **options)


def module_of(population, agent):
    """The Q-network of one agent, as it is exported."""
    own = population.genomes[agent].architectures["q"]
    parameters = network_part(population.state(agent).online, "q")
    return to_module(population.specs["q"], own, parameters)


class LoneNetwork(nn.Module):
    """One agent's network: Linear, LayerNorm, activation, and gates that add to their input."""

    def __init__(self, spec, architecture, dtype=torch.float64):
        super().__init__()
        self.architecture = architecture
        sizes = (spec.inputs, *architecture.hidden)
        pairs = list(itertools.pairwise(sizes))
        self.linears = nn.ModuleList(nn.Linear(a, b, dtype=dtype) for a, b in pairs)
        self.norms = nn.ModuleList(
            nn.LayerNorm(b, dtype=dtype) if architecture.layer_norm else nn.Identity()
            for _, b in pairs
        )
        self.gates = nn.ParameterDict(
            {
                str(k): torch.zeros(1, dtype=dtype)
                for k, gated in enumerate(architecture.gated)
                if gated
            }
        )
        self.activation = ACTIVATIONS[architecture.activation]()
        self.head = nn.Linear(sizes[-1], spec.outputs + architecture.dueling, dtype=dtype)

    def forward(self, x):
        for k, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            y = self.activation(norm(linear(x)))
            x = x + self.gates[str(k)] * y if self.architecture.gated[k] else y
        out = self.head(x)
        if not self.architecture.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]
        return value + advantage - advantage.mean(1, keepdim=True)

    def segments(self):
        """Segment name → (parameter, whether the segment is its transpose)."""
        found = {}
        for k, linear in enumerate(self.linears):
            found[f"hidden{k}.weight"] = linear.weight, True
            found[f"hidden{k}.bias"] = linear.bias, False
            if self.architecture.layer_norm:
                found[f"hidden{k}.scale"] = self.norms[k].weight, False
                found[f"hidden{k}.shift"] = self.norms[k].bias, False
            if self.architecture.gated[k]:
                found[f"hidden{k}.gate"] = self.gates[str(k)], False
        found["head.weight"] = self.head.weight, False
        found["head.bias"] = self.head.bias, False
        return found

    @torch.no_grad()
    def load(self, parameters):
        segments = self.segments()
        assert set(segments) == set(parameters)
        for name, (parameter, transposed) in segments.items():
            parameter.copy_(parameters[name].T if transposed else parameters[name])

    def read(self, of=lambda parameter: parameter.detach()):
        """Something of every parameter (its value unless told), by segment name and shape."""
        return {name: of(p).T if t else of(p) for name, (p, t) in self.segments().items()}


class LoneAgent:
    """One agent trained alone, with the ordinary loop."""

    def __init__(self, spec, genome, state, *, double, loss_kind, periodic, dtype=torch.float64):
        self.hp = genome.hyperparameters
        self.double, self.loss_kind, self.periodic = double, loss_kind, periodic
        self.online = LoneNetwork(spec, genome.architectures["q"], dtype)
        self.online.load(network_part(state.online, "q"))
        self.target = copy.deepcopy(self.online)
        self.target.load(network_part(state.target, "q"))
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=self.hp["lr"])
        self.updates = 0

    def learn(self, obs, action, rewards, next_obs, bootstrap, importance):
        """One update on a batch without padding."""
        gamma = self.hp["gamma"]
        with torch.no_grad():
            future = self.target(next_obs)
            if self.double:
                best = self.online(next_obs).argmax(1, keepdim=True)
                future = future.gather(1, best).squeeze(1)
            else:
                future = future.max(1).values
            windows = zip(rewards.tolist(), bootstrap.tolist(), strict=True)
            folded = [fold_one(window, steps, gamma) for window, steps in windows]
            reward, discount = torch.tensor(folded, dtype=obs.dtype).T
            goal = reward + discount * future
        value = self.online(obs).gather(1, action[:, None]).squeeze(1)
        kind = nn.SmoothL1Loss if self.loss_kind == "huber" else nn.MSELoss
        loss = (importance * kind(reduction="none")(value, goal)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        if self.hp["max_grad_norm"] > 0:
            nn.utils.clip_grad_norm_(self.online.parameters(), self.hp["max_grad_norm"])
        self.optimizer.step()
        self.updates += 1
        self._move_target()
        return loss.item()

    @torch.no_grad()
    def _move_target(self):
        if self.periodic:
            if self.updates % self.hp["target_period"] == 0:
                self.target.load_state_dict(self.online.state_dict())
            return
        tau = self.hp["tau"]
        pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
        for slow, fast in pairs:
            slow.copy_((1 - tau) * slow + tau * fast)

    def parts(self):
        """Online and target weights and Adam's moments, as an AgentState has them."""
        moments = self.optimizer.state  # needs one update or more
        found = {
            "online": self.online.read(),
            "target": self.target.read(),
            "m": self.online.read(lambda p: moments[p]["exp_avg"]),
            "v": self.online.read(lambda p: moments[p]["exp_avg_sq"]),
        }
        return {
            part: {f"q.{name}": value for name, value in own.items()} for part, own in found.items()
        }


def fold_one(rewards, bootstrap, gamma):
    """(discounted reward, discount) of one window, by the definition."""
    reward = 0.0
    for k, r in enumerate(rewards):
        reward += gamma**k * r
    return reward, gamma**bootstrap if bootstrap > 0 else 0.0


def places(requests: list[SampleRequest]):
    """(agent, update, flat positions of its batch) for every update that a round asks for."""
    place = 0
    for request in requests:
        rounds = int(max(request.updates))
        for update in range(rounds):
            for row, agent in enumerate(request.agents):
                if update < request.updates[row]:
                    yield int(agent), update, place + np.arange(request.batch_sizes[row])
                place += request.width


def random_samples(
    requests, spec, random, *, steps=1, dtype=torch.float64, garbage=1.0, plain=False
):
    """A round of random data: everywhere, also in the padding (there `garbage` times as large).

    Importance weights are uneven unless `plain`; a fifth of the windows end in a termination, and
    some are shorter than `steps`.
    """
    count = sum(int(np.prod(request.shape)) for request in requests)
    real = np.zeros(count, dtype=bool)
    weight = np.zeros(count)
    for _, _, where in places(requests):
        real[where] = True
        importance = np.ones(len(where)) if plain else random.uniform(0.5, 1.0, len(where))
        weight[where] = importance / len(where)
    terminated = random.random(count) < 0.2
    length = random.integers(1, steps + 1, count)
    rewards = random.normal(size=(count, steps))
    rewards[np.arange(steps) >= length[:, None]] = 0
    large = np.where(real, 1.0, garbage)[:, None]

    def tensor(array):
        return torch.from_numpy(array).to(dtype)

    obs, next_obs = random.normal(size=(2, count, spec.inputs))
    # draw for all positions, so that the real ones don't depend on `garbage`
    return Samples(
        obs=tensor(obs * large),
        action=torch.from_numpy(random.integers(0, spec.outputs, count)),
        rewards=tensor(rewards * large),
        next_obs=tensor(next_obs * large),
        bootstrap=torch.from_numpy(np.where(terminated, 0, length).astype(np.uint8)),
        weight=tensor(weight),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=torch.zeros(count, 0),
    )


def learn_alone(agents, samples, requests):
    """What Population.learn does, one agent and one update after another; mean loss of each."""
    losses = {number: [] for number in range(len(agents))}
    for agent, _, where in places(requests):
        obs, action, rewards, next_obs, bootstrap, weight, *_ = (field[where] for field in samples)
        importance = weight * len(where)
        losses[agent].append(
            agents[agent].learn(obs, action, rewards, next_obs, bootstrap, importance)
        )
    return [float(np.mean(values)) if values else float("nan") for values in losses.values()]


def outside(group):
    """For each matrix of a group, what lies outside the agents' masks; all of it must be 0."""
    masks = torch.stack([group.layout.mask(g.architectures) for g in group.genomes])
    return {name: matrix[~masks] for name, matrix in group.matrices._asdict().items()}
