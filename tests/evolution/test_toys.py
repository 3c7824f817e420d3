"""Evolution without learning: two problems whose best hyperparameters are known.

A toy agent is an array of weights that a generation of training changes by a formula. Selection
and exploration are the real ones, and a child starts from a copy of its parent's weights.
"""

from functools import cache
from types import MappingProxyType

import numpy as np
import pytest
from scipy import stats

from evorl.config import ExploreConfig, resolve
from evorl.evolution.explore import Space
from evorl.evolution.pb2 import make_explore
from evorl.seeding import generator

SEEDS = 100


class Quadratic:
    """The example of Jaderberg et al. 2017: ascent on 1.2 - h0 θ0² - h1 θ1², scored without h.

    Both of an agent's h should be 1: an agent with a low one is stuck in that direction.
    """

    spaces = MappingProxyType({name: Space("linear", 0.0, 1.0) for name in ("h0", "h1")})
    population, generations, steps, rate = 4, 10, 10, 0.01

    def initial(self):
        return np.full((self.population, 2), 0.9)

    def train(self, weights, values, generation):
        h = np.array([[value["h0"], value["h1"]] for value in values])
        return weights * (1 - 2 * self.rate * h) ** self.steps

    def fitness(self, weights):
        return 1.2 - (weights**2).sum(axis=1)


class Drift:
    """The best learning rate falls by two decades; progress is at most 1 over the whole run."""

    spaces = MappingProxyType({"lr": Space("log", 1e-5, 1e-1)})
    population, generations = 5, 24  # 0.087 decades each: a factor of 0.8 can follow
    width = 0.3  # decades from the best at which progress is down to 61 %

    def initial(self):
        return np.zeros(self.population)

    def train(self, weights, values, generation):
        return weights + self.progress(np.array([value["lr"] for value in values]), generation)

    def progress(self, lr, generation):
        best = -2 - 2 * generation / (self.generations - 1)
        return np.exp(-0.5 * ((np.log10(lr) - best) / self.width) ** 2) / self.generations

    def fitness(self, weights):
        return weights

    def best_fixed(self):
        """What the best constant learning rate reaches, chosen in hindsight."""
        lr = np.logspace(-5, -1, 2001)
        return max(sum(self.progress(lr, generation) for generation in range(self.generations)))


def run(toy, seed, selection, strategy, noise=0.0):
    """The best fitness after a run; without a selection it is a random search."""
    random = generator(seed, "initial")
    values = [
        {name: space.sample(random) for name, space in toy.spaces.items()}
        for _ in range(toy.population)
    ]
    weights = toy.initial()
    if selection is None:
        for generation in range(toy.generations):
            weights = toy.train(weights, values, generation)
        return toy.fitness(weights).max()
    explore = make_explore(ExploreConfig(strategy=strategy), toy.spaces)
    select = resolve("selection", selection)()
    alive = np.ones(toy.population, dtype=bool)
    before = toy.fitness(weights)
    for generation in range(toy.generations):
        weights = toy.train(weights, values, generation)
        returns = toy.fitness(weights)[:, None]
        if noise:  # of each of five episodes
            random = generator(seed, "noise", generation)
            returns = returns + noise * random.normal(size=(toy.population, 5))
        after = returns.mean(axis=1)
        explore.observe(generation, values, before, after)
        parents = select(returns[None], alive, generator(seed, "selection", generation))
        values = [
            values[parent]
            if parent == place
            else explore.propose(
                values[parent],
                after[parent],
                generation + 1,
                generator(seed, "mutation", generation, place),
            )
            for place, parent in enumerate(parents)
        ]
        weights, before = weights[parents], after[parents]
    return toy.fitness(weights).max()


@cache
def results(toy, selection, strategy, noise=0.0):
    """The final best of every seed."""
    return np.array([run(toy(), seed, selection, strategy, noise) for seed in range(SEEDS)])


def interval(differences):
    """The 95 % bootstrap interval of their mean."""
    found = stats.bootstrap(
        (differences,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return found.low, found.high


toys = pytest.mark.parametrize("toy", [Quadratic, Drift])
selections = pytest.mark.parametrize("selection", ["truncation", "tournament"])


@toys
@selections
@pytest.mark.parametrize("strategy", ["perturb", "resample"])
def test_evolution_beats_random_search_at_equal_steps(toy, selection, strategy):
    lead = results(toy, selection, strategy) - results(toy, None, None)
    assert interval(lead)[0] > 0, interval(lead)


@toys
@selections
def test_evolution_also_beats_it_where_fitness_is_noisy(toy, selection):
    """For Drift an episode's noise is two generations' progress; what counts is true fitness."""
    lead = results(toy, selection, "resample", 0.1) - results(toy, None, None)
    assert interval(lead)[0] > 0, interval(lead)


@selections
@pytest.mark.parametrize("strategy", ["perturb", "resample"])
def test_evolution_beats_the_best_fixed_learning_rate(selection, strategy):
    lead = results(Drift, selection, strategy) - Drift().best_fixed()
    assert interval(lead)[0] > 0, interval(lead)


@pytest.mark.slow
@toys
def test_pb2_is_no_worse_than_perturb(toy):
    lead = results(toy, "truncation", "pb2") - results(toy, "truncation", "perturb")
    assert interval(lead)[0] > 0, interval(lead)
    assert interval(results(toy, "truncation", "pb2") - results(toy, None, None))[0] > 0
