"""Four DQN agents learn CartPole together, with the training loop in your own hands.

    python demos/demo_online.py

No YAML and no trainer: only evorl's parts. The agents differ in learning rate and in architecture,
have a replay each, and are updated as one tensor program. Takes about a minute.
"""

import numpy as np
import numpy.typing as npt
import torch
from tqdm import trange

import evorl

SEED, ENVS, EPISODES = 1, 4, 20
LEARNING_RATES = (3e-4, 1e-3, 1e-3, 3e-3)
HIDDEN = ((64, 64), (64, 64), (128,), (64, 64, 64))


def main(iterations: int = 10_000, warm_up: int = 250, updates: int = 2) -> npt.NDArray[np.float64]:
    """Train for so many steps of every environment; held-out returns [agent, episode]."""
    torch.set_num_threads(1)  # networks this small lose more by waiting for each other
    agents = len(HIDDEN)
    spec = evorl.EnvSpec("CartPole-v1", backend="sync")
    env = evorl.make_vector_env(spec, agents, ENVS)
    algorithm = evorl.DQN(epsilon_end=0.05, epsilon_steps=10_000)
    action = env.action
    networks = algorithm.networks(evorl.observation_spec(env.observation), action)
    genomes = [
        evorl.Genome(i, {"q": evorl.Architecture(hidden)}, algorithm.hyperparameters | {"lr": lr})
        for i, (hidden, lr) in enumerate(zip(HIDDEN, LEARNING_RATES, strict=True))
    ]
    population = evorl.Population(genomes, networks, algorithm, seed=SEED)

    shape, dtype = env.observation.shape, env.observation.dtype
    windows = evorl.NStep(agents * ENVS, 1, shape, dtype)
    buffer = evorl.ReplayBuffer(50_000, shape, dtype, n_step=1, num_replays=agents)
    draws = [evorl.generator(SEED, "sample", i) for i in range(agents)]  # of each agent
    sampler = evorl.UniformSampler(buffer, draws)
    loader = evorl.ReplayLoader(sampler, "cpu")
    noise = evorl.NoiseStreams(algorithm, ENVS, action)
    noise.reseed([evorl.generator(SEED, "explore", i) for i in range(agents)])

    obs = env.reset(range(agents * ENVS))
    for step in trange(iterations, unit="iteration", disable=None):
        # act: every agent in each of its environments
        exploration = population.exploration(np.full(agents, step * ENVS))
        grid = obs.reshape(agents, ENVS, *shape)
        actions = population.act(grid, noise.draw(), exploration).reshape(-1)

        # step and store: next_obs is the true last observation where an episode ended
        new = env.step(actions)
        transitions = windows.push(
            obs, actions, new.reward, new.next_obs, new.terminated, new.truncated, new.valid
        )
        sampler.inserted(buffer.add(transitions, transitions.env // ENVS))
        obs = new.obs

        # learn: all batches of all agents and updates in one gather
        if step >= warm_up:
            requests = population.requests(np.full(agents, updates))
            learned = population.learn(loader.draw(requests), requests)
            sampler.update_priorities(learned.priorities, population.alive)
    env.close()

    episodes = evorl.make_episodes(spec, agents * EPISODES)
    seeds = evorl.held_out(SEED, EPISODES)
    returns = evorl.play(population, episodes, seeds, max_steps=500).returns
    episodes.close()
    for genome, own in zip(population.genomes, returns, strict=True):
        hidden, lr = genome.architectures["q"].hidden, genome.hyperparameters["lr"]
        print(f"agent {genome.id}: hidden {hidden!s:14} lr {lr:.0e}  mean return {own.mean():6.1f}")
    return returns


if __name__ == "__main__":
    main()
