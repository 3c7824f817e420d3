"""Catch: a small image environment with a known optimum, of 1.0 an episode.

    env: {id: "evorl.envs.catch:Catch-v0"}

A ball falls through a board of 12 × 12 fields, straight or aslant, and bounces off the walls; the
paddle at the bottom must be where it lands. An observation is the board now and the board a step
ago, so that it shows where the ball is going. From where it starts the paddle can reach every
field in time.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

SIZE = 12
LEFT, STAY, RIGHT = range(3)
PIXELS = 16  # of a field, when rendered
BALL, PADDLE = (250, 190, 60), (90, 170, 250)


class Catch(gym.Env[npt.NDArray[np.uint8], np.int64]):
    """One ball is an episode: +1 if it is caught, -1 if not."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012 (Gymnasium's)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (2, SIZE, SIZE), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self._row = self._column = self._drift = self._paddle = 0
        self._board = np.zeros((SIZE, SIZE), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """A new ball in the top row, and the paddle in the middle."""
        super().reset(seed=seed)
        self._row, self._paddle = 0, SIZE // 2
        self._column = int(self.np_random.integers(SIZE))
        self._drift = int(self.np_random.integers(-1, 2))
        self._board = self._draw()
        return self._observe(), {}

    def step(
        self, action: np.int64
    ) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the paddle by one field at most, and the ball by a row."""
        self._paddle = min(max(self._paddle + int(action) - STAY, 0), SIZE - 1)
        self._row += 1
        if not 0 <= self._column + self._drift < SIZE:
            self._drift = -self._drift
        self._column += self._drift
        landed = self._row == SIZE - 1
        reward = (1.0 if self._column == self._paddle else -1.0) if landed else 0.0
        return self._observe(), reward, landed, False, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """The board in colours."""
        image = np.full((SIZE, SIZE, 3), 24, np.uint8)
        image[-1, self._paddle] = PADDLE
        image[self._row, self._column] = BALL
        return image.repeat(PIXELS, 0).repeat(PIXELS, 1)

    def _observe(self) -> npt.NDArray[np.uint8]:
        before, self._board = self._board, self._draw()
        return np.stack([self._board, before])

    def _draw(self) -> npt.NDArray[np.uint8]:
        board = np.zeros((SIZE, SIZE), np.uint8)
        board[-1, self._paddle] = board[self._row, self._column] = 255
        return board


gym.register("Catch-v0", "evorl.envs.catch:Catch", max_episode_steps=SIZE)
