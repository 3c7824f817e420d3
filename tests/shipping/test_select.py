"""Selecting an agent: the best, one of a checkpoint, and of a run that is being written."""

import shutil
import warnings

import pytest
import torch

from evorl.errors import CheckpointError, ConfigError, RunError
from evorl.genome import Architecture
from evorl.seeding import fresh, held_out, integers
from evorl.shipping.play import select_agent
from tests.shipping.worlds import World, make_run, population_of, save_checkpoint, saved

SMALL = [Architecture((8,)), Architecture((6, 6), "tanh", True, True, (False, True))]
SMALL += [Architecture((9,), "elu")]


@pytest.fixture
def population():
    return population_of("vector", SMALL)


@pytest.fixture
def run(tmp_path, population):
    """Agents 10, 11 and 12, of which 11 is the best."""
    return make_run(tmp_path, population, best=1)


def same(parameters, others):
    return parameters.keys() == others.keys() and all(
        torch.equal(value, others[name]) for name, value in parameters.items()
    )


def refusal(run, id=None, error=RunError):
    with pytest.raises(error) as caught:
        select_agent(run, id)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_the_best(run, population):
    selected = select_agent(run.path)
    assert selected.agent.genome == population.genomes[1]
    assert same(selected.agent.parameters, saved(population, 1).parameters)
    assert selected.heading == f"{run.path}: World-v0, agent 11, the best, as of generation 3"


def test_the_first_generation_is_one_too(tmp_path, population):
    run = make_run(tmp_path, population, generation=1)
    assert select_agent(run.path).title == "agent 10, the best, as of generation 0"


def test_by_id_it_is_the_agent_of_the_newest_checkpoint(run, population):
    """The best, too, has learned on since it was at its best."""
    later = population_of("vector", SMALL)
    states = [later.state(i) for i in range(later.size)]
    for state in states:
        for value in state.online.values():
            value += 1
    later.rebuild(later.genomes, states)
    save_checkpoint(run, later, 5)
    for i, genome in enumerate(population.genomes):
        selected = select_agent(run.path, genome.id)
        assert selected.agent.genome == genome
        assert same(selected.agent.parameters, states[i].online)
        assert selected.title == f"agent {genome.id}, as of checkpoint generation-000005"
    assert same(select_agent(run.path).agent.parameters, saved(population, 1).parameters)


def test_an_unknown_id_is_told_who_is_there(run):
    for id in (0, 13, -1, 2**70):
        assert f"no agent {id}; its newest checkpoint has 10, 11, 12" in refusal(run.path, id)


def test_without_a_checkpoint_there_is_the_best(run):
    shutil.rmtree(run.path / "checkpoints")
    assert select_agent(run.path).agent.genome.id == 11
    assert "has no checkpoint yet; leave --agent out" in refusal(run.path, 11)
    shutil.rmtree(run.path / "best")
    assert "has no best agent yet" in refusal(run.path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(run, population):
    save_checkpoint(run, population, 5)
    (run.path / "checkpoints" / "generation-000005" / "population.safetensors").write_bytes(b"x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert select_agent(run.path, 10).title.endswith("generation-000004")
    assert "the one before is taken" in str(caught[0].message)


def test_replays_are_not_read(run):
    """They may be many GB, and are nobody's business here."""
    (run.path / "checkpoints" / "generation-000004" / "replay-0.safetensors").write_bytes(b"x")
    assert select_agent(run.path, 10).agent.genome.id == 10


def test_checkpoints_of_another_run_are_refused(run):
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("seed: 1", "seed: 2"))
    assert "configuration" in refusal(run.path, 10, CheckpointError)


def test_a_dead_agent_is_refused(run, population):
    save_checkpoint(run, population, 5, dead=[12])
    assert "no agent 12; its newest checkpoint has 10, 11" in refusal(run.path, 12)


def test_weights_that_are_not_finite_are_refused(run):
    best = run.best()
    best.parameters["q.head.bias"][0] = torch.nan
    run.save_best(best)
    assert "the weights are not finite" in refusal(run.path)


@pytest.mark.parametrize(
    ("id", "says"), [(None, "observations or actions are not those"), (11, "the weights don't fit")]
)
def test_an_environment_that_has_changed_is_refused(run, monkeypatch, id, says):
    from gymnasium import spaces

    from tests.shipping import worlds

    monkeypatch.setitem(worlds.FORMS, "vector", spaces.Box(-1, 1, (4,)))
    message = refusal(run.path, id)
    assert "agent 11: the " in message
    assert says in message


def test_an_environment_that_is_gone_is_refused(run):
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("World-v0", "Gone-v0"))
    assert "Gone-v0" in refusal(run.path, error=ConfigError)


# seeds


def test_fresh_seeds_are_nobody_else_s(run):
    config, used = run.config(), select_agent(run.path).used_seeds
    assert used == set(held_out(config.seed, config.evaluation.final_episodes))
    found = fresh(0, 5000, used)
    assert len(set(found)) == 5000
    assert min(found) >= 2**30  # above all of training, selection and confirmation
    assert max(found) < 2**31
    assert max(integers(config.seed, "evaluation", 3, count=1000)) < 2**30
    assert fresh(0, 50, used) == found[:50]
    assert fresh(1, 50, used) != found[:50]
    assert not set(fresh(1, 5000, used)) & set(found[:100])


def test_seeds_that_were_used_are_left_out():
    found = fresh(0, 20, set())
    used = {found[3], found[7]}
    assert fresh(0, 18, used) == [seed for seed in found if seed not in used]


def test_worlds_are_what_they_say():
    env = World("pixels")
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
