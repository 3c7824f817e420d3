"""Agents of Stable-Baselines3 with evorl's hyperparameters, for Optuna and Ray Tune in versus.py.

As equal as SB3 allows: network, spaces, number of environments, replay, exploration, n-step
returns, and updates per environment step. What it lacks it does without: double Q-learning and
dueling heads of DQN, learning rates of SAC's actor and temperature that are their own, clipping of
SAC's gradients. DQN moves its target network once for each step of all environments, not for each
update, so tau is raised to what so many updates would come to.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from versus_contender import Act, Job, Space

CLASSES: dict[str, type[OffPolicyAlgorithm]] = {"dqn": DQN, "sac": SAC}
SEARCHED = ("lr", "gamma", "tau", "batch_size", "learn_step")
SEARCHED_OF = {"dqn": ("max_grad_norm", "epsilon_start", "epsilon_end", "epsilon_steps"), "sac": ()}
ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "elu": torch.nn.ELU}


def spaces(job: Job) -> dict[str, Space]:
    """Those of evorl's spaces that SB3 has an argument for."""
    known = SEARCHED + SEARCHED_OF[job.values["name"]]
    return {name: space for name, space in job.spaces.items() if name in known}


def arguments(job: Job, own: Mapping[str, float]) -> dict[str, Any]:
    """SB3's arguments for evorl's options, of which a trial has `own` ones."""
    values, envs = job.values | own, job.config["env"]["num_envs"]
    # Steps of all environments until it learns, and the updates that it makes then.
    every = max(1, round(values["learn_step"] / envs))
    updates = max(1, round(every * envs * values["updates"] / values["learn_step"]))
    network = job.config["network"]
    common = {
        "learning_rate": values["lr"],
        "gamma": values["gamma"],
        "tau": values["tau"],
        "batch_size": int(values["batch_size"]),
        "buffer_size": job.config["replay"]["capacity"],
        "learning_starts": values["learning_starts"],
        "n_steps": values["n_step"],
        "train_freq": every,
        "gradient_steps": updates,
        "policy_kwargs": {
            "net_arch": list(network["hidden"]),
            "activation_fn": ACTIVATIONS[network["activation"]],
        },
    }
    if values["name"] == "sac":
        target = -values["entropy_scale"]  # for each number of an action, of which there is one
        first = f"auto_{values['initial_temperature']}"
        return common | {"ent_coef": first, "target_entropy": target}
    target = {"tau": 1 - (1 - values["tau"]) ** updates, "target_update_interval": every * envs}
    if values["target_update"] == "periodic":
        interval = values["target_period"] * values["learn_step"] / values["updates"]
        target = {"tau": 1.0, "target_update_interval": max(envs, round(interval))}
    return (
        common
        | target
        | {
            "max_grad_norm": values["max_grad_norm"] or float("inf"),
            "exploration_initial_eps": values["epsilon_start"],
            "exploration_final_eps": values["epsilon_end"],
            "exploration_fraction": min(1.0, values["epsilon_steps"] / job.steps),
        }
    )


def make(job: Job, own: Mapping[str, float], seed: int) -> OffPolicyAlgorithm:
    """A trial's agent, untrained."""
    torch.set_num_threads(1)  # of each of two processes, on two cores
    env = make_vec_env(job.env, job.config["env"]["num_envs"], seed=seed)
    kind = CLASSES[job.values["name"]]
    return kind("MlpPolicy", env, seed=seed, device="cpu", **arguments(job, own))


def greedy(model: OffPolicyAlgorithm) -> Act:
    """Its actions without exploration."""

    def act(obs: np.ndarray) -> Any:
        return model.predict(obs, deterministic=True)[0]

    return act


def load(job: Job, path: Path) -> Act:
    """An agent that was saved."""
    return greedy(CLASSES[job.values["name"]].load(path, device="cpu"))
