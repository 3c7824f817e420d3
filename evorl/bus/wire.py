"""What travels on the bus: a header with a bounded JSON table, then raw buffers, a frame each.

    frame 0    magic, format, kind, failed, origin, session, version, sequence, lengths (HEADER)
               name (UTF-8), table (JSON: {"raw": [[field, "tensor", "float32", [2, 3]], …],
               "plain": {field: value, …}}; nothing where there are no fields)
    frame 1…   the bytes of each raw field, in the table's order, little-endian

`decode` checks all of it and raises Refused; it never trusts a length, a shape or a type.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
import zmq
from torch import Tensor

from evorl.errors import RunError

MAGIC, FORMAT = b"EVOB", 1
HEADER = struct.Struct("<4sBBBxIQqQHHI")
MAX_NAME = 256  # bytes
MAX_TABLE = 2**20  # bytes: plain fields are for numbers and words
MAX_FRAMES = 4096  # raw fields of one message
MAX_BYTES = 2**30  # of one message
MAX_DIMENSIONS = 16
MAX_DEPTH = 32  # of plain lists and dicts
MAX_RANK = 2**16 - 1

TORCH = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"),
        *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
    )
}
NUMPY = {name: np.dtype(name) for name in TORCH if name != "bfloat16"}
ITEM_SIZE = {name: dtype.itemsize for name, dtype in TORCH.items()}
NAMES = {dtype: name for name, dtype in TORCH.items()}
TO_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)
SENDABLE = "send tensors, arrays, and plain values (None, bool, int, float, str, list, dict)"


class Kind(IntEnum):
    """What a message is for."""

    HELLO = 1  # who dials says who it is
    WELCOME = 2  # and so does who answers
    REFUSED = 3  # or it says why not
    BYE = 4
    PING = 5  # shows that the connection is still there
    VALUE = 6  # published
    SEEN = 7  # acknowledges a value
    MESSAGE = 8  # of a queue
    REQUEST = 9
    REPLY = 10
    TAKEN = 11  # acknowledges messages, requests or replies up to a sequence number


KINDS = {int(kind): kind for kind in Kind}


class Refused(Exception):
    """A message that is not what it should be; the reason is how it is counted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RawField(NamedTuple):
    """A field that travels as bytes."""

    name: str
    type: str  # tensor or array
    dtype: str
    shape: tuple[int, ...]


class Payload(NamedTuple):
    """Fields as they travel: immutable, and shared by all messages that carry them."""

    table: bytes
    raw: tuple[RawField, ...]
    plain: Mapping[str, Any]
    buffers: tuple[zmq.Frame, ...]

    def fields(self) -> dict[str, Any]:
        """The fields in memory of their own, tensors on the CPU and aligned as torch does."""
        found = {
            field.name: _tensor(field, buffer) if field.type == "tensor" else _array(field, buffer)
            for field, buffer in zip(self.raw, self.buffers, strict=True)
        }
        return found | json.loads(self.table)["plain"] if self.plain else found


EMPTY = Payload(b"", (), {}, ())


class Message(NamedTuple):
    """A message whose format is right."""

    kind: Kind
    origin: int  # the rank that it comes from, also where another one passed it on
    session: int  # of that process: another one if a process of the same rank took its place
    name: str = ""
    version: int = 0
    sequence: int = 0
    failed: bool = False
    payload: Payload = EMPTY

    def frames(self) -> list[zmq.Frame]:
        """What is sent."""
        name, table, buffers = self.name.encode(), self.payload.table, self.payload.buffers
        head = (self.kind, self.failed, self.origin, self.session, self.version, self.sequence)
        fixed = HEADER.pack(MAGIC, FORMAT, *head, len(name), len(buffers), len(table))
        return [zmq.Frame(fixed + name + table, copy=True), *buffers]


def encode(fields: Mapping[str, Any], what: str) -> Payload:
    """Copies the fields once, into memory that only the bus has; `what` is for errors."""
    raw: list[RawField] = []
    buffers: list[zmq.Frame] = []
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        if not isinstance(name, str):
            raise RunError(f"{what}: names of fields must be words, got {name!r}")
        if isinstance(value, Tensor | np.ndarray):
            field, buffer = _raw(name, value, what)
            raw.append(field)
            buffers.append(buffer)
        else:
            plain[name] = _plain(value, f"{what}: {name}")
    if not fields:
        return EMPTY
    table = TO_JSON.encode({"raw": raw, "plain": plain}).encode()
    _check_size(len(table), MAX_TABLE, "bytes of plain fields", what)
    _check_size(len(raw), MAX_FRAMES, "tensors", what)
    _check_size(sum(map(len, buffers)), MAX_BYTES, "bytes", what)
    return Payload(table, tuple(raw), plain, tuple(buffers))


def _check_size(size: int, limit: int, unit: str, what: str) -> None:
    if size > limit:
        raise RunError(f"{what}: at most {limit:,} {unit}, got {size:,}; send less at a time")


def decode(frames: Sequence[zmq.Frame]) -> Message:
    """The message in these frames; Refused if anything about it is wrong."""
    if not frames or len(frames[0]) < HEADER.size:
        raise Refused("malformed")
    if len(frames) > MAX_FRAMES + 1 or len(frames[0]) > HEADER.size + MAX_NAME + MAX_TABLE:
        raise Refused("too_large")
    if sum(map(len, frames)) > MAX_BYTES + len(frames[0]):
        raise Refused("too_large")
    first = frames[0].bytes
    magic, of_format, kind, failed, origin, session, *numbers = HEADER.unpack_from(first)
    version, sequence, of_name, count, of_table = numbers
    if magic != MAGIC:
        raise Refused("malformed")
    if of_format != FORMAT:
        raise Refused("other_format")
    whole = HEADER.size + of_name + of_table == len(first) and count == len(frames) - 1
    if kind not in KINDS or not whole or failed > 1 or origin > MAX_RANK or of_name > MAX_NAME:
        raise Refused("malformed")
    try:
        name = first[HEADER.size : HEADER.size + of_name].decode()
        payload = _payload(first[HEADER.size + of_name :], tuple(frames[1:]))
        head = (KINDS[kind], origin, session, name, version, sequence, bool(failed))
        return Message(*head, payload)
    except (ValueError, RecursionError) as error:  # of JSON or UTF-8
        raise Refused("malformed") from error


def check_name(name: str, what: str) -> str:
    """A name of a value, queue or request; those with a $ in front are the bus's own."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_NAME or name[0] == "$":
        raise RunError(
            f"{what}: a name must be a word of at most {MAX_NAME} bytes, without a $ in front,"
            f" got {name!r}"
        )
    return name


def _payload(table: bytes, buffers: tuple[zmq.Frame, ...]) -> Payload:
    """Checks the table of a message against its buffers."""
    if not table and not buffers:
        return EMPTY
    read = json.loads(table)
    if not isinstance(read, dict) or read.keys() != {"raw", "plain"}:
        raise Refused("malformed")
    raw, plain = read["raw"], read["plain"]
    if not isinstance(raw, list) or not isinstance(plain, dict) or len(raw) != len(buffers):
        raise Refused("malformed")
    fields = tuple(_raw_field(entry) for entry in raw)
    names = {field.name for field in fields}
    if len(names) != len(fields) or names & plain.keys():
        raise Refused("malformed")
    for field, buffer in zip(fields, buffers, strict=True):
        if math.prod(field.shape) * ITEM_SIZE[field.dtype] != len(buffer):
            raise Refused("malformed")
    return Payload(table, fields, plain, buffers)


def _raw_field(entry: Any) -> RawField:
    if not isinstance(entry, list) or len(entry) != 4:
        raise Refused("malformed")
    name, kind, dtype, shape = entry
    if not isinstance(name, str) or kind not in ("tensor", "array") or not isinstance(dtype, str):
        raise Refused("malformed")
    if dtype not in (TORCH if kind == "tensor" else NUMPY):
        raise Refused("malformed")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise Refused("malformed")
    # Where one is 0 the others are not bounded by the bytes that came.
    if not all(type(length) is int and 0 <= length <= MAX_BYTES for length in shape):
        raise Refused("malformed")
    if math.prod(length for length in shape if length) > 8 * MAX_BYTES:
        raise Refused("malformed")
    return RawField(name, kind, dtype, tuple(shape))


def _raw(name: str, value: Any, what: str) -> tuple[RawField, zmq.Frame]:
    """A tensor or array as bytes; they are copied once if they are next to each other."""
    if isinstance(value, Tensor):
        dtype = NAMES.get(value.dtype)
        if dtype is None or value.layout != torch.strided:
            raise RunError(
                f"{what}: {name} is a tensor of {value.dtype}, {value.layout}; send a dense one"
                " of another type"
            )
        data = value.detach().cpu()
        if not data.is_contiguous() or data.is_conj() or data.is_neg():
            data = data.resolve_conj().resolve_neg().contiguous()
        array = (data.view(torch.int16) if dtype == "bfloat16" else data).numpy()
        field = RawField(name, "tensor", dtype, tuple(value.shape))
    else:
        native = value.dtype.newbyteorder("=")
        if native.name not in NUMPY or NUMPY[native.name] != native:
            raise RunError(f"{what}: {name} is an array of {value.dtype}; {SENDABLE}")
        array = np.ascontiguousarray(value, native)
        field = RawField(name, "array", native.name, value.shape)
    with memoryview(array.data) as view:  # or the frame would keep the caller's memory
        return field, zmq.Frame(view, copy=True)


def _plain(value: Any, what: str, depth: int = 0) -> Any:
    """A value that JSON gives back as it is, but for tuples, which become lists."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth < MAX_DEPTH:
        if isinstance(value, list | tuple):
            return [_plain(item, what, depth + 1) for item in value]
        if isinstance(value, dict) and all(type(key) is str for key in value):
            return {key: _plain(item, f"{what}.{key}", depth + 1) for key, item in value.items()}
    got = "a dict with other keys than words" if isinstance(value, dict) else type(value).__name__
    inside = " below the top" if depth and isinstance(value, Tensor | np.ndarray) else ""
    raise RunError(f"{what} is {got}{inside}; {SENDABLE}")


def _tensor(field: RawField, buffer: zmq.Frame) -> Tensor:
    dtype = TORCH[field.dtype]
    if not len(buffer):
        return torch.empty(field.shape, dtype=dtype)
    if dtype == torch.bool:  # a byte may be neither 0 nor 1
        return torch.frombuffer(buffer.buffer, dtype=torch.uint8).ne(0).view(field.shape)
    return torch.frombuffer(buffer.buffer, dtype=dtype).clone().view(field.shape)


def _array(field: RawField, buffer: zmq.Frame) -> np.ndarray[Any, Any]:
    dtype = NUMPY[field.dtype]
    if dtype == np.bool_:
        return np.not_equal(np.frombuffer(buffer.buffer, np.uint8).reshape(field.shape), 0)
    return np.frombuffer(buffer.buffer, dtype).reshape(field.shape).copy()
