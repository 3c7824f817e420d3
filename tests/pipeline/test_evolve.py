"""Selection and mutation on a live population: who follows whom, and what follows the weights."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import ExploreConfig, MutationConfig
from evorl.evolution.explore import make_explore
from evorl.evolution.mutation import Mutation
from evorl.evolution.selection import Truncation
from evorl.evolution.spaces import Space
from evorl.genome import Architecture, Genome
from evorl.networks.layout import Problem
from evorl.pipeline.champion import Champion
from evorl.pipeline.context import Context
from evorl.pipeline.evolve import Evolve
from evorl.population.population import Population
from evorl.runs.directory import RunDirectory
from tests.pipeline.people import together

torch.set_num_threads(1)

AGENTS = 6
SPACES = {"lr": Space("log", 1e-5, 1e-1), "batch_size": Space("power_of_two", 8, 64, whole=True)}


def make_evolve(tmp_path, mutation=None, **selection):
    shapes = [Architecture((8 + 8 * i,)) for i in range(AGENTS)]
    genomes = [
        Genome(i, shape, DQN(lr=1e-3 * (i + 1), batch_size=16).hyperparameters)
        for i, shape in enumerate(shapes)
    ]
    population = Population(genomes, Problem(4, 2), DQN(), seed=3)
    everybody = together(population)
    explore = make_explore(ExploreConfig(), SPACES)
    directory = RunDirectory.create(tmp_path, "run")
    return Evolve(
        everybody,
        SimpleNamespace(champion=None, score=-np.inf),  # a hall of fame that has seen nobody
        Truncation(**selection),
        Mutation(mutation or MutationConfig(), population.problem, explore),
        directory,
        seed=9,
    )


def evaluated(context, *fitness):
    noise = np.random.default_rng(0).normal(size=(1, 5))
    context.fitness = np.array(fitness, float)
    context.returns = context.fitness[:, None] + noise - noise.mean()
    context.agent_steps = np.arange(AGENTS) * 100


def births(evolve):
    path = evolve.directory.path / "lineage.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def same_state(left, right):
    return left.steps == right.steps and all(
        torch.equal(mine[name], yours[name])
        for mine, yours in zip(left[:4], right[:4], strict=True)
        for name in mine
    )


def test_the_worst_are_replaced_by_children_of_the_best(tmp_path):
    evolve = make_evolve(tmp_path, fraction=0.34)
    population, context = evolve.everybody, Context(AGENTS)
    old = list(population.genomes)
    states = [population.state(i) for i in range(AGENTS)]
    context.generation = 4
    evaluated(context, 3, 9, 1, 8, 0, 5)
    evolve(context)
    for place in (0, 1, 3, 5):  # the survivors: not a bit of them moves
        assert population.genomes[place] is old[place]
        assert same_state(population.state(place), states[place])
    for place, id in ((2, 6), (4, 7)):
        child = population.genomes[place]
        assert (child.id, child.born) == (id, 5)
        assert child.parent in (1, 3)
        assert context.agent_steps[place] == 100 * child.parent
    told = births(evolve)
    assert [line["genome"]["id"] for line in told] == [6, 7]
    assert [line["place"] for line in told] == [2, 4]
    assert Genome.from_json(told[0]["genome"]) == population.genomes[2]
    evaluated(context, 0, 9, 1, 8, 2, 5)
    evolve(context)
    assert [line["genome"]["id"] for line in births(evolve)] == [6, 7, 8, 9]


def test_a_restored_one_goes_on_alike(tmp_path):
    found = []
    for name in "ab":
        evolve, context = make_evolve(tmp_path / name, eval_loop=2), Context(AGENTS)
        for generation in range(6):
            context.generation = generation
            evaluated(context, *np.random.default_rng(generation).normal(size=AGENTS))
            evolve(context)
            if name == "b" and generation == 3:
                values, tensors = evolve.state()
                old, folder = evolve, tmp_path / "c"
                evolve = make_evolve(folder, eval_loop=2)
                evolve.everybody.meet(old.everybody.genomes, old.everybody.states, [True] * AGENTS)
                evolve.restore(json.loads(json.dumps(values)), tensors)
        found.append(evolve.everybody)
    assert found[0].genomes == found[1].genomes
    for agent in range(AGENTS):
        assert same_state(found[0].state(agent), found[1].state(agent))


def test_weights_and_moments_follow_the_parent(tmp_path):
    only = MutationConfig(architecture=0, parameters=0, hyperparameters=1)
    evolve = make_evolve(tmp_path, only, fraction=0.17)
    population, context = evolve.everybody, Context(AGENTS)
    parent = population.state(1)
    moved = {name: torch.randn_like(value) for name, value in parent.m.items()}
    parent = population.states[1] = parent._replace(m=moved, steps=17)
    evaluated(context, 3, 9, 4, 8, 0, 5)
    evolve(context)
    assert population.parents.tolist() == [0, 1, 2, 3, 1, 5]
    assert population.genomes[4].parent == 1
    assert population.genomes[4].mutation == "hyperparameters"
    assert same_state(population.state(4), parent)
    assert population.genomes[4].hyperparameters != population.genomes[1].hyperparameters


def test_the_dead_are_replaced_and_live_again(tmp_path):
    evolve = make_evolve(tmp_path, fraction=0.17)
    population, context = evolve.everybody, Context(AGENTS)
    population.alive[[0, 2, 3]] = False
    evaluated(context, -np.inf, 9, -np.inf, -np.inf, 1, 5)
    evolve(context)
    assert population.alive.all()
    assert [population.genomes[i].parent for i in (0, 2, 3)] == [1, 1, 1]
    assert population.genomes[4].id == 4  # the three dead are more than the share already


def test_nobody_is_born_after_the_last_generation(tmp_path):
    evolve = make_evolve(tmp_path)
    context = Context(AGENTS)
    old = list(evolve.everybody.genomes)
    evaluated(context, 3, 9, 1, 8, 0, 5)
    context.finished = True
    evolve(context)
    assert evolve.everybody.genomes == old
    assert births(evolve) == []


def test_the_same_seed_gives_the_same_children(tmp_path):
    found = []
    for name in "ab":
        evolve, context = make_evolve(tmp_path / name), Context(AGENTS)
        for generation in range(6):
            context.generation = generation
            evaluated(context, *np.random.default_rng(generation).normal(size=AGENTS))
            evolve(context)
        found.append(evolve.everybody)
    assert found[0].genomes == found[1].genomes
    for agent in range(AGENTS):
        assert same_state(found[0].state(agent), found[1].state(agent))


def test_fitness_is_averaged_over_the_latest_evaluations_of_a_line(tmp_path):
    evolve = make_evolve(tmp_path, fraction=0.17, eval_loop=2)
    population, context = evolve.everybody, Context(AGENTS)
    evaluated(context, 5, 9, 4, 8, 0, -np.inf)  # too early to tell, but for the dead: 5 gets 1's 9
    population.alive[5] = False
    evolve(context)
    assert [genome.parent for genome in population.genomes] == [None] * 5 + [1]
    context.generation = 1
    evaluated(context, 5, 2, 5, 8, 8, 3)  # means: 5, 5.5, 4.5, 8, 4, 6
    evolve(context)
    assert population.genomes[4].parent == 3
    assert population.genomes[5].parent == 1


def test_what_a_generation_did_is_observed(tmp_path):
    evolve, context = make_evolve(tmp_path, fraction=0.17), Context(AGENTS)
    seen = []
    evolve.mutation.explore.observe = lambda *args: seen.append(args)
    evaluated(context, 5, 9, 4, 8, 0, 5)
    evolve(context)
    values = [dict(genome.hyperparameters) for genome in evolve.everybody.genomes]
    context.generation = 1
    evaluated(context, 1, 2, 3, 4, 5, 6)
    evolve(context)
    assert [args[0] for args in seen] == [0, 1]
    assert np.isnan(seen[0][2]).all()
    assert seen[1][1] == values
    assert seen[1][2].tolist() == [5, 9, 4, 8, 9, 5]  # the child begins with its parent's
    assert seen[1][3].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_genome_survives_json():
    genome = Genome(3, Architecture((8, 8), gated=(False, True)), DQN().hyperparameters)
    child = dataclasses.replace(genome, id=9, parent=3, born=4, mutation="add layer")
    for one in (genome, child):
        assert Genome.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("probability", "score", "descends"),
    [(1.0, 60.0, True), (1.0, 49.0, False), (0.0, 60.0, False)],
)
def test_a_child_may_descend_from_the_best_ever_seen(tmp_path, probability, score, descends):
    only = MutationConfig(none=1, architecture=0, parameters=0, hyperparameters=0)
    evolve = make_evolve(tmp_path, only, fraction=0.17, champion=probability)
    peak = evolve.everybody.state(2)._replace(steps=777)
    genome = evolve.everybody.genomes[2]
    evolve.hall.champion, evolve.hall.score = Champion(genome, peak, 4, 1234, 777), score
    context = Context(AGENTS)
    context.generation = 6
    evaluated(context, 0, 10, 20, 30, 40, 50)  # agent 0 makes room for a child of agent 5
    evolve(context)
    (born,) = births(evolve)
    child = evolve.everybody.genomes[0]
    if descends:
        assert (child.parent, born["copied"], context.agent_steps[0]) == (2, 4, 1234)
        assert same_state(evolve.everybody.state(0), peak)
        assert context.agent_updates[0] == 777
        assert np.isnan(evolve._before[0])  # nothing that PB2 could compare
        assert (evolve._returns[-1][0] == score).all()
    else:
        assert (child.parent, born["copied"], context.agent_steps[0]) == (5, 6, 500)
        assert same_state(evolve.everybody.state(0), evolve.everybody.state(5))
        assert evolve._before[0] == 50


def test_the_best_ever_seen_has_as_many_children_as_there_are_agents(tmp_path):
    only = MutationConfig(none=1, architecture=0, parameters=0, hyperparameters=0)
    evolve, context = make_evolve(tmp_path, only, fraction=0.34), Context(AGENTS)
    genome, peak = evolve.everybody.genomes[2], evolve.everybody.state(2)
    evolve.hall.champion, evolve.hall.score = Champion(genome, peak, 0, 10, 5), 1000.0
    for generation in range(1, 6):  # two children each
        context.generation = generation
        evaluated(context, 0, 1, 20, 30, 40, 50)
        if generation == 3:
            values, tensors = evolve.state()
            evolve.restore(json.loads(json.dumps(values)), tensors)
        evolve(context)
    assert [line["genome"]["parent"] == 2 for line in births(evolve)] == [True] * 6 + [False] * 4


def test_a_child_of_the_best_as_it_is_now_is_like_any_other(tmp_path):
    """Its parent's fitness is known, and it takes no place of those that descend from the past."""
    only = MutationConfig(none=1, architecture=0, parameters=0, hyperparameters=0)
    evolve, context = make_evolve(tmp_path, only, fraction=0.17), Context(AGENTS)
    context.generation = 6
    evaluated(context, 0, 10, 20, 30, 40, 50)
    genome, peak = evolve.everybody.genomes[5], evolve.everybody.state(5)
    evolve.hall.champion, evolve.hall.score = Champion(genome, peak, 6, 500, 0), 60.0
    evolve(context)
    (born,) = births(evolve)
    assert (born["genome"]["parent"], born["copied"], context.agent_steps[0]) == (5, 6, 500)
    assert evolve._before[0] == 50
    assert (evolve._returns[-1][0] == evolve._returns[-1][5]).all()
    assert evolve.state()[0]["children"] == [-1, 0]
