"""Collect, train and evaluate as stages of a Task: four DQN agents learn CartPole in a minute.
An iteration is 25 steps of every environment and 50 updates of every agent.

    python demos/demo_task.py serial      # one after another: training waits for the evaluation
    python demos/demo_task.py async       # the evaluation in a thread, on a snapshot of the weights
    python demos/demo_task.py parallel    # the evaluation in a process of its own
"""

import sys

import numpy as np
import torch

import evorl

SEED, AGENTS, ENVS, STEPS, UPDATES, SOLVED = 1, 4, 4, 25, 50, 475.0
RATES, SPEC = (3e-4, 1e-3, 1e-3, 3e-3), evorl.EnvSpec("CartPole-v1", backend="sync")


def main(mode: str, iterations: int = 500) -> None:
    """Train until an evaluation finds an agent that is good enough."""
    torch.set_num_threads(1)  # networks this small lose more by waiting for each other
    env, episodes = evorl.make_vector_env(SPEC, AGENTS, ENVS), evorl.make_episodes(SPEC, 20)
    shape, dtype = env.observation.shape, env.observation.dtype
    dqn = evorl.DQN(epsilon_end=0.05, epsilon_steps=10_000)
    networks = dqn.networks(evorl.observation_spec(env.observation), env.action)
    hps = [dqn.hyperparameters | {"lr": lr} for lr in RATES]
    genomes = [evorl.Genome(i, {"q": evorl.Architecture((64, 64))}, hp) for i, hp in enumerate(hps)]
    training, evaluated = (evorl.Population(genomes, networks, dqn, seed=SEED) for _ in "12")
    windows = evorl.NStep(AGENTS * ENVS, 1, shape, dtype)
    buffer = evorl.ReplayBuffer(50_000, shape, dtype, n_step=1, num_replays=AGENTS)
    draws = [evorl.generator(SEED, "sample", i) for i in range(AGENTS)]
    sampler = evorl.UniformSampler(buffer, draws)
    loader, noise = evorl.ReplayLoader(sampler, "cpu"), evorl.NoiseStreams(dqn, ENVS, env.action)
    noise.reseed([evorl.generator(SEED, "explore", i) for i in range(AGENTS)])
    obs, seen = env.reset(range(AGENTS * ENVS)), -1

    def collect(ctx: evorl.Context) -> None:
        nonlocal obs
        epsilon = training.exploration(np.full(AGENTS, ctx.iteration * STEPS * ENVS))
        for _ in range(STEPS):
            actions = training.act(obs.reshape(AGENTS, ENVS, *shape), noise.draw(), epsilon).ravel()
            new = env.step(actions)
            ends = (new.terminated, new.truncated, new.valid)
            stored = windows.push(obs, actions, new.reward, new.next_obs, *ends)
            sampler.inserted(buffer.add(stored, stored.env // ENVS))
            obs = new.obs

    def train(ctx: evorl.Context) -> None:
        requests = training.requests(np.full(AGENTS, UPDATES))
        training.learn(loader.draw(requests), requests)
        ctx.weights, ctx.train_iter = [g.theta.clone() for g in training.groups], ctx.iteration
        ctx.keep("weights", "train_iter")
        ctx.share("weights", "train_iter")  # with the process that evaluates, if there is one

    def evaluate(ctx: evorl.Context) -> None:
        nonlocal seen
        if task.router.is_active:
            if not task.wait(lambda: task.parallel_ctx.get("train_iter", -1) > seen):
                return
            ctx.weights, ctx.train_iter = task.parallel_ctx.weights, task.parallel_ctx.train_iter
        seen = ctx.train_iter
        for group, theta in zip(evaluated.groups, ctx.weights, strict=True):
            group.theta.copy_(theta)
        returns = evorl.play(evaluated, episodes, evorl.held_out(SEED, 10), 500).returns.mean(1)
        print(f"weights of iteration {seen}: mean returns {returns.round()}", flush=True)
        ctx.finish = returns.max() >= SOLVED

    with evorl.Task(async_mode=mode == "async") as task:
        task.use_step_wrapper(evorl.StepTimer(print_per_step=100))
        every = 1 if task.router.is_active else 20  # on its own it evaluates all the time
        task.use(evaluate, every, ["standalone", "node.1"], background=mode == "async")
        task.use(task.serial(collect, train), filter_labels=["standalone", "node.0"])
        task.run(max_step=iterations)


if __name__ == "__main__":
    workers = {"serial": 1, "async": 1, "parallel": 2}.get(sys.argv[-1]) or sys.exit(__doc__)
    evorl.Parallel.runner(n_parallel_workers=workers, topology="star")(main, sys.argv[-1])
