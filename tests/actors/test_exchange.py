"""A learner and actors on the bus, each in a thread: what arrives, what is refused, who goes."""

import threading
import warnings
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

from evorl.actors import ActorEnd, BusExchange, copy_of, run_actor
from evorl.errors import RunError
from evorl.pipeline import Actor
from tests.bus.buses import join

from .parts import SEED, STEPS, Learner, inbox_of, inline, make_env, message_of, population_of

torch.set_num_threads(1)


class Playing(threading.Thread):
    """An actor on a bus of its own, until it is over."""

    def __init__(self, folder, slot, size, lockstep=False, rounds=None):
        super().__init__(daemon=True)
        self.folder, self.slot, self.size, self.lockstep = folder, slot, size, lockstep
        self.rounds, self.error = rounds, None
        self.start()

    def run(self):
        try:
            with join(self.folder, self.slot + 1, self.size, "star") as bus:
                end = ActorEnd(bus, 30)
                weights = end.newest()
                if weights is not None:
                    run_actor(end, self.make(end, weights), weights, self.lockstep)
        except BaseException as error:
            self.error = error

    def make(self, end, weights):
        template = population_of(make_env())
        copy = copy_of(weights.fields, template.networks, template.algorithm)
        told = {"number": self.slot, "fellows": end.greeting["fellows"]}
        return Actor(
            copy, make_env(), STEPS, seed=SEED, incarnation=end.greeting["incarnation"], **told
        )

    def ended(self):
        self.join(30)
        assert not self.is_alive()
        return self.error


@contextmanager
def learning(folder, slots, lockstep=False, max_lag=None):
    population = population_of(make_env())
    with ExitStack() as stack:
        bus = stack.enter_context(join(folder, 0, 1 + slots, "star"))
        exchange = BusExchange(
            inbox_of(population, slots, max_lag),
            bus,
            lockstep=lockstep,
            timeout=30,
            greeting={"fellows": slots},
        )
        stack.callback(exchange.close)
        yield Learner(population, exchange)


def test_lock_step_on_the_bus_is_lock_step_in_one_process(tmp_path):
    alone, _ = inline(population_of(make_env()), 2)
    with learning(tmp_path, 2, lockstep=True) as learner:
        actors = [Playing(tmp_path, slot, 3, lockstep=True) for slot in (1, 0)]
        for generation in range(3):
            for own in (alone, learner):
                own.context.generation = generation
                own.iterate(4)
    assert [actor.ended() for actor in actors] == [None, None]
    for own, other in zip(alone.population.groups, learner.population.groups, strict=True):
        assert torch.equal(own.theta, other.theta)
    for name in ("env_steps", "episodes", "updates"):
        assert getattr(alone.context, name) == getattr(learner.context, name)
    assert alone.receive.returns.ended == learner.receive.returns.ended


def test_at_their_own_pace(tmp_path):
    with learning(tmp_path, 2) as learner:
        actors = [Playing(tmp_path, slot, 3) for slot in range(2)]
        learner.iterate(20)
        report = learner.receive.exchange.report()
        learner.context.generation = 1  # what is under way is of the one before
        learner.iterate(20)
        after = learner.receive.exchange.report()
    assert [actor.ended() for actor in actors] == [None, None]
    assert report["alive"] == 2
    assert report["counts"]["taken"] == len(report["lags"]) == 20
    assert max(report["lags"]) >= 1
    assert len(report["queued"]) == 20
    assert max(report["queued"]) <= 4  # two of each
    assert 1 <= after["counts"]["refused_generation"] <= 6  # two each, and one in the making
    assert after["counts"]["wasted_steps"] == 54 * after["counts"]["refused_generation"]
    assert learner.context.updates == 40 * 3
    assert learner.context.env_steps == 40 * 54


@pytest.mark.filterwarnings("ignore:actor 0. a message was refused .lag. of weights")
def test_a_late_gradient_moves_nobody_but_its_steps_count(tmp_path):
    with learning(tmp_path, 1, max_lag=0) as learner:
        actor = Playing(tmp_path, 0, 2)
        learner.iterate(12)
        late = learner.receive.exchange.report()["counts"]["refused_lag"]
    assert actor.ended() is None
    assert 0 < late < 12
    assert learner.context.updates == (12 - late) * 3
    assert learner.context.env_steps == 12 * 54


def test_a_late_joiner_contributes(tmp_path):
    with learning(tmp_path, 2) as learner:
        first = Playing(tmp_path, 0, 3)
        learner.iterate(5)
        assert {own.slot for own in learner.context.received} == {0}
        second = Playing(tmp_path, 1, 3)
        slots = set()
        while slots != {0, 1}:
            learner.iterate()
            slots |= {own.slot for own in learner.context.received}
        assert learner.receive.exchange.alive == 2
    assert first.ended() is second.ended() is None


def test_an_actor_that_lies_is_named_and_the_other_ones_go_on(tmp_path):
    with learning(tmp_path, 2) as learner, join(tmp_path, 2, 3, "star") as liar:
        actor = Playing(tmp_path, 0, 3)
        learner.iterate(2)
        message = message_of(learner.population) | {"slot": 1, "session": 1}
        bad = [
            message | {"loss": message["loss"] * np.nan, "sequence": 1},
            message | {"slot": 0, "sequence": 2},
            {"anything": "else"},
            {},
        ]

        def lie():
            for own in bad:
                liar.send(0, "messages", own, 20)

        lying = threading.Thread(target=lie)
        lying.start()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            while lying.is_alive():
                learner.iterate()
            learner.iterate(4)
        counts = learner.receive.exchange.report()["counts"]
    assert actor.ended() is None
    assert (counts["refused_range"], counts["refused_slot"], counts["refused_fields"]) == (1, 1, 2)
    assert {str(own.message)[:29] for own in told} == {"actor 1: a message was refuse"}
    assert len(told) == 3


def test_who_is_gone_is_named(tmp_path):
    with learning(tmp_path, 2) as learner:
        actor = Playing(tmp_path, 0, 3)
        with join(tmp_path, 2, 3, "star") as other:
            ActorEnd(other, 20)
            learner.iterate(2)
        bus = learner.receive.exchange.bus
        bus.wait(lambda: 2 in bus.gone)
        line = r"^actor 1 \(\S+, process \d+\) is gone \(it left\); the others play on$"
        with pytest.warns(UserWarning, match=line):
            learner.iterate(2)
    assert actor.ended() is None


def test_in_lock_step_nobody_can_be_missed(tmp_path):
    with learning(tmp_path, 1, lockstep=True) as learner:
        with join(tmp_path, 1, 2, "star") as other:
            ActorEnd(other, 20)
        with pytest.raises(RunError, match=r"^actor 0 \(.*\) is gone \(it left\); in lock-step"):
            learner.iterate()


def test_all_are_gone(tmp_path):
    with learning(tmp_path, 1) as learner:
        with join(tmp_path, 1, 2, "star") as other:
            ActorEnd(other, 20)
        with (
            pytest.warns(UserWarning, match=r"actor 0 \(.*\) is gone"),
            pytest.raises(RunError, match=r"^all actors are gone; look for their errors above"),
        ):
            learner.iterate()


def test_a_learner_that_leaves_without_a_word_is_named(tmp_path):
    with learning(tmp_path, 1) as learner:
        actor = Playing(tmp_path, 0, 2)
        learner.iterate(2)
        learner.receive.exchange.bus.close()  # it said nothing
    error = actor.ended()
    assert isinstance(error, RunError)
    assert str(error) == "actor 0: the learner is gone (it left); resume the run"


def test_an_actor_of_other_weights_is_not_let_in(tmp_path):
    with (
        join(tmp_path, 0, 2, "star", schema="a"),
        join(tmp_path, 1, 2, "star", schema="b") as bus,
        pytest.raises(RunError, match=r"actor 0: the learner is gone \(it refused .* schema 'b'"),
    ):
        ActorEnd(bus, 20)


def test_an_actor_that_waits_for_credit_hears_that_it_is_over(tmp_path):
    """Although the learner takes no more messages, and its bus stays open."""
    with learning(tmp_path, 1) as learner, join(tmp_path, 1, 2, "star") as bus:
        exchange, end, sent = learner.receive.exchange, ActorEnd(bus, 30), []

        def send():
            while end.send({"text": "of no use"}):
                sent.append(True)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        exchange.bus.wait(lambda: len(sent) == 2, 30)
        exchange.bus.publish("stop", {})
        sending.join(30)
        assert not sending.is_alive()
        assert sent == [True, True]
