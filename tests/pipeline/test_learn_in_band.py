"""Samples per insert beside actors at their own pace: the band holds, and nobody waits for ever."""

from collections import deque

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.experience import SamplesPerInsert
from evorl.genome import Architecture, Genome
from evorl.pipeline.learn_in_band import LearnInBand
from evorl.pipeline.training_context import TrainingContext
from tests.pipeline.snapshots import alone

from .test_learn import advance, make_learn, make_population, run

torch.set_num_threads(1)
TWO = [{"hidden": (4,), "batch_size": 8}, {"hidden": (4,), "batch_size": 20}]
CREDIT = 2


def in_band(ratio, slack, starts=0, ready=lambda: False, items=60):
    plain = make_learn(make_population(TWO), items=items)
    band = SamplesPerInsert(ratio, slack * ratio, starts)
    parts = (alone(), plain.population, plain.buffer, plain.sampler)
    return LearnInBand(*parts, band=band, ready=ready, learning_starts=starts)


class Actors:
    """Messages of so many steps of each agent: two under way for each actor, and no more."""

    def __init__(self, learn, speeds, steps, seed=0):
        self.learn, self.speeds, self.steps = learn, list(speeds), steps
        self.random, self.queue = np.random.default_rng(seed), deque()
        self.waited = 0  # learner's turns without anything to take
        learn._message_waits = self.ready

    def ready(self):
        """Time goes by, for each actor as fast as it is, while it has credit."""
        for slot, speed in enumerate(self.speeds):
            if self.random.random() < speed and self.queue.count(slot) < CREDIT:
                self.queue.append(slot)
        return bool(self.queue)

    def take(self):
        while not self.ready():
            assert any(self.speeds), "nobody is left, and the learner waits"
            self.waited += 1
        self.queue.popleft()


def generations(learn, actors, count, messages):
    """So many, of so many messages each."""
    context = TrainingContext(2)
    for generation in range(count):
        context.generation, context.begins = generation, context.iteration
        context.ends = context.iteration + messages
        while context.iteration < context.ends:
            actors.take()
            advance(context, actors.steps)
            learn(context)
            yield context
            context.iteration += 1


@pytest.mark.parametrize("slack", [0, 7, 300])
@pytest.mark.parametrize("ratio", [0.3, 4.0])
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (0.02,), (0.0, 0.3)], ids=["fast", "slow", "dead"])
def test_the_band_holds_whoever_is_slow(speeds, ratio, slack):
    learn = in_band(ratio, slack, starts=20)
    actors, sizes = Actors(learn, speeds, steps=9), np.array([8, 20])
    for context in generations(learn, actors, 4, 25):
        called = ratio * np.maximum(context.agent_steps - 20, 0)
        owed = learn.band.owed
        assert (owed >= -ratio * slack - sizes).all()
        if context.iteration + 1 == context.ends:
            assert (owed < sizes).all()  # what it called for has been learned
        else:
            assert (owed <= ratio * slack + 1e-9).all()
        assert context.updates == pytest.approx(((called - owed) / sizes).sum())
    assert learn.report() == pytest.approx(ratio, rel=0.1 + slack / 880)


def test_a_learner_goes_on_while_nothing_comes_and_only_so_far():
    learn = in_band(2.0, slack=40)
    context = TrainingContext(2, ends=9)
    advance(context, 10)
    learn(context)
    assert learn.band.owed.tolist() == [
        -84.0,
        -80.0,
    ]  # 20 called for and 80 ahead, in whole batches
    learn._message_waits = lambda: True
    advance(context, 10)
    before = context.updates
    learn(context)
    assert context.updates == before


def test_a_learner_takes_what_waits_until_it_is_too_far_behind():
    learn = in_band(2.0, slack=40, ready=lambda: True)
    context, owed = TrainingContext(2, ends=99), []
    for _ in range(8):
        advance(context, 16)
        learn(context)
        owed.append(learn.band.owed.tolist())
    assert owed[:3] == [[32.0, 32.0], [64.0, 64.0], [80.0, 76.0]]
    assert max(own for each in owed for own in each) <= 80
    context.ends = context.iteration + 1
    advance(context, 0)
    learn(context)
    assert (learn.band.owed < [8, 20]).all()


def test_a_child_owes_nothing():
    learn = in_band(2.0, slack=1000, ready=lambda: True)
    context = TrainingContext(2, ends=99)
    advance(context, 30)
    learn(context)
    assert learn.band.owed.tolist() == [60.0, 60.0]
    population = learn.population
    numbers = DQN(batch_size=20).hyperparameters
    child = Genome(7, {"q": Architecture((4,))}, numbers)
    states = [population.state(i) for i in range(2)]
    population.rebuild([population.genomes[0], child], states)
    context.agent_steps[1] = 30
    advance(context, 10)
    learn(context)
    assert learn.band.owed.tolist() == [80.0, 20.0]


def test_nobody_waits_for_agents_that_cannot_learn():
    learn = in_band(2.0, slack=0, items=0)  # an empty replay: its actors are gone
    context = TrainingContext(2, ends=99)
    for _ in range(3):
        advance(context, 30)
        learn(context)
    assert context.updates == 0
    assert learn.band.owed.tolist() == [0, 0]
    learn = in_band(2.0, slack=0)
    learn.population.alive[0] = False
    advance(context, 30)
    learn(context)
    assert context.updates == 3
    assert learn.band.owed[1] <= 0


@pytest.mark.parametrize("ratio", [0.25, 3, 16])
def test_without_a_band_the_ratio_is_fixed(ratio):
    """Updates add up without drift, each agent's by its own batch."""
    learn = make_learn(make_population(TWO), learning_starts=10, samples_per_insert=ratio)
    context = run(learn, rounds=20, steps=7)
    after = context.agent_steps - 10
    assert context.updates == (after * ratio // [8, 20]).sum()
