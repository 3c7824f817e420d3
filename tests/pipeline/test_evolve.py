"""Selection and mutation on a live population: who follows whom, and what follows the weights."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import ExploreConfig, MutationConfig
from evorl.evolution.explore import Space
from evorl.evolution.mutation import Mutation
from evorl.evolution.pb2 import make_explore
from evorl.evolution.selection import MEAN, Truncation
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline.champion import KeptAgent
from evorl.pipeline.evolve import Evolve
from tests.pipeline.snapshots import context_of
from tests.reference import population_of

torch.set_num_threads(1)

AGENTS = 6
SPACES = {"lr": Space("log", 1e-5, 1e-1), "batch_size": Space("power_of_two", 8, 64, whole=True)}


def make_evolve(mutation=None, **selection):
    """The stage, and the main rank's context."""
    shapes = [Architecture((8 + 8 * i,)) for i in range(AGENTS)]
    genomes = [
        Genome(i, {"q": shape}, DQN(lr=1e-3 * (i + 1), batch_size=16).hyperparameters)
        for i, shape in enumerate(shapes)
    ]
    population = population_of(genomes, NetworkSpec(4, 2), seed=3)
    explore = make_explore(ExploreConfig(), SPACES)
    evolve = Evolve(
        Truncation(**selection),
        Mutation(mutation or MutationConfig(), population.specs, explore, DQN()),
        SimpleNamespace(agent=None, score=-np.inf, fitness=MEAN),  # nobody was ever seen
        genomes,
        seed=9,
    )
    return evolve, context_of(population)


def seen(evolve, champion, score):
    """The best agent ever seen, and its score on two further episodes."""
    stage = evolve.champion
    stage.agent, stage.score, stage.played = champion, score, np.full(2, score)


def evaluated(context, *fitness, generation=0):
    noise = np.random.default_rng(0).normal(size=(1, 5))
    snapshot = context.snapshot
    snapshot.generation, snapshot.births, snapshot.evolved = generation + 1, [], False
    snapshot.parents = np.arange(AGENTS)
    snapshot.fitness = np.array(fitness, float)
    snapshot.returns = snapshot.fitness[:, None] + noise - noise.mean()
    snapshot.agent_steps = np.arange(AGENTS) * 100


def same_state(left, right):
    return left.updates == right.updates and all(
        torch.equal(mine[name], yours[name])
        for mine, yours in zip(left[:4], right[:4], strict=True)
        for name in mine
    )


def test_the_worst_are_replaced_by_children_of_the_best():
    evolve, context = make_evolve(fraction=0.34)
    population = context.snapshot
    old, states = list(population.genomes), list(population.states)
    evaluated(context, 3, 9, 1, 8, 0, 5, generation=4)
    evolve(context)
    for place in (0, 1, 3, 5):  # the survivors: not a bit of them moves
        assert population.genomes[place] is old[place]
        assert same_state(population.states[place], states[place])
    for place, id in ((2, 6), (4, 7)):
        child = population.genomes[place]
        assert (child.id, child.born) == (id, 5)
        assert child.parent in (1, 3)
        assert population.agent_steps[place] == 100 * child.parent
    assert population.evolved
    assert [line["genome"]["id"] for line in population.births] == [6, 7]
    assert [line["place"] for line in population.births] == [2, 4]
    assert Genome.from_json(population.births[0]["genome"]) == population.genomes[2]
    evaluated(context, 0, 9, 1, 8, 2, 5, generation=5)
    evolve(context)
    assert [line["genome"]["id"] for line in population.births] == [8, 9]


def test_a_restored_one_evolves_alike():
    found = []
    for name in "ab":
        evolve, context = make_evolve(eval_loop=2)
        for generation in range(6):
            fitness = np.random.default_rng(generation).normal(size=AGENTS)
            evaluated(context, *fitness, generation=generation)
            evolve(context)
            if name == "b" and generation == 3:
                values, tensors = evolve.state()
                evolve, _ = make_evolve(eval_loop=2)
                evolve.restore(json.loads(json.dumps(values)), tensors)
        found.append(context.snapshot)
    assert found[0].genomes == found[1].genomes
    for agent in range(AGENTS):
        assert same_state(found[0].states[agent], found[1].states[agent])


def test_weights_and_moments_follow_the_parent():
    only = MutationConfig(architecture=0, parameters=0, hyperparameters=1)
    evolve, context = make_evolve(only, fraction=0.17)
    population = context.snapshot
    parent = population.states[1]
    moved = {name: torch.randn_like(value) for name, value in parent.m.items()}
    parent = population.states[1] = parent._replace(m=moved, updates=17)
    evaluated(context, 3, 9, 4, 8, 0, 5)
    evolve(context)
    assert population.parents.tolist() == [0, 1, 2, 3, 1, 5]
    assert population.genomes[4].parent == 1
    assert population.genomes[4].mutation == "hyperparameters"
    assert same_state(population.states[4], parent)
    assert population.genomes[4].hyperparameters != population.genomes[1].hyperparameters


def test_the_dead_are_replaced_and_live_again():
    evolve, context = make_evolve(fraction=0.17)
    population = context.snapshot
    population.alive[[0, 2, 3]] = False
    evaluated(context, -np.inf, 9, -np.inf, -np.inf, 1, 5)
    evolve(context)
    assert population.alive.all()
    assert [population.genomes[i].parent for i in (0, 2, 3)] == [1, 1, 1]
    assert population.genomes[4].id == 4  # the three dead are more than the share already


def test_the_worse_go_for_good_where_places_are_fewer():
    evolve, context = make_evolve(fraction=0.34, min_gap=0)
    population = context.snapshot
    old, states = list(population.genomes), list(population.states)
    population.alive[3] = False
    evaluated(context, 3, 9, 1, -np.inf, 7, np.nan, generation=4)
    population.places = 3
    evolve(context)  # 1, 4 and 0 are left, and 0 makes room for a child of 1
    assert population.kept.tolist() == [0, 1, 4]
    assert population.parents.tolist() == [1, 1, 2]
    assert population.agents == len(population.returns) == len(population.alive) == 3
    assert population.genomes[1:] == [old[1], old[4]]
    assert same_state(population.states[2], states[4])
    assert (population.genomes[0].id, population.genomes[0].parent) == (6, 1)
    assert population.agent_steps.tolist() == [100, 100, 400]
    assert np.isnan(population.fitness[0])
    assert population.fitness[1:].tolist() == [9, 7]


def test_a_single_survivor_stays_as_it_is():
    evolve, context = make_evolve(min_gap=0)
    population = context.snapshot
    best = population.genomes[4]
    evaluated(context, 3, 2, 1, 0, 7, 5)
    population.places = 1
    evolve(context)
    assert population.genomes == [best]
    assert population.births == []


def test_nobody_is_born_after_the_last_generation():
    evolve, context = make_evolve()
    old = list(context.snapshot.genomes)
    evaluated(context, 3, 9, 1, 8, 0, 5)
    context.snapshot.finished = True
    evolve(context)
    assert context.snapshot.genomes == old
    assert context.snapshot.births == []
    assert not context.snapshot.evolved


def test_the_same_seed_gives_the_same_children():
    found = []
    for _ in range(2):
        evolve, context = make_evolve()
        for generation in range(6):
            fitness = np.random.default_rng(generation).normal(size=AGENTS)
            evaluated(context, *fitness, generation=generation)
            evolve(context)
        found.append(context.snapshot)
    assert found[0].genomes == found[1].genomes
    for agent in range(AGENTS):
        assert same_state(found[0].states[agent], found[1].states[agent])


def test_fitness_is_averaged_over_the_latest_evaluations_of_a_line():
    evolve, context = make_evolve(fraction=0.17, eval_loop=2)
    population = context.snapshot
    evaluated(context, 5, 9, 4, 8, 0, -np.inf)  # too early to tell, but for the dead: 5 gets 1's 9
    population.alive[5] = False
    evolve(context)
    assert [genome.parent for genome in population.genomes] == [None] * 5 + [1]
    evaluated(context, 5, 2, 5, 8, 8, 3, generation=1)  # means: 5, 5.5, 4.5, 8, 4, 6
    evolve(context)
    assert population.genomes[4].parent == 3
    assert population.genomes[5].parent == 1


def test_what_a_generation_did_is_observed():
    evolve, context = make_evolve(fraction=0.17)
    seen = []
    evolve.mutation.explore.observe = lambda *args: seen.append(args)
    evaluated(context, 5, 9, 4, 8, 0, 5)
    evolve(context)
    values = [dict(genome.hyperparameters) for genome in context.snapshot.genomes]
    evaluated(context, 1, 2, 3, 4, 5, 6, generation=1)
    evolve(context)
    assert [args[0] for args in seen] == [0, 1]
    assert np.isnan(seen[0][2]).all()
    assert seen[1][1] == values
    assert seen[1][2].tolist() == [5, 9, 4, 8, 9, 5]  # the child begins with its parent's
    assert seen[1][3].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_genome_survives_json():
    genome = Genome(3, {"q": Architecture((8, 8), gated=(False, True))}, DQN().hyperparameters)
    child = dataclasses.replace(genome, id=9, parent=3, born=4, mutation="add layer")
    for one in (genome, child):
        assert Genome.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("probability", "score", "descends"),
    [(1.0, 60.0, True), (1.0, 49.0, False), (0.0, 60.0, False)],
)
def test_a_child_may_descend_from_the_best_ever_seen(probability, score, descends):
    only = MutationConfig(none=1, architecture=0, parameters=0, hyperparameters=0)
    evolve, context = make_evolve(only, fraction=0.17, champion=probability)
    population = context.snapshot
    peak = population.states[2]._replace(updates=777)
    genome = population.genomes[2]
    seen(evolve, KeptAgent(genome, peak, 4, 1234), score)
    # agent 0 makes room for a child of agent 5
    evaluated(context, 0, 10, 20, 30, 40, 50, generation=6)
    evolve(context)
    (born,) = population.births
    child = population.genomes[0]
    if descends:
        assert (child.parent, born["copied"], population.agent_steps[0]) == (2, 4, 1234)
        assert same_state(population.states[0], peak)
        assert np.isnan(evolve._before[0])  # nothing that PB2 could compare
        assert (evolve._returns[-1][0] == score).all()
    else:
        assert (child.parent, born["copied"], population.agent_steps[0]) == (5, 6, 500)
        assert same_state(population.states[0], population.states[5])
        assert evolve._before[0] == 50


def test_the_best_ever_seen_has_as_many_children_as_there_are_agents():
    only = MutationConfig(none=1, architecture=0, parameters=0, hyperparameters=0)
    evolve, context = make_evolve(only, fraction=0.34)
    genome, peak = context.snapshot.genomes[2], context.snapshot.states[2]
    seen(evolve, KeptAgent(genome, peak, 0, 10), 1000.0)
    parents = []
    for generation in range(1, 6):  # two children each
        evaluated(context, 0, 1, 20, 30, 40, 50, generation=generation)
        if generation == 3:
            values, tensors = evolve.state()
            evolve.restore(json.loads(json.dumps(values)), tensors)
        evolve(context)
        parents += [line["genome"]["parent"] for line in context.snapshot.births]
    assert [parent == 2 for parent in parents] == [True] * 6 + [False] * 4


def test_a_child_of_the_best_as_it_is_now_is_like_any_other():
    """Its parent's fitness is known, and it takes no place of those that descend from the past."""
    only = MutationConfig(none=1, architecture=0, parameters=0, hyperparameters=0)
    evolve, context = make_evolve(only, fraction=0.17)
    population = context.snapshot
    evaluated(context, 0, 10, 20, 30, 40, 50, generation=6)
    genome, peak = population.genomes[5], population.states[5]
    seen(evolve, KeptAgent(genome, peak, 6, 500), 60.0)
    evolve(context)
    (born,) = population.births
    assert (born["genome"]["parent"], born["copied"], population.agent_steps[0]) == (5, 6, 500)
    assert evolve._before[0] == 50
    assert (evolve._returns[-1][0] == evolve._returns[-1][5]).all()
    assert evolve.state()[0]["children"] == [-1, 0]
