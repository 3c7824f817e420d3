"""Watch: an agent plays, greedily, and every step is a frame of a film."""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from evorl.envs.make import Env, make_env
from evorl.envs.rebuilding import Failure, with_trace
from evorl.errors import ConfigError, EvorlError, RunError, one_line
from evorl.population.population import Population
from evorl.reporting.console import Console
from evorl.shipping.pick import Picked
from evorl.shipping.video import GIF_MOST, Film, Frame, check_place, filming
from evorl.training.score import alone

FPS = 30.0  # where the environment does not say

# No window, no sound, no greeting: what pygame reads when it is imported.
HEADLESS = {
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
}


class Episode(NamedTuple):
    """An episode that was filmed."""

    seed: int
    score: float  # undiscounted return
    steps: int
    cut: bool  # by the limit of steps


class Watched(NamedTuple):
    """All episodes of a film."""

    episodes: list[Episode]
    frames: int
    fps: float


def watch(
    picked: Picked,
    seeds: Sequence[int],
    output: Path,
    console: Console,
    *,
    fps: float | None = None,
    max_steps: int | None = None,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> Watched:
    """Film one episode for each seed, and write it to `output`."""
    check_place(output)
    gif = output.suffix.lower() == ".gif"
    if gif and fps is not None and fps > GIF_MOST:
        raise ConfigError(f"--fps: a .gif shows {GIF_MOST} frames a second at most, got {fps:g}")
    limit = max_steps or picked.config.evaluation.final_max_steps
    with _rendering(picked) as env:
        rate = fps or float(env.metadata.get("render_fps") or FPS)
        rate = min(rate, GIF_MOST) if gif else rate
        agent = alone(picked.agent)
        known = env.spec.max_episode_steps if env.spec else None
        longest = min(limit, known or limit)
        console.start(len(seeds) * longest, "filming", "step")
        episodes = []
        try:
            with filming(output, rate) as film:
                for seed in seeds:
                    player = Player(env, agent, picked, film, console)
                    episodes.append(player.play(seed, limit))
                    console.advance(max(0, longest - episodes[-1].steps))
                    on_episode(episodes[-1])
        finally:
            console.close()
        return Watched(episodes, film.frames, rate)


class Player(NamedTuple):
    """Who plays where, and who films it."""

    env: Env
    agent: Population
    picked: Picked
    film: Film
    console: Console

    def play(self, seed: int, limit: int) -> Episode:
        """One episode: its first picture, and one after every step."""
        env_id = self.picked.spec.id
        with _telling(env_id):
            raw, _ = self.env.reset(seed=seed)
        self.film.add(_frame(self.env, env_id))
        score, over, steps = 0.0, False, 0
        while steps < limit and not over:
            action = self._action(raw)
            with _telling(env_id):
                raw, reward, terminated, truncated, _ = self.env.step(action)
            self.film.add(_frame(self.env, env_id))
            score += float(np.float32(reward))  # as evaluation adds them up
            over, steps = bool(terminated or truncated), steps + 1
            self.console.advance(1)
        return Episode(seed, score, steps, not over)

    def _action(self, raw: Any) -> Any:
        adapter = self.picked.interface.adapter
        obs = adapter.observations(np.asarray(raw)[None])
        greedy, nothing = np.zeros((1, 1), dtype=bool), np.zeros((1, 1), dtype=np.int64)
        return adapter.actions(self.agent.act(obs[None], greedy, nothing)[0])[0]


@contextmanager
def _rendering(picked: Picked) -> Iterator[Env]:
    """The run's environment, one that gives pictures; RunError if it has none to give."""
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)
    spec = replace(picked.spec, backend="sync")
    env_id = spec.id
    plain = make_env(spec)
    modes = list(plain.metadata.get("render_modes") or ())
    plain.close()
    if "rgb_array" not in modes:
        has = f"its render modes are {', '.join(map(str, modes))}" if modes else "it cannot render"
        raise RunError(one_line(f"{picked.path}: {env_id!r} gives no pictures: {has}"))
    env = make_env(replace(spec, kwargs={**spec.kwargs, "render_mode": "rgb_array"}))
    try:
        yield env
    finally:
        env.close()


def _frame(env: Env, env_id: str) -> Frame:
    with _telling(env_id):
        picture: Any = env.render()
    frame = np.asarray(picture)
    if frame.ndim == 2:  # grey
        frame = np.stack([frame] * 3, 2)
    if frame.ndim != 3 or frame.shape[2] not in (3, 4) or frame.dtype != np.uint8:
        what = f"{frame.dtype} of shape {frame.shape}" if frame.ndim else type(picture).__name__
        raise RunError(one_line(f"{env_id!r} gives no pictures to film: its render() gave {what}"))
    return frame[:, :, :3]


@contextmanager
def _telling(env_id: str) -> Iterator[None]:
    """What an environment raises is one line, after its own traceback."""
    try:
        yield
    except EvorlError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        what = f"{env_id!r} needs a package to render that is not installed: {error}"
        raise RunError(one_line(what)) from None
    except Exception:
        failure = Failure(0, traceback.format_exc())
        raise with_trace(f"{env_id!r} raised while it was filmed", failure) from None
