"""Which ranks there are, and which agents are whose."""

import pytest

from evorl.distributed import Mesh, lay_out
from evorl.errors import ConfigError


@pytest.mark.parametrize(
    ("agents", "population", "sizes"),
    [(5, 2, [3, 2]), (7, 3, [3, 2, 2]), (4, 4, [1, 1, 1, 1]), (8, 3, [3, 3, 2]), (3, 1, [3])],
)
def test_known_places(agents, population, sizes):
    mesh = Mesh(population, data=1)
    assert [len(mesh.agents_of(agents, rank)) for rank in range(population)] == sizes


@pytest.mark.parametrize("data", [1, 2, 3])
@pytest.mark.parametrize("population", range(1, 9))
def test_every_agent_has_one_place(population, data):
    mesh = Mesh(population, data)
    for agents in range(population, 20):
        first = [mesh.agents_of(agents, line[0]) for line in mesh.data_lines()]
        assert [place for places in first for place in places] == list(range(agents))
        sizes = [len(places) for places in first]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
        for line, places in zip(mesh.data_lines(), first, strict=True):
            assert all(mesh.agents_of(agents, rank) == places for rank in line)
            assert all(mesh.owner(agents, place) == line[0] for place in places)


def test_lines_of_the_mesh():
    mesh = Mesh(population=3, data=2)
    assert mesh.data_lines() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("ranks", "population", "data", "mesh"),
    [(1, "auto", 1, (1, 1)), (6, "auto", 2, (3, 2)), (6, 2, 3, (2, 3)), (4, "auto", 4, (1, 4))],
)
def test_layouts(ranks, population, data, mesh):
    assert lay_out(ranks, 6, population, data) == Mesh(*mesh)
    assert lay_out(ranks + 2, 6, population, data, 2) == Mesh(*mesh, evaluators=2)


def test_evaluators_come_after_those_that_train_and_have_a_copy_of_all():
    mesh = Mesh(2, 2, evaluators=2)
    assert (mesh.trainers, mesh.size) == (4, 6)
    assert mesh.data_lines() == [[0, 1], [2, 3]]
    assert [mesh.agents_of(5, rank) for rank in (0, 3, 4, 5)] == [
        *(range(3), range(3, 5)),
        *[range(5)] * 2,
    ]
    assert [mesh.owner(5, place) for place in range(5)] == [0, 0, 0, 2, 2]


def test_actors_come_last_and_are_none_of_those_that_meet():
    mesh = lay_out(9, 6, "auto", 2, evaluators=1, actors=4)
    assert mesh == Mesh(2, 2, evaluators=1, actors=4)
    assert (mesh.trainers, mesh.size) == (4, 5)
    assert [mesh.actor_of(rank) for rank in range(5, 9)] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    mesh = lay_out(8, 6, 2, actors=6)
    assert [mesh.actor_of(rank) for rank in (2, 4, 5, 7)] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    with pytest.raises(ConfigError, match="actors: must be as many for each of 2 learners, got 3"):
        lay_out(5, 6, 2, actors=3)
    with pytest.raises(ConfigError, match="data 1 and 1 evaluator and 2 actors takes 4 ranks, got"):
        lay_out(3, 6, evaluators=1, actors=2)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluators_need_somebody_who_trains(ranks):
    with pytest.raises(ConfigError, match="data 1 and 3 evaluators takes 4 ranks, got"):
        lay_out(ranks, 8, evaluators=3)


@pytest.mark.parametrize(
    ("ranks", "agents", "population", "data", "parts"),
    [
        (4, 8, "auto", 3, ["data 3 takes 3 ranks", "got 4", "change mesh"]),
        (1, 8, "auto", 2, ["data 2 takes", "got 1", "accelerate launch --num_processes"]),
        (3, 8, 2, 2, ["population 2 × data 2 takes 4 ranks", "got 3", "change mesh"]),
        (4, 8, 2, 1, ["population 2 × data 1 takes 2 ranks", "got 4", "change mesh"]),
        (4, 3, "auto", 1, ["mesh.population", "got 4 ranks for 3", "population.size"]),
        (4, 8, "auto", 0, ["population 4 × data 0 takes 0 ranks", "got 4"]),
        (4, 8, 0, 1, ["population 0 × data 1 takes 0 ranks", "got 4"]),
    ],
)
def test_refusals(ranks, agents, population, data, parts):
    with pytest.raises(ConfigError) as caught:
        lay_out(ranks, agents, population, data)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
