"""A tiny world whose best actions and values are known, learned by every algorithm's real stages.

Its parts are apart from each other, and an episode begins in one of them by chance: one training
run shows them all. The observation after an end is that of a state with a value of its own:
bootstrapping in the wrong place shows.
"""

from contextlib import ExitStack
from functools import cache
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.config import parse_config
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.task import Task
from evorl.pipeline.training_context import TrainingContext
from evorl.training.build import Parts, env_spec, make_learning
from tests.pipeline.snapshots import alone

torch.set_num_threads(1)

GAMMAS = (0.8, 0.5)  # one agent each
WRONG = 0.5  # what a wrong choice costs
FORBIDDEN = 5.0  # what a choice pays that the mask does not allow
VALUE, ACTION = 0.06, 0.1  # how far off what was learned may be
SMOOTHED = 0.039  # mean square of TD3's noise on target actions: 0.2 wide, clipped to 0.5
# SAC's, at which an entropy of -1 is best where values fall by the square of the distance: spread²
# is half the temperature, and the entropy is half the logarithm of 2 pi e spread²
TEMPERATURE = float(np.exp(-2) / (np.pi * np.e))


class State(NamedTuple):
    """What the best action pays here, and what follows whatever is done."""

    reward: float
    best: float  # of a box, from -1 to 1
    choice: int  # of three
    then: int = 0
    end: str = ""  # terminated, truncated, or neither


WORLD = [
    # one step
    State(1.0, 0.5, 0, 0, "terminated"),
    # two steps
    State(0.0, -0.5, 1, 2),
    State(2.0, 0.25, 2, 1, "terminated"),
    # what is best depends on the observation
    State(0.5, 0.6, 0, 4, "terminated"),
    State(-1.0, -0.6, 1, 5, "terminated"),
    State(1.5, 0.0, 2, 3, "terminated"),
    # round and round, if it were not cut off
    State(1.0, 0.4, 1, 7),
    State(0.5, -0.4, 2, 6, "truncated"),
    # the same with an end
    State(1.0, 0.4, 1, 9),
    State(0.5, -0.4, 2, 8, "terminated"),
    # a price now for a gain later: see BUY and SELL
    State(0.0, 0.0, 0, 11),
    State(0.0, 0.3, 2, 10, "terminated"),
]
PARTS = {
    "one step": [0],
    "two steps": [1, 2],
    "by observation": [3, 4, 5],
    "truncated": [6, 7],
    "terminated": [8, 9],
    "price and gain": [10, 11],
}
STATES = range(len(WORLD))
BUY, SELL = PARTS["price and gain"]
GAIN = 1.8  # for who does not take 1 at once; a box is paid twice the number that it chose


class World(gymnasium.Env):
    """Observations are one-hot, with the number behind that was carried over from BUY to SELL."""

    forbidden = 0  # choices that were taken all the same, in this process

    def __init__(self, actions="box", masked=False):
        self.actions, self.masked = actions, masked
        self.observation_space = spaces.Box(-1, 1, (len(WORLD) + 1,), np.float32)
        self.action_space = {
            "box": spaces.Box(-1, 3, (1,), np.float32),  # neither around 0 nor of length 2
            "choice": spaces.Discrete(3, start=7),
            "choices": spaces.MultiDiscrete([3, 2]),
        }[actions]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.carried = 0.0
        self.state = int(self.np_random.choice([part[0] for part in PARTS.values()] + [4, 5]))
        return self.seen()

    def seen(self):
        info = {"action_mask": action_mask(self.state, self.actions)} if self.masked else {}
        return observation(self.state, self.carried), info

    def step(self, action):
        assert self.action_space.contains(action), action
        now = WORLD[self.state]
        reward, end = now.reward, now.end
        if self.actions == "box":
            number = (float(action[0]) - 1) / 2
            if self.state == BUY:
                reward, self.carried = -(number**2), number
            else:
                reward += 2 * self.carried if self.state == SELL else 0
                reward -= (number - now.best) ** 2
        else:
            own = np.atleast_1d(action) - (7 if self.actions == "choice" else 0)
            if self.state == BUY and own[0] != now.choice:
                reward, end = 1.0, "terminated"  # at once
            elif self.state != BUY:
                right = np.array([now.choice, now.choice % 2])[: len(own)]
                reward -= WRONG * (own != right).sum()
                reward += GAIN if self.state == SELL else 0
            if own[0] == forbidden(self.state):
                World.forbidden += 1
                reward += FORBIDDEN
        self.state = now.then
        obs, info = self.seen()
        return obs, reward, end == "terminated", end == "truncated", info


gymnasium.register("KnownWorld-v0", World)


def forbidden(state):
    """The choice that pays most of all, and that the mask never allows."""
    return (WORLD[state].choice + 1) % 3


def action_mask(state, actions):
    """Everything else; the second of several choices is free."""
    free = [True, True] if actions == "choices" else []
    return np.array([*(np.arange(3) != forbidden(state)), *free])


def observation(state, carried=0.0):
    obs = np.zeros(len(WORLD) + 1, np.float32)
    obs[state], obs[-1] = 1, carried
    return obs


def known_values(gamma, actions, later=0.0):
    """Of the best actions, by state; `later` is lost in all steps of an episode but the first."""
    values = np.array([state.reward for state in WORLD])
    values[SELL] = 2 * gamma if actions == "box" else GAIN
    for part in ("two steps", "terminated"):
        first, second = PARTS[part]
        values[first] += gamma * (values[second] - later)
    ring = PARTS["truncated"]
    one, two = values[ring]
    rounds = 1 - gamma**2
    values[ring] = (one + gamma * two) / rounds, (two + gamma * one) / rounds
    values[ring] -= later * gamma / (1 - gamma)
    if actions == "box":
        values[BUY] = gamma**2 - gamma * later  # -x² + gamma 2x is highest where x = gamma
    else:
        values[BUY] = max(1.0, gamma * (GAIN - later))
    return values


def best_numbers(gamma):
    """Of a box."""
    return np.array([gamma if s == BUY else state.best for s, state in enumerate(WORLD)])


def best_choices(gamma, parts=1):
    """Of discrete actions, [states, parts]; -1 where any but one is as good."""
    first = np.array([state.choice for state in WORLD])
    second = first % 2
    second[BUY] = -1
    if gamma * GAIN < 1:
        first[BUY] = -1
    return np.stack([first, second], 1)[:, :parts]


OFF = {"lr": 1e-2, "tau": 0.1, "batch_size": 64, "learn_step": 8, "learning_starts": 800}
ACTOR = OFF | {"actor_lr": 3e-3, "max_grad_norm": 0.0, "batch_size": 128}
ON = {"lr": 1e-2, "max_grad_norm": 1.0, "entropy_coef": 0.01, "normalize_advantage": False}
DECAYING = ("lr", "actor_lr", "temperature_lr")
SETUPS = {
    "ddpg": ACTOR | {"action_noise": 0.5},
    "td3": ACTOR | {"action_noise": 0.5},
    "sac": ACTOR | {"initial_temperature": 0.1, "temperature_lr": 1e-2},
    "a2c": ON | {"rollout_steps": 4, "initial_log_std": -1.5},
    "ppo": ON | {"rollout_steps": 16, "initial_log_std": -1.5},
    "impala": ON | {"rollout_steps": 4, "initial_log_std": -1.5, "replay_unrolls": 16},
    "dqn": OFF | {"tau": 0.2, "learning_starts": 0, "epsilon_end": 1.0},
}


def configured(name, actions, masked, iterations):
    return parse_config(
        {
            "compile": False,
            "env": {
                "id": "KnownWorld-v0",
                "backend": "sync",
                "num_envs": 8,
                "kwargs": {"actions": actions, "masked": masked},
            },
            "algorithm": {"name": name, **SETUPS[name]},
            "network": {"hidden": [64], "activation": "tanh"},
            "replay": {"capacity": 20_000},
            "population": {"size": 2, "agents": [{"gamma": gamma} for gamma in GAMMAS]},
            "budget": {"env_steps": 2 * 8 * iterations},
        }
    )


def learned(name, actions, masked, iterations=1500, spoiled=lambda step: step):
    """A population that has learned, in generations that end in the middle of rollouts.

    What the environments give may be spoiled.
    """
    config = configured(name, actions, masked, iterations)
    with ExitStack() as stack:
        parts = Parts(config, alone(), env_spec(config), stack)
        collect, learn = make_learning(config, alone(), parts)
        step, population = parts.env.step, parts.population
        parts.env.step = lambda actions: spoiled(step(actions))

        def decay(context):
            """Learning rates fall to 0: Adam keeps oscillating at fixed ones."""
            rest = 1 - context.iteration / iterations
            for group in population.groups:
                for own in set(DECAYING) & group.hp.keys():
                    group.hp[own][:] = rest * config.algorithm.hyperparameters[own]

        def cut(context):
            collect.end_generation()
            context.generation += 1
            context.ends = min(context.ends + 101, iterations)
            context.finished = context.iteration + 1 == iterations

        context = TrainingContext(2)
        context.ends = 101
        task = Task(context).use(decay).use(collect).use(learn)
        task.use(cut, every=generation_ends).run()
    assert population.alive.all()
    return population


class Shown(NamedTuple):
    """What a population has learned, agent by agent."""

    name: str
    actions: str
    population: object
    values: np.ndarray  # [agents, states] of the best actions
    greedy: np.ndarray  # [agents, states, ...]

    def known(self, agent):
        """The values that this algorithm is to find."""
        lost = self.later(agent)
        now = lost if "log_std" in self.population.specs else 0  # values of what is done, or of Q
        return known_values(GAMMAS[agent], self.actions, lost) - now

    def later(self, agent):
        """What a step loses on average, as actions are not quite the best."""
        if "log_std" in self.population.specs:  # the square of the spread
            log_std = self.population.groups[0].online.parameter("log_std")[agent]
            return float((2 * log_std).exp())
        return {"td3": SMOOTHED, "sac": TEMPERATURE / 2 + TEMPERATURE}.get(self.name, 0.0)

    def seen(self, agent, part):
        """The states of a part; on its own policy an agent that takes what it gets never sells."""
        states = PARTS[part]
        stays = self.actions != "box" and GAMMAS[agent] * GAIN < 1 and self.name != "dqn"
        return states[:1] if part == "price and gain" and stays else states


def shown(name, actions, masked, population):
    """Values and best actions of all states."""
    carried = np.array(GAMMAS) * (actions == "box")  # to SELL, by the best
    obs = np.stack([[observation(s, own * (s == SELL)) for s in STATES] for own in carried])
    if masked:
        masks = np.stack([action_mask(state, actions) for state in STATES])
        obs = np.concatenate([obs, np.stack([masks] * 2)], 2, dtype=np.float32)
    greedy = population.greedy(obs)
    (group,), where, what = population.groups, torch.from_numpy(obs), torch.from_numpy(greedy)
    with torch.no_grad():
        if "critic" in population.specs:
            values = group.online["critic"](where, what).squeeze(2)
        elif "q" in population.specs:
            values = group.online["q"](where).gather(2, what.unsqueeze(2)).squeeze(2)
        else:
            values = population.value(where)
    return Shown(name, actions, population, values.numpy(), greedy)


RUNS = [(name, "box") for name in ("ddpg", "td3", "sac", "a2c", "ppo", "impala")]
RUNS += [(name, "choice") for name in ("dqn", "a2c", "ppo", "impala")]
RUNS += [(name, "choices") for name in ("a2c", "ppo", "impala")]


@cache
def trained(name, actions):
    """What is learned, with a mask wherever there are choices."""
    masked, World.forbidden = actions != "box", 0
    found = shown(name, actions, masked, learned(name, actions, masked))
    assert World.forbidden == 0  # at no time
    return found


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_values(run, part):
    found = trained(*run)
    for agent in range(2):
        states = found.seen(agent, part)
        error = found.values[agent, states] - found.known(agent)[states]
        assert np.abs(error).max() < VALUE, error


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_best_actions(run, part):
    found = trained(*run)
    for agent, gamma in enumerate(GAMMAS):
        states = found.seen(agent, part)
        own = found.greedy[agent, states].reshape(len(states), -1)
        if found.actions == "box":
            assert np.abs(own[:, 0] - best_numbers(gamma)[states]).max() < ACTION, own
            continue
        best = best_choices(gamma, own.shape[1])[states]
        assert ((own == best) | (best == -1)).all(), own
        assert (own[:, 0] != [forbidden(state) for state in states]).all()


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_a_truncation_bootstraps_and_a_termination_does_not(run):
    """The same rewards with both, by what was learned alone; and two steps, discounted."""
    found = trained(*run)
    lost = max(found.later(agent) for agent in range(2))
    for agent, gamma in enumerate(GAMMAS):
        values = found.values[agent]
        first, second = PARTS["two steps"]
        assert values[first] == pytest.approx(gamma * values[second], abs=VALUE + lost)
        (cut, cut_last), (_, last) = PARTS["truncated"], PARTS["terminated"]
        follows = values[cut_last] - values[last]
        assert follows == pytest.approx(gamma * values[cut], abs=VALUE + lost)
        assert follows > 0.5


def test_the_temperature_of_sac():
    found = trained("sac", "box").population.groups[0].online.parameter("log_temperature").exp()
    assert ((found / TEMPERATURE).log().abs() < np.log(1.5)).all(), found


# These tests can fail: each fault is put in on purpose, and must be seen.


def truncation_ends(step):
    return step._replace(terminated=step.terminated | step.truncated)


def termination_goes_on(step):
    over = step.terminated | step.truncated
    return step._replace(terminated=np.zeros_like(over), truncated=over)


def next_episode_follows(step):
    return step._replace(next_obs=step.obs)


FAULTS = {
    "truncation ends": (truncation_ends, "truncated"),
    "termination goes on": (termination_goes_on, "terminated"),
    "the next episode follows": (next_episode_follows, "truncated"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("name", "actions"), [("ddpg", "box"), ("a2c", "choice"), ("impala", "choice")]
)
def test_a_fault_would_be_seen(fault, name, actions):
    spoiled, part = FAULTS[fault]

    masked = actions != "box"
    found = shown(name, actions, masked, learned(name, actions, masked, 600, spoiled))
    error = (found.values[0] - found.known(0))[PARTS[part]]
    assert np.abs(error).max() > 3 * VALUE, error


@pytest.mark.parametrize(("name", "actions"), [("dqn", "choice"), ("ppo", "choices")])
def test_without_a_mask_they_take_what_pays_most(name, actions):
    World.forbidden = 0
    found = shown(name, actions, False, learned(name, actions, False, 400))
    assert World.forbidden > 100
    chosen = found.greedy.reshape(2, len(WORLD), -1)[:, :10, 0]
    assert (chosen == [forbidden(state) for state in range(10)]).all()
