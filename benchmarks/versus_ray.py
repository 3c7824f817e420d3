"""Ray Tune as a contender of versus.py: population based training of Stable-Baselines3's agents.

As many trials as evorl has agents, drawn from its spaces, take turns on two CPUs in generations of
its length. A trial is put aside with its replay, and whoever copies it copies that, too. Ray's
defaults do the rest: the worst quarter copies the best, and moves each value by a fifth or draws
it again. Moved values are clipped to evorl's spaces, which Ray would leave. What is returned is the
agent of the best evaluation of all.
"""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from stable_baselines3.common.callbacks import BaseCallback
from versus_contender import Job, Log, Space, evaluate, main
from versus_sb3 import arguments, greedy, load, make, spaces

CPUS = 2
KEPT = 4  # checkpoints of a trial; another one may still have to copy an earlier one


class Generation(BaseCallback):
    """Ends training after so many steps of an agent, or when time is up."""

    def __init__(self, job: Job, end: int) -> None:
        super().__init__()
        self.job, self.end = job, end

    def _on_step(self) -> bool:
        return self.num_timesteps < self.end and self.job.left > 0


class Trial(tune.Trainable):
    """An agent; its process goes from trial to trial, and gets their agents by checkpoints."""

    def setup(self, config: dict[str, Any]) -> None:
        """An untrained agent."""
        self.job: Job = config["job"]
        number = int(self.trial_id.split("_")[-1])
        random.seed(1000 * self.job.seed + number)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """As setup, in a process that had another trial."""
        self.log = Log(self.job, self.trial_id)
        found = spaces(self.job)
        self.own = {name: space.value(new_config[name]) for name, space in found.items()}
        self.model = make(self.job, self.own, seed=random.randrange(2**30))
        return True

    def step(self) -> dict[str, Any]:
        """One generation, and its evaluation."""
        before, config = self.model.num_timesteps, self.job.config
        steps = config["evaluation"]["every"] * config["env"]["num_envs"]
        # of the whole trial, over which SB3 lowers epsilon
        left = max(steps, self.job.steps - before)
        generation = Generation(self.job, before + steps)
        self.model.learn(left, generation, reset_num_timesteps=False)
        if self.job.left < 0:
            return {"score": self.log.best, "done": True}
        score = evaluate(greedy(self.model), self.job)
        steps = self.log.latest["env_steps"] + self.model.num_timesteps - before
        self.log.better(score, steps, 1, self.model.save)
        return {"score": score}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """The agent and its replay."""
        self.model.save(Path(checkpoint_dir, "agent"))
        self.model.save_replay_buffer(Path(checkpoint_dir, "replay"))

    def load_checkpoint(self, checkpoint: str) -> None:
        """An agent and its replay, but with hyperparameters and random numbers of its own."""
        own = arguments(self.job, self.own)
        del own["policy_kwargs"]  # as saved
        seed, env = random.randrange(2**30), self.model.get_env()
        path = Path(checkpoint, "agent")
        self.model = type(self.model).load(path, env=env, device="cpu", seed=seed, **own)
        self.model.load_replay_buffer(Path(checkpoint, "replay"))


def domain(space: Space) -> Any:
    """A space of evorl's for Ray; it moves to neighbours in a list."""
    low, high = space.bounds
    if space.whole:
        return list(range(round(low), round(high) + 1))
    return tune.loguniform(low, high) if space.log else tune.uniform(low, high)


def train(job: Job) -> None:
    """All trials, until time is up."""
    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}  # as only the log counts
    np.random.seed(job.seed)
    found = spaces(job)

    def clip(config: dict[str, Any]) -> dict[str, Any]:
        bounds = {name: space.bounds for name, space in found.items()}
        own = {name: min(max(config[name], low), high) for name, (low, high) in bounds.items()}
        return config | own

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={name: domain(space) for name, space in found.items()},
        custom_explore_fn=clip,
    )
    ray.init(num_cpus=CPUS, include_dashboard=False)
    tuner = tune.Tuner(
        tune.with_resources(Trial, {"cpu": 1}),
        param_space={"job": job},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=job.config["population"]["size"],
            scheduler=scheduler,
            reuse_actors=True,
            time_budget_s=job.left,
        ),
        run_config=tune.RunConfig(
            storage_path=str(job.folder / "ray"),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=KEPT),
            verbose=0,
        ),
    )
    tuner.fit()


if __name__ == "__main__":
    main(train, load)
