"""Evolution without learning: two problems whose best hyperparameters are known.

A toy agent is an array of weights that a generation of training changes by a formula. Selection
and exploration are the real ones, and a child starts from a copy of its parent's weights.
"""

import math

import numpy as np
import pytest
from scipy import stats

from evorl.config import ExploreConfig, SelectionConfig
from evorl.evolution.explore import make_explore
from evorl.evolution.selection import Selection
from evorl.evolution.spaces import Space
from evorl.seeding import generator

SEEDS = 40


class Quadratic:
    """The example of Jaderberg et al. 2017: ascent on 1.2 - h0 θ0² - h1 θ1² is measured without h.

    Both of an agent's h must be high; the best is 1 and 1.
    """

    spaces = {name: Space("linear", 0.0, 1.0) for name in ("h0", "h1")}
    population, generations, steps, rate = 4, 10, 10, 0.01

    def initial(self, size):
        return np.full((size, 2), 0.9)

    def train(self, weights, values, generation):
        h = np.array([[value["h0"], value["h1"]] for value in values])
        return weights * (1 - 2 * self.rate * h) ** self.steps

    def fitness(self, weights):
        return 1.2 - (weights**2).sum(axis=1)


class Drift:
    """The best learning rate falls by two decades, and a step's progress with the distance to it."""

    spaces = {"lr": Space("log", 1e-5, 1e-1)}
    population, generations = 8, 25
    width = 0.3  # decades within which a learning rate works

    def initial(self, size):
        return np.zeros(size)

    def train(self, weights, values, generation):
        lr = np.array([value["lr"] for value in values])
        return weights + self.progress(lr, generation)

    def progress(self, lr, generation):
        best = -2 - 2 * generation / (self.generations - 1)
        return np.exp(-0.5 * ((np.log10(lr) - best) / self.width) ** 2) / self.generations

    def fitness(self, weights):
        return weights

    def best_fixed(self):
        """What the best constant learning rate reaches, chosen in hindsight."""
        lr = np.logspace(-5, -1, 2001)
        return max(sum(self.progress(lr, generation) for generation in range(self.generations)))


def run(toy, seed, selection=None, strategy="perturb", noise=0.0):
    """The best fitness after a run; without a selection it is a random search."""
    random = generator(seed, "initial")
    values = [
        {name: space.sample(random) for name, space in toy.spaces.items()}
        for _ in range(toy.population)
    ]
    weights = toy.initial(toy.population)
    explore = make_explore(ExploreConfig(strategy=strategy), toy.spaces)
    select = Selection(SelectionConfig(kind=selection or "truncation"))
    alive = np.ones(toy.population, dtype=bool)
    before = toy.fitness(weights)
    for generation in range(toy.generations):
        weights = toy.train(weights, values, generation)
        if selection is None:
            continue
        after = toy.fitness(weights)
        if noise:
            after = after + noise * generator(seed, "noise", generation).normal(size=len(after))
        explore.observe(generation, values, before, after)
        random = generator(seed, "selection", generation)
        parents = select(after[None, :, None], alive, random)
        children = np.flatnonzero(parents != np.arange(len(parents)))
        old = values
        values = list(values)
        for place in children:
            random = generator(seed, "mutation", generation, int(place))
            parent = parents[place]
            values[place] = explore.propose(
                old[parent], float(after[parent]), generation + 1, random
            )
        weights, before = weights[parents], after[parents]
    return float(toy.fitness(weights).max())
