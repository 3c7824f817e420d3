"""Random numbers keyed by what they are for, so that no draw depends on any other.

Every generator comes from (run seed, purpose, further keys such as generation and agent). Nothing in
evorl touches a global generator: adding an agent, a rank or a stage changes nobody else's numbers.
"""

import zlib

import numpy as np


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator for one purpose; the same arguments give the same numbers for ever."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *keys)))


def integers(seed: int, purpose: str, *keys: int, count: int) -> list[int]:
    """Seeds for something that takes plain integers, such as environments."""
    words = _sequence(seed, purpose, *keys).generate_state(count, np.uint32)
    return [int(word >> 1) for word in words]  # 31 bits: some environments refuse more


def _sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *keys])
