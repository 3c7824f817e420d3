"""The format of what travels on the bus: what is sent arrives, and nothing else does."""

import json
import math

import numpy as np
import pytest
import torch
import zmq
from hypothesis import given, settings, strategies as st

from evorl.bus import wire
from evorl.bus.wire import HEADER, MAGIC, Kind, Message, Refused, decode, encode
from evorl.errors import RunError

TENSORS = [
    torch.arange(24, dtype=torch.float32).view(2, 3, 4),
    torch.arange(6.0).view(2, 3).T,  # not contiguous
    torch.tensor(1.5, dtype=torch.float64),
    torch.tensor([[True, False]]),
    torch.empty(0, 3),
    torch.linspace(-1.7, 3.1, 5).bfloat16(),
    torch.linspace(-1.7, 3.1, 5).half(),
    torch.tensor([1 + 2j]).conj(),
    torch.arange(4).to(torch.uint64),
    torch.tensor([math.nan, math.inf, -0.0]),
    torch.ones(3, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
]
ARRAYS = [
    np.arange(6).reshape(2, 3)[:, ::2],
    np.arange(3, dtype=">i4"),
    np.array(2.5),
    np.array([True, False]),
    np.zeros((2, 0), np.uint16),
]
PLAIN = {
    "none": None,
    "flag": True,
    "number": 2**70,
    "real": 0.1,
    "odd": [math.inf, -1],
    "word": "né\n",
    "tree": {"a": [1, {"b": []}]},
}


def frame(data):
    return zmq.Frame(bytes(data), copy=True)


def message(fields, **changed):
    return Message(Kind.VALUE, 3, 9, "weights", 7, payload=encode(fields, "test"))._replace(
        **changed
    )


def refusal(frames):
    with pytest.raises(Refused) as refused:
        decode([frame(part) for part in frames])
    return refused.value.reason


def parts(fields, table=None, kind=Kind.VALUE, **header):
    """The frames of a message as bytes, with another table or header."""
    first, *buffers = [part.bytes for part in message(fields).frames()]
    head = list(HEADER.unpack_from(first))
    names = ("magic", "format", "kind", "failed", "origin", "session", "version", "sequence")
    names += ("name", "count", "table")
    for name, value in {"kind": kind, **header}.items():
        head[names.index(name)] = value
    rest = first[HEADER.size :]
    if table is not None:
        rest = b"weights" + (table if isinstance(table, bytes) else json.dumps(table).encode())
        head[names.index("table")] = len(rest) - len(b"weights")
    return [HEADER.pack(*head) + rest, *buffers]


@pytest.mark.parametrize("tensor", TENSORS, ids=str)
def test_tensors_arrive_bit_for_bit_in_memory_of_their_own(tensor):
    sent = message({"x": tensor})
    got = decode(sent.frames()).payload.fields()["x"]
    assert got.dtype == tensor.dtype
    assert got.shape == tensor.shape
    same = tensor.detach().resolve_conj().contiguous().flatten().view(torch.uint8)
    assert got.contiguous().flatten().view(torch.uint8).equal(same)
    assert not got.requires_grad
    assert got.data_ptr() % 64 == 0 or not got.numel()  # as torch's own: or the bits would differ
    if got.numel():
        got.zero_()
        assert sent.payload.fields()["x"].flatten().view(torch.uint8).equal(same)


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_arrive(array):
    got = decode(message({"x": array}).frames()).payload.fields()["x"]
    assert isinstance(got, np.ndarray)
    assert got.dtype == array.dtype.newbyteorder("=")
    assert got.shape == array.shape
    assert np.array_equal(got, array)
    assert got.flags.writeable


def test_what_is_overwritten_after_encoding_arrives_as_it_was():
    tensor, array = torch.ones(1000), np.ones(1000)
    payload = encode({"x": tensor, "y": array}, "test")
    tensor.zero_()
    array[:] = 0
    got = payload.fields()
    assert got["x"].eq(1).all()
    assert (got["y"] == 1).all()


def test_plain_values_arrive_and_numpy_numbers_become_plain():
    got = decode(message(PLAIN | {"scalar": np.float32(0.5), "pair": (1, 2)}).frames())
    assert got.payload.fields() == PLAIN | {"scalar": 0.5, "pair": [1, 2]}


def test_the_header_arrives():
    sent = Message(Kind.REPLY, 65535, 2**64 - 1, "né", -(2**63), 2**64 - 1, True)
    assert decode(sent.frames()) == sent


def test_two_reads_share_no_memory():
    payload = message({"x": torch.ones(3), "tree": {"a": []}}).payload
    one, two = payload.fields(), payload.fields()
    one["x"].zero_()
    one["tree"]["a"].append(1)
    assert two["x"].eq(1).all()
    assert two["tree"] == {"a": []}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"x": {1, 2}}, "publish 'w': x is set; send tensors, arrays, and plain values"),
        ({"x": {"a": torch.ones(1)}}, "publish 'w': x.a is Tensor below the top"),
        ({"x": {1: 2}}, "publish 'w': x is a dict with other keys than words"),
        ({"x": np.array(["a"])}, "publish 'w': x is an array of <U1"),
        ({"x": np.array([None])}, "publish 'w': x is an array of object"),
        ({"x": torch.eye(2).to_sparse()}, "publish 'w': x is a tensor of torch.float32, torch.spa"),
        ({3: 1}, "publish 'w': names of fields must be words, got 3"),
        ({"x": "a" * 2**20}, "publish 'w': at most 1,048,576 bytes of plain fields, got 1,048,6"),
        (
            {f"{i}": np.ones(1) for i in range(4097)},
            "publish 'w': at most 4,096 tensors, got 4,097",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_a_line_for_the_sender(fields, says):
    with pytest.raises(RunError) as error:
        encode(fields, "publish 'w'")
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_more_bytes_than_the_limit_are_refused_on_both_sides(monkeypatch):
    large = message({"x": torch.ones(1000)}).frames()
    monkeypatch.setattr(wire, "MAX_BYTES", 3999)
    with pytest.raises(RunError, match="at most 3,999 bytes, got 4,000"):
        encode({"x": torch.ones(1000)}, "test")
    with pytest.raises(Refused, match="too_large"):
        decode(large)


def test_deep_lists_are_refused():
    deep = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(RunError, match="x is list"):
        encode({"x": deep}, "test")
    assert refusal(parts({}, b'{"raw": [], "plain": {"x": ' + b"[" * 200_000)) == "malformed"


FIELD = ["x", "tensor", "float32", [2]]


@pytest.mark.parametrize(
    "raw",
    [
        *(None, {}, [FIELD, FIELD], [None], [[]], [FIELD[:3]], [["y", *FIELD[1:]], FIELD]),
        [[1, *FIELD[1:]]],
        [["x", "pickle", "float32", [2]]],
        [["x", "tensor", "object", [2]]],
        [["x", "array", "bfloat16", [4]]],
        [["x", "tensor", ["float32"], [2]]],
        [["x", "tensor", "float32", [3]]],
        [["x", "tensor", "float64", [2]]],
        [["x", "tensor", "float32", [-2]]],
        [["x", "tensor", "float32", [-2, -1]]],
        [["x", "tensor", "float32", [2.0]]],
        [["x", "tensor", "float32", [True, 2]]],
        [["x", "tensor", "float32", 2]],
        [["x", "tensor", "float32", "2"]],
        [["x", "tensor", "float32", [2] + [1] * 16]],
        [["x", "tensor", "float32", [2**62, 4]]],
    ],
    ids=str,
)
def test_a_table_that_does_not_fit_is_refused(raw):
    fields = {"x": torch.ones(2)}
    assert decode([frame(part) for part in parts(fields, {"raw": [FIELD], "plain": {}})])
    assert refusal(parts(fields, {"raw": raw, "plain": {}})) == "malformed"


def test_empty_shapes_cannot_ask_for_much_memory():
    for shape in ([0, 2**40], [0, 2**30, 2**30]):
        table = {"raw": [["x", "tensor", "float32", shape]], "plain": {}}
        assert refusal(parts({"x": torch.empty(0)}, table)) == "malformed"


@pytest.mark.parametrize(
    "table",
    [
        *(
            b" ",
            b"{",
            b"[]",
            b"null",
            b"\xff",
            {"raw": []},
            {"plain": {}},
            {"raw": [], "plain": []},
        ),
        {"raw": [], "plain": {}, "more": 1},
        b'{"raw": [], "plain": {"x": 1' + b"1" * 5000 + b"}}",
    ],
    ids=str,
)
def test_a_table_that_is_none_is_refused(table):
    assert refusal(parts({}, table)) == "malformed"


def test_a_plain_field_cannot_hide_a_tensor():
    table = {"raw": [FIELD], "plain": {"x": 1}}
    assert refusal(parts({"x": torch.ones(2)}, table)) == "malformed"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"magic": b"EVOC"}, "malformed"),
        ({"format": 2}, "other_format"),
        ({"kind": 0}, "malformed"),
        ({"kind": 99}, "malformed"),
        ({"failed": 2}, "malformed"),
        ({"origin": 65536}, "malformed"),
        ({"name": 6}, "malformed"),
        ({"name": 65535}, "malformed"),
        ({"count": 0}, "malformed"),
        ({"count": 2}, "malformed"),
        ({"table": 2**32 - 1}, "malformed"),
        ({"table": 0}, "malformed"),
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_refused(header, reason):
    assert refusal(parts({"x": torch.ones(2)}, **header)) == reason


def test_lost_and_added_and_cut_frames_are_refused():
    whole = parts({"x": torch.ones(2), "y": torch.ones(3)})
    assert decode([frame(part) for part in whole])
    assert refusal([]) == "malformed"
    assert refusal([b""]) == "malformed"
    for lost in range(3):
        assert refusal(whole[:lost] + whole[lost + 1 :]) == "malformed"
    assert refusal([*whole, b""]) == "malformed"
    assert refusal([whole[0], whole[2], whole[1]]) == "malformed"
    for cut in range(len(whole[0])):
        assert refusal([whole[0][:cut], *whole[1:]]) == "malformed"
    assert refusal([whole[0], whole[1][:-1], whole[2]]) == "malformed"
    assert refusal([whole[0], *[b""] * 4097]) == "too_large"
    assert refusal([whole[0] + b" " * 2**21, *whole[1:]]) == "too_large"


def test_no_byte_is_neither_true_nor_false():
    first, _ = parts({"x": torch.tensor([True, False, True])})
    assert decode([frame(first), frame(b"\x02\x00\xff")]).payload.fields()["x"].tolist() == [
        *(True, False, True)
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_bytes_are_refused(frames):
    assert refusal(frames) in ("malformed", "too_large", "other_format")


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_still_a_message(data):
    """Nothing but Refused is ever raised, also by reading what was accepted."""
    whole = parts({"x": torch.ones(4), "y": np.ones(2), "z": {"a": [1.5, "b"]}})
    which = data.draw(st.integers(0, len(whole) - 1))
    part = bytearray(whole[which])
    for _ in range(data.draw(st.integers(1, 4))):
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    whole[which] = bytes(part)
    try:
        got = decode([frame(part) for part in whole])
    except Refused:
        return
    got.payload.fields()


def test_the_header_is_as_documented():
    assert HEADER.size == 44
    assert message({}).frames()[0].bytes.startswith(MAGIC + bytes([1, Kind.VALUE, 0, 0, 3, 0]))
