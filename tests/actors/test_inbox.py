"""What arrives from actors: counted once, and refused unless all of it is what it should be."""

import math
import warnings

import numpy as np
import pytest
import torch

from evorl.actors import WeightsMessage, experience_fields, load_weights
from evorl.actors.messages import Refused
from evorl.algorithms import DQN, IMPALA
from evorl.envs.spaces import FLOAT32, ActionSpec, ObservationSpec
from evorl.errors import RunError

from .parts import STEPS, inbox_of, make_env, message_of, population_of

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:actor .* a message was refused")


@pytest.fixture(scope="module")
def population():
    return population_of(make_env())


@pytest.fixture(scope="module")
def message(population):
    return message_of(population)


@pytest.fixture
def inbox(population):
    found = inbox_of(population, slots=2, max_lag=3)
    found.begin(0, 0)
    return found


def test_a_message_as_it_should_be(inbox, message):
    taken = inbox.accept(message, 0)
    assert (taken.slot, taken.lag, taken.late) == (0, 0, False)
    assert taken.fields["updates"].tolist() == [1, 1, 1]
    assert inbox.counts == {"taken": 1, "refused_lag": 0}


def test_each_counts_once(inbox, message):
    assert inbox.accept(message, 0)
    assert inbox.accept(message, 0) is None
    assert inbox.accept(message | {"sequence": 2}, 0)
    assert inbox.accept(message | {"sequence": 1}, 0) is None
    assert inbox.accept(message | {"slot": 1}, 1)  # another actor's first
    assert inbox.accept(message | {"session": 2}, 0)  # another process took its place
    assert inbox.accept(message | {"sequence": 9}, 0) is None  # the one before
    assert inbox.counts["refused_replayed"] == 3
    assert inbox.counts["taken"] == 4


def test_what_is_refused_takes_nobodys_place(inbox, message):
    """A session or number that came with nonsense is forgotten."""
    assert inbox.accept(message, 0)
    nonsense = {name: own for name, own in message.items() if name != "returns"}
    assert inbox.accept(nonsense | {"session": 5}, 0) is None
    assert inbox.accept(nonsense | {"sequence": 10**9}, 0) is None
    assert inbox.accept(message | {"sequence": 2}, 0)
    assert inbox.counts["refused_replayed"] == 0
    inbox.begin(1, 1)
    late = message | {"sequence": 3}  # of the generation before, but as it should be
    assert [inbox.accept(late, 0) for _ in range(2)] == [None, None]
    assert inbox.counts["refused_generation"] == inbox.counts["refused_replayed"] == 1


def test_lag(inbox, message):
    inbox.begin(3, 0)
    assert inbox.accept(message, 0).lag == 3
    inbox.begin(4, 0)
    late = inbox.accept(message | {"sequence": 2}, 0)
    assert (late.lag, late.late) == (4, True)
    assert inbox.counts == {"taken": 2, "refused_lag": 1}
    assert inbox.accept(message | {"sequence": 3, "version": 5}, 0) is None  # still to come


def test_another_generation_is_refused_but_paid_for(inbox, message):
    inbox.begin(1, 1)
    assert inbox.accept(message, 0) is None
    assert inbox.counts == {"refused_generation": 1}
    assert inbox.wasted == message["env_steps"] == 3 * 3 * 6


def spoiled(message, population):
    """Everything that can be wrong about a message, with how it is counted."""

    def changed(name, value, reason):
        return message | {name: value}, reason

    for name in message:
        yield {k: v for k, v in message.items() if k != name}, None
        for other in (None, "x", -1, 1.5, math.nan, [], {}, True, 2**70, torch.zeros(2)):
            if name != "failures" or type(other) is not list:  # as it should be
                yield message | {name: other}, None
    yield changed("more", 1, "fields")
    for name, value in message.items():
        if not isinstance(value, torch.Tensor):
            continue
        yield changed(name, value.numpy(), "fields")
        yield changed(name, value.to(torch.float16), "type")
        yield changed(name, value[None], "shape")
        if name == "returns":
            yield changed(name, torch.cat([value, value, value.new_zeros(1)]), "shape")
            continue
        yield changed(name, torch.cat([value, value]), "shape")
        for bad in (math.nan, math.inf, -math.inf, -1e30) if value.is_floating_point() else ():
            spoilt = value.clone()
            spoilt.view(-1)[-1] = bad
            yield changed(name, spoilt, "range")
        if not value.is_floating_point() and name != "dead":
            yield changed(name, value - 1000, "range")
    yield changed("dead", torch.full((3,), 3, dtype=torch.uint8), "range")
    yield changed("updates", torch.full((3,), 2), "range")
    yield changed("steps", torch.full((3,), 19), "range")
    yield changed("env_steps", 3 * 3 * 6 + 1, "range")
    yield changed("slot", 2, "range")
    yield changed("slot", 1, "slot")
    yield changed("failures", [[0, "x"]] * 257, "fields")
    yield changed("failures", [[0]], "fields")
    yield changed("failures", [["0", "x"]], "fields")
    for g, group in enumerate(population.groups):
        for row, genome in enumerate(group.genomes):
            outside = (~group.layout.mask(genome.architectures)).nonzero()[0]
            gradient = message[f"gradient{g}"].clone()
            gradient[row, outside] = 1e-9
            yield changed(f"gradient{g}", gradient, "padding")


def test_whatever_is_wrong_is_refused_and_nothing_raises(inbox, message, population):
    before = [group.theta.clone() for group in population.groups]
    count = 0
    for sequence, (fields, reason) in enumerate(spoiled(message, population), 1):
        refused = inbox.counts.copy()
        own = {"sequence": sequence} if fields.get("sequence") is message["sequence"] else {}
        assert inbox.accept(fields | own, 0) is None, fields
        (found,) = (inbox.counts - refused).elements()
        assert reason is None or found == f"refused_{reason}", (found, reason)
        count += 1
    assert count > 200
    assert inbox.counts["taken"] == 0
    assert all(torch.equal(a, g.theta) for a, g in zip(before, population.groups, strict=True))
    assert inbox.accept(message | {"sequence": count + 1}, 0)  # and this one is right


def test_ten_thousand_random_bytes(inbox, message):
    random = np.random.default_rng(1)
    names = list(message)
    for sequence in range(2, 10_002):
        name = names[random.integers(len(names))]
        value = message[name]
        if isinstance(value, torch.Tensor) and value.numel():
            raw = value.clone().contiguous().view(-1).view(torch.uint8).numpy()
            raw[random.integers(len(raw))] ^= random.integers(1, 256)
            value = torch.from_numpy(raw).view(value.dtype).view(value.shape)
        else:
            value = int(random.integers(-10, 2**40))
        inbox.accept({**message, "sequence": sequence, name: value}, 0)
    assert sum(inbox.counts.values()) - inbox.counts["refused_lag"] == 10_000


def test_an_actor_is_named_once_for_each_reason(population, message):
    inbox = inbox_of(population, slots=2)
    inbox.begin(0, 0)
    bad = {"slot": 1, "loss": message["loss"].float()}

    def refused_often():
        for sequence in range(1, 10):
            inbox.accept(message | bad | {"sequence": sequence}, 1)

    with pytest.warns(UserWarning, match=r"^actor 1: a message was refused \(type: loss") as told:
        refused_often()
    assert len(told) == 1


def test_weights_of_another_layout_are_refused(population):
    weights = WeightsMessage(population)(0, np.zeros(3, np.int64))
    other = population_of(make_env(), hidden=((8, 8), (9,), (80, 20)))
    with pytest.raises(RunError, match=r"weights: theta0 is .* instead of .* same version"):
        load_weights(other, weights, renewed=False)
    load_weights(other, weights, renewed=True)
    assert other.genomes == population.genomes
    for own, theirs in zip(other.groups, population.groups, strict=True):
        assert torch.equal(own.theta, theirs.theta)


@pytest.mark.parametrize(
    "algorithm", [IMPALA(rollout_steps=STEPS), DQN(n_step=3)], ids=["impala", "dqn"]
)
def test_what_is_learned_from_is_checked_too(algorithm):
    population = population_of(make_env(), algorithm)
    inbox = inbox_of(population, 1)
    inbox.begin(0, 0)
    message = message_of(population)
    sent = [name for name in message if name.startswith(("unroll.", "window."))]
    assert len(sent) == 8
    for count, name in enumerate(sent, start=2):
        value = message[name]
        for other in (value.to(torch.complex64), value[..., None], value[:0], None):
            assert refused(inbox, message | {name: other, "sequence": count})
        wrong = {torch.uint8: [200], torch.int64: [-7, 99], torch.float32: [torch.nan, 1e30]}
        for number in [] if name == "window.td_errors" else wrong.get(value.dtype, []):
            bad = torch.full_like(value, number)
            assert refused(inbox, message | {name: bad, "sequence": count})
    assert inbox.accept(message | {"sequence": 99}, 0) is not None


def refused(inbox, message):
    before = inbox.counts["taken"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = inbox.accept(message, 0)
    return found is None and inbox.counts["taken"] == before


def test_experience_is_checked_against_the_spaces():
    floats = ObservationSpec("vector", (2,), np.dtype(np.float32))
    pixels = ObservationSpec("image", (1, 2, 2), np.dtype(np.uint8))
    rooms = ObservationSpec("discrete", (), np.dtype(np.int64), n=4)
    one, box = ActionSpec("discrete", 3), ActionSpec("continuous", shape=(2,), dtype=FLOAT32)
    two = ActionSpec("multidiscrete", shape=(2,), parts=(2, 5))
    lead = (3, 6)
    for obs, action, good, bad in (
        (floats, one, torch.full((3, 6), 2), torch.full((3, 6), 3)),
        (floats, one, torch.zeros(3, 6, dtype=torch.int64), torch.full((3, 6), -1)),
        (pixels, two, torch.tensor([1, 4]).expand(3, 6, 2), torch.tensor([2, 1]).expand(3, 6, 2)),
        (rooms, box, torch.full((3, 6, 2), -1.5), torch.full((3, 6, 2), math.nan)),
    ):
        expected = experience_fields(obs, action, lead)
        expected["action"].check("action", good)
        with pytest.raises(Refused, match="range: action goes beyond"):
            expected["action"].check("action", bad)
    experience_fields(pixels, two, lead)["obs"].check("obs", torch.zeros(3, 6, 1, 2, 2).byte())
    for obs, value in ((rooms, torch.full(lead, 4)), (floats, torch.full((3, 6, 2), math.inf))):
        with pytest.raises(Refused, match="range: obs goes beyond"):
            experience_fields(obs, one, lead)["obs"].check("obs", value)
    with pytest.raises(Refused, match="type: ended is"):
        experience_fields(floats, one, lead)["ended"].check("ended", torch.zeros(lead))
