"""Random numbers keyed by what they are for, so that no draw depends on any other.

Every generator comes from (run seed, purpose, further keys such as generation and agent). Nothing
in evorl touches a global generator: another agent, rank or stage changes nobody else's numbers.
"""

import zlib
from collections.abc import Collection

import numpy as np


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator for one purpose; the same arguments give the same numbers for ever."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *keys)))


def integers(seed: int, purpose: str, *keys: int, count: int) -> list[int]:
    """Seeds for something that takes plain integers, such as environments."""
    words = _sequence(seed, purpose, *keys).generate_state(count, np.uint32)
    return [int(word >> 2) for word in words]  # below 2^30: see held_out


def held_out(seed: int, count: int) -> list[int]:
    """Episode seeds that nothing else can have used; of 31 bits, as some environments take."""
    return [2**30 + word for word in integers(seed, "held-out", count=count)]


def fresh(stream: int, count: int, used: Collection[int]) -> list[int]:
    """Episode seeds for a score after training, from the held-out half and none of them `used`.

    They depend on the stream and not on the run: agents of several runs meet the same episodes.
    """
    found = dict[int, None]()  # in order, each once
    block = 0
    while len(found) < count:
        words = integers(stream, "fresh", block, count=1024)
        found |= {2**30 + word: None for word in words if 2**30 + word not in used}
        block += 1
    return list(found)[:count]


def _sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), len(keys), *keys])
