"""The whole training loop on LunarLander-v3, and beside it each of its parts alone."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evorl import EnvSpec, TrainingContext, make_vector_env, parse_config
from evorl.distributed import World
from evorl.envs import Step, VectorEnv
from evorl.pipeline import Collect, Learn
from evorl.training.agents import make_genomes, make_networks, make_population
from evorl.training.build import make_experience

ENVS = 8  # environments an agent; one update per environment step


class Followed:
    """Environments with a twin that takes the same actions later."""

    def __init__(self, env: VectorEnv, twin: VectorEnv) -> None:
        self.env, self.twin = env, twin
        self.actions: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seeds: Sequence[int]) -> Any:
        """Both start alike."""
        self.twin.reset(seeds)
        return self.env.reset(seeds)

    def step(self, actions: Any) -> Step:
        """Step the one, and note it for the other."""
        self.actions.append(actions)
        return self.env.step(actions)

    def follow(self) -> Step:
        """The twin's next step."""
        return self.twin.step(self.actions.pop(0))


class LanderLoop:
    """The stages collect and learn, as the trainer runs them."""

    def __init__(self, size: int, batch: int) -> None:
        config = parse_config(
            {
                "env": {"id": "LunarLander-v3", "num_envs": ENVS, "backend": "sync"},
                "algorithm": {"batch_size": batch, "learn_step": 1, "learning_starts": 0},
                "network": {"hidden": [32, 32]},
                "population": {"size": size},
                "compile": False,
            }
        )
        spec = EnvSpec(config.env.id, "sync")
        self.env = Followed(*(make_vector_env(spec, size, ENVS) for _ in range(2)))
        networks = make_networks(config, self.env.observation, self.env.action)
        world = World.start(size)
        self.population = make_population(config, world, networks, make_genomes(config, networks))
        self.sampler = make_experience(config, world, self.env)
        self.buffer = self.sampler.buffer
        parts = (self.population, self.env, self.buffer, self.sampler)
        self.collect = Collect(world, *parts, n_step=1, seed=1)
        self.learn = Learn(world, self.population, self.buffer, self.sampler)
        self.context = TrainingContext(size)
        for _ in range(150):
            self.round()
            self.latest = self.env.follow()
        self.context.timer.seconds.clear()

    def round(self) -> None:
        """What the trainer does in an iteration."""
        self.collect(self.context)
        self.learn(self.context)

    def load(self) -> None:
        """A round's batches through the prepared DataLoader."""
        self.learn.loader.draw(self.requests())

    def requests(self) -> Any:
        """One update for each environment step of a round."""
        return self.population.requests(np.full(self.population.size, ENVS))

    def parts(self) -> dict[str, Callable[[], object]]:
        """Each part of a round by itself: no stages, no timers, no loader."""
        new, requests = self.latest, self.requests()
        grid = new.obs.reshape(self.population.size, ENVS, -1)
        noise, exploration = self.collect.noise.draw(), self.context.exploration
        actions = self.population.act(grid, noise, exploration).reshape(-1)
        batches = [self.sampler.sample(requests) for _ in range(16)]

        def store() -> None:
            windows = self.collect.windows.push(
                new.obs, actions, new.reward, new.next_obs, new.terminated, new.truncated
            )
            self.sampler.inserted(self.buffer.add(windows))

        def update() -> None:
            batches.append(batches.pop(0))  # another one each time, as in the loop
            self.population.learn(batches[0], requests)

        return {
            "act": lambda: self.population.act(grid, noise, exploration),
            "step": self.env.follow,
            "store": store,
            "sample": lambda: self.sampler.sample(requests),
            "update": update,
        }

    def close(self) -> None:
        """Close both environments."""
        self.env.twin.close()
        self.env.env.close()
