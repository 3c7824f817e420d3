"""The same DQN update in JAX, `jit(vmap(scan))`, against evorl's compiled one, on one thread.

    pip install -e '.[jax]'
    python benchmarks/against_jax.py           # about a minute, most of it compiling
    python benchmarks/against_jax.py --json    # for machines

Both are pinned to one core and take turns. Before anything is timed, both make one round from the
same weights on the same batches, and must end with the same weights. The bar: evorl takes at most
1.1 times as long. The last line says `all bars met`, or which are not.

Legend: P agents, U updates of a round, B batch.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

if hasattr(os, "sched_setaffinity"):  # before there are any threads: they inherit it
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array
from throughput import ROUND, SMALL, Figure, population_of, random_samples
from timing import seconds_by_turn

GAMMA, LR, TAU, NORM = 0.99, 1e-3, 0.01, 10.0  # the defaults of evorl's DQN
MOST = 1.1  # times as long as JAX
CLOSE = 100.0  # between the weights of both after a round, in millionths: float32

Weights = list[tuple[Array, Array]]  # of an agent's layers: [in, out] and [out]
State = tuple[Weights, Weights, Any]  # online, target, optimiser
Batch = tuple[Array, Array, Array, Array]  # obs, action, reward, next_obs

OPTIMISER = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(LR))


def values(weights: Weights, obs: Array) -> Array:
    """Q values [B, A] of one agent."""
    *hidden, (head, head_bias) = weights
    for weight, bias in hidden:
        obs = jax.nn.relu(obs @ weight + bias)
    return obs @ head + head_bias


def loss(online: Weights, target: Weights, batch: Batch) -> tuple[Array, Array]:
    """Huber loss of double Q-learning, and the TD errors [B]."""
    obs, action, reward, next_obs = batch
    best = jnp.argmax(values(online, next_obs), 1)
    future = jnp.take_along_axis(values(target, next_obs), best[:, None], 1)[:, 0]
    goal = jax.lax.stop_gradient(reward + GAMMA * future)
    error = jnp.take_along_axis(values(online, obs), action[:, None], 1)[:, 0] - goal
    return optax.huber_loss(error).mean(), error


def update(state: State, batch: Batch) -> tuple[State, tuple[Array, Array]]:
    """One update of one agent: loss, clipping, Adam, soft target update."""
    online, target, memory = state
    found, gradient = jax.value_and_grad(loss, has_aux=True)(online, target, batch)
    change, memory = OPTIMISER.update(gradient, memory)
    online = optax.apply_updates(online, change)
    target = optax.incremental_update(online, target, TAU)
    return (online, target, memory), found


@partial(jax.jit, donate_argnums=0)
@partial(jax.vmap, in_axes=(0, 1), out_axes=(0, 1))
def learn(state: State, batches: Batch) -> tuple[State, tuple[Array, Array]]:
    """A round of all agents: state [P, ...], batches [U, P, B, ...]."""
    return jax.lax.scan(update, state, batches)


def agent_weights(parameters: dict[str, torch.Tensor]) -> list[tuple[Any, Any]]:
    """An agent's layers in their order, [in, out] and [out]; in a row the head is [out, in]."""
    flat = [tensor.numpy().copy() for tensor in parameters.values()]
    flat[-2] = flat[-2].T
    return list(zip(flat[::2], flat[1::2], strict=True))


def stacked(agents: list[Any]) -> Any:
    """One tree [P, ...] of the trees of all agents."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *agents)


class Contest:
    """The same agents and batches in both."""

    def __init__(self, size: int) -> None:
        torch.manual_seed(size)
        self.population = population_of([SMALL] * size, compiled=True)
        self.requests = self.population.requests(np.full(size, ROUND))
        self.samples = random_samples(self.requests)
        states = [self.population.state(i) for i in range(size)]
        online = stacked([agent_weights(state.online) for state in states])
        target = stacked([agent_weights(state.target) for state in states])
        self.state: State = (online, target, jax.vmap(OPTIMISER.init)(online))
        (shape,) = (request.shape for request in self.requests)  # alike, so in one matrix
        rewards = self.samples.rewards[:, 0]
        fields = (self.samples.obs, self.samples.action, rewards, self.samples.next_obs)
        self.batches: Any = tuple(
            jnp.asarray(field.reshape(*shape, *field.shape[1:]).numpy()) for field in fields
        )

    def ours(self) -> None:
        """A round of evorl."""
        self.population.learn(self.samples, self.requests)

    def theirs(self) -> None:
        """A round of JAX."""
        self.state, found = learn(self.state, self.batches)
        jax.block_until_ready((self.state, found))

    def difference(self) -> float:
        """The largest between the weights and targets of both."""
        found = 0.0
        for i in range(self.population.size):
            state = self.population.state(i)
            for mine, other in ((state.online, self.state[0]), (state.target, self.state[1])):
                own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), other)
                for a, b in zip(
                    jax.tree.leaves(agent_weights(mine)), jax.tree.leaves(own), strict=True
                ):
                    found = max(found, float(np.abs(a - b).max()))
        return found


def contest(size: int) -> list[Figure]:
    """Check that both compute the same, and measure them."""
    both = Contest(size)
    both.ours()
    both.theirs()
    apart = both.difference()
    turns = seconds_by_turn({"evorl": both.ours, "JAX": both.theirs}, calls=100, turns=15)
    best = {way: 1e6 * min(spent) / ROUND / size for way, spent in turns.items()}
    ratios = [a / b for a, b in zip(turns["evorl"], turns["JAX"], strict=True)]
    name = f"update, {size} agents"
    return [
        Figure(f"{name}: weights apart after a round, in 1e-6", 1e6 * apart, "", CLOSE, most=True),
        *(Figure(f"{name}: {way}", spent, " µs") for way, spent in best.items()),
        Figure(f"{name}: evorl, of JAX's time", statistics.median(ratios), "×", MOST, most=True),
    ]


def main() -> None:
    """Measure four and sixteen agents, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: list[Figure] = []
    sections: list[Callable[[], list[Figure]]] = [partial(contest, size) for size in (4, 16)]
    for section in sections:
        found = section()
        figures += found
        if not options.json:
            for figure in found:
                print(figure.line(), flush=True)
    missed = [figure.name for figure in figures if not figure.met]
    verdict = "all bars met" if not missed else "not met: " + "; ".join(missed)
    if options.json:
        told = [figure._asdict() | {"met": figure.met} for figure in figures]
        print(json.dumps({"figures": told, "verdict": verdict}, indent=2))
    else:
        print(verdict)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
