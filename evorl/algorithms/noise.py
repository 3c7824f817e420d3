"""The random part of acting, drawn for each agent by itself and ahead of time.

Legend: P agents, N environments of an agent, T iterations of a block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evorl.algorithms.base import Algorithm
from evorl.envs import ActionSpec

BLOCK = 256  # iterations drawn at once; a draw for each would cost more than the network

Noise = Mapping[str, npt.NDArray[Any]]


def coloured_noise(
    random: np.random.Generator, size: tuple[int, ...], color: float
) -> npt.NDArray[np.float32]:
    """Standard normal numbers [T, ...] whose power falls as 1 / frequency**color along time.

    0 is white noise, 1 pink, 2 red: the more, the longer an agent keeps pushing in one direction.
    """
    white = random.standard_normal(size, np.float32)
    length = len(white)
    if color == 0 or length < 2:
        return white
    frequency = np.maximum(np.abs(np.fft.fftfreq(length)), 1 / length)  # 0 as the lowest one
    scale = frequency ** (-color / 2)
    scale /= np.sqrt(np.mean(scale * scale))  # a spread of 1
    shaped = scale[: length // 2 + 1].reshape(-1, *[1] * (white.ndim - 1))
    return np.fft.irfft(np.fft.rfft(white, axis=0) * shaped, length, axis=0).astype(np.float32)


class NoiseStreams:
    """One stream of draws per agent: adding an agent changes nobody else's actions."""

    def __init__(self, algorithm: Algorithm, num_envs: int, action: ActionSpec) -> None:
        self.algorithm, self.num_envs, self.action = algorithm, num_envs, action
        self.reseed(())

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """New streams, one per agent; what was drawn ahead is dropped."""
        self._generators = list(generators)
        self._place = BLOCK

    def draw(self) -> Noise:
        """The noise of one iteration, [P, N, ...] by name."""
        if self._place == BLOCK:
            shape = (BLOCK, self.num_envs)
            each = [self.algorithm.noise(own, shape, self.action) for own in self._generators]
            self._block = {
                name: np.stack([own[name] for own in each], 1) for name in each[0]
            }  # [T, P, N, ...]
            self._place = 0
        place, self._place = self._place, self._place + 1
        return {name: values[place] for name, values in self._block.items()}
