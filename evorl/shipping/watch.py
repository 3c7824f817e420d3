"""Watch: an agent plays greedily, and every step is a frame of a film, as .mp4 or .gif.

The film is written by the ffmpeg that comes with imageio-ffmpeg.
"""

import importlib
import os
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from evorl.envs import Env, Failure, make_env, with_trace
from evorl.errors import ConfigError, EvorlError, RunError, one_line
from evorl.reporting import Console
from evorl.runs import Agent
from evorl.shipping.select import Selected

FPS = 30.0  # where the environment does not say
SMALLEST = 160  # pixels of the shorter side: smaller pictures are enlarged by a whole factor
GIF_MOST = 50  # frames a second; viewers slow down what is faster
PALETTES = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none"
OPTIONS: dict[str, dict[str, Any]] = {
    ".mp4": {"codec": "libx264", "pix_fmt_out": "yuv420p"},
    ".gif": {
        "codec": "gif",
        "pix_fmt_out": "pal8",
        "output_params": ["-filter_complex", PALETTES, "-loop", "0"],
    },
}

# No window, no sound, no greeting: what pygame reads when it is imported.
HEADLESS = {
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
}


Frame = NDArray[np.uint8]  # [H, W, 3]


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


def watch_agent(
    selected: Selected,
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
    agent = Agent(selected.agent)
    limit = max_steps or selected.config.evaluation.final_max_steps
    with _rendering(selected) as env:
        rate = fps or float(env.metadata.get("render_fps") or FPS)
        rate = min(rate, GIF_MOST) if gif else rate
        known = env.spec.max_episode_steps if env.spec else None
        longest = min(limit, known or limit)
        console.start(len(seeds) * longest, "filming", "step")
        episodes = []
        try:
            with filming(output, rate) as film:
                player = Player(env, selected.spec.id, agent, film, console)
                for seed in seeds:
                    episodes.append(player.play(seed, limit))
                    console.advance(max(0, longest - episodes[-1].steps))
                    on_episode(episodes[-1])
        finally:
            console.close()
        return Watched(episodes, film.frames, rate)


class Player(NamedTuple):
    """Who plays where, and who films it."""

    env: Env
    env_id: str
    agent: Agent
    film: "Film"
    console: Console

    def play(self, seed: int, limit: int) -> Episode:
        """One episode: its first picture, and one after every step."""
        with _explaining(self.env_id):
            obs, _ = self.env.reset(seed=seed)
        self.film.add(_frame(self.env, self.env_id))
        score, over, steps = 0.0, False, 0
        while steps < limit and not over:
            action = self.agent.act(obs)
            with _explaining(self.env_id):
                obs, reward, terminated, truncated, _ = self.env.step(action)
            self.film.add(_frame(self.env, self.env_id))
            score += float(np.float32(reward))  # as evaluation adds them up
            over, steps = bool(terminated or truncated), steps + 1
            self.console.advance(1)
        return Episode(seed, score, steps, not over)


@contextmanager
def _rendering(selected: Selected) -> Iterator[Env]:
    """The run's environment, one that gives pictures; RunError if it has none to give."""
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)
    spec = replace(selected.spec, backend="sync")
    env_id = spec.id
    plain = make_env(spec)
    modes = list(plain.metadata.get("render_modes") or ())
    plain.close()
    if "rgb_array" not in modes:
        has = f"its render modes are {', '.join(map(str, modes))}" if modes else "it cannot render"
        raise RunError(one_line(f"{selected.path}: {env_id!r} gives no pictures: {has}"))
    env = make_env(replace(spec, kwargs={**spec.kwargs, "render_mode": "rgb_array"}))
    try:
        yield env
    finally:
        env.close()


def _frame(env: Env, env_id: str) -> Frame:
    with _explaining(env_id):
        picture: Any = env.render()
    frame = np.asarray(picture)
    if frame.ndim == 2:  # grey
        frame = np.stack([frame] * 3, 2)
    if frame.ndim != 3 or frame.shape[2] not in (3, 4) or frame.dtype != np.uint8:
        what = f"{frame.dtype} of shape {frame.shape}" if frame.ndim else type(picture).__name__
        raise RunError(one_line(f"{env_id!r} gives no pictures to film: its render() gave {what}"))
    return frame[:, :, :3]


@contextmanager
def _explaining(env_id: str) -> Iterator[None]:
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


# The film


class Film:
    """A film that is being written; all frames have the size of the first."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._ffmpeg: Any = importlib.import_module("imageio_ffmpeg")
        self._shape: tuple[int, ...] | None = None
        self._writer: Generator[None, Frame | None, None] | None = None

    def add(self, frame: Frame) -> None:
        """One more frame."""
        if self._writer is None:
            self._shape = frame.shape
            self._writer = self._begin(_fit(frame))
        if frame.shape != self._shape:
            raise ValueError(f"frames change their size from {self._shape} to {frame.shape}")
        self._writer.send(np.ascontiguousarray(_fit(frame)))
        self.frames += 1

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def check(self) -> None:
        """ValueError unless all frames are in the file."""
        found, _ = self._ffmpeg.count_frames_and_secs(str(self.path))
        if found != self.frames:
            raise ValueError(f"ffmpeg wrote {found} of {self.frames} frames")

    def _begin(self, frame: Frame) -> Generator[None, Frame | None, None]:
        height, width = frame.shape[:2]
        writer: Generator[None, Frame | None, None] = self._ffmpeg.write_frames(
            str(self.path),
            (width, height),
            fps=self.fps,
            macro_block_size=1,
            ffmpeg_log_level="quiet",  # what goes wrong is one line of ours
            **OPTIONS[self.path.suffix.lower()],
        )
        writer.send(None)
        return writer


def check_place(path: Path) -> None:
    """An error if no film can be written there."""
    if path.suffix.lower() not in OPTIONS:
        raise ConfigError(one_line(f"--output: {path} must end in .mp4 or .gif"))
    try:
        if not path.parent.is_dir():
            raise RunError(one_line(f"{path}: there is no folder {path.parent}; make it first"))
        if path.is_dir():
            raise RunError(one_line(f"{path}: is a folder; give the name of a file"))
    except (OSError, ValueError) as error:
        raise RunError(one_line(f"{path}: cannot be used: {error}")) from None


@contextmanager
def filming(path: Path, fps: float) -> Iterator[Film]:
    """A film that is there when it is whole, and not before; it takes the place of an older one."""
    aside = path.with_name(f".{path.stem}.new-{os.getpid()}{path.suffix}")
    film = None
    try:
        aside.touch()  # says why it cannot be written better than ffmpeg does
        film = Film(aside, fps)
        yield film
        film.close()
        film.check()
        aside.replace(path)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # ffmpeg's are of these
        known = getattr(error, "strerror", None) or str(error).strip() or repr(error)
        reason = known.splitlines()[0]
        raise RunError(one_line(f"{path}: cannot be written: {reason}")) from None
    finally:
        with suppress(Exception):
            if film is not None:
                film.close()
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def _fit(frame: Frame) -> Frame:
    """Large enough to see, and with even sides, which H.264 wants."""
    factor = -(-SMALLEST // min(frame.shape[:2]))
    if factor > 1:
        frame = frame.repeat(factor, 0).repeat(factor, 1)
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return frame
