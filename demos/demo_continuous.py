"""Four SAC agents learn Pendulum together, with the training loop in your own hands.

    python demos/demo_continuous.py

The loop of demo_online.py for continuous actions; agents differ in learning rates and architecture.
Takes about 70 seconds of one core; three of the four reach a mean return of about -180.
"""

import numpy as np
import numpy.typing as npt
import torch
from tqdm import trange

import evorl

SEED, ENVS, EPISODES = 1, 1, 20
LEARNING_RATES = (3e-4, 1e-3, 1e-3, 3e-3)  # of actor and critics
HIDDEN = ((64, 64), (64, 64), (128, 128), (64, 64, 64))


def main(iterations: int = 8_000, warm_up: int = 500, updates: int = 1) -> npt.NDArray[np.float64]:
    """Train for so many steps of every environment; held-out returns [agent, episode]."""
    torch.set_num_threads(1)  # networks this small lose more by waiting for each other
    agents = len(HIDDEN)
    spec = evorl.EnvSpec("Pendulum-v1", backend="sync")
    env = evorl.make_vector_env(spec, agents, ENVS)
    algorithm = evorl.SAC(learning_starts=warm_up * ENVS)  # until then actions are random
    action = env.action  # from -1 to 1 in evorl; the environment's adapter scales them
    networks = algorithm.networks(evorl.observation_spec(env.observation), action)
    genomes = [
        evorl.Genome(
            i,
            {name: evorl.Architecture(hidden) for name in ("actor", *algorithm.critics)},
            algorithm.hyperparameters | {"lr": lr, "actor_lr": lr},
        )
        for i, (hidden, lr) in enumerate(zip(HIDDEN, LEARNING_RATES, strict=True))
    ]
    population = evorl.Population(genomes, networks, algorithm, seed=SEED)

    shape, dtype = env.observation.shape, env.observation.dtype
    own = {"action_shape": action.shape, "action_dtype": action.dtype}
    windows = evorl.NStep(agents * ENVS, 1, shape, dtype, **own)
    buffer = evorl.ReplayBuffer(50_000, shape, dtype, n_step=1, num_replays=agents, **own)
    draws = [evorl.generator(SEED, "sample", i) for i in range(agents)]  # of each agent
    sampler = evorl.UniformSampler(buffer, draws, noise=algorithm.loss_noise(action))
    loader = evorl.ReplayLoader(sampler, "cpu")
    noise = evorl.NoiseStreams(algorithm, ENVS, action)
    noise.reseed([evorl.generator(SEED, "explore", i) for i in range(agents)])

    obs = env.reset(range(agents * ENVS))
    for step in trange(iterations, unit="iteration", disable=None):
        exploration = population.exploration(np.full(agents, step * ENVS))
        grid = obs.reshape(agents, ENVS, *shape)
        actions = population.act(grid, noise.draw(), exploration).reshape(-1, *action.shape)

        new = env.step(actions)
        transitions = windows.push(
            obs, actions, new.reward, new.next_obs, new.terminated, new.truncated, new.valid
        )
        sampler.inserted(buffer.add(transitions, transitions.env // ENVS))
        obs = new.obs

        if step >= warm_up:
            requests = population.requests(np.full(agents, updates))
            population.learn(loader.draw(requests), requests)
    env.close()

    episodes = evorl.make_episodes(spec, agents * EPISODES)
    seeds = evorl.held_out(SEED, EPISODES)
    returns = evorl.play(population, episodes, seeds, max_steps=200).returns
    episodes.close()
    for genome, each in zip(population.genomes, returns, strict=True):
        hidden, lr = genome.architectures["actor"].hidden, genome.hyperparameters["lr"]
        print(f"agent {genome.id}: hidden {hidden!s:14} lr {lr:.0e}  mean {each.mean():8.1f}")
    return returns


if __name__ == "__main__":
    main()
