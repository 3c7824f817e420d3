"""An agent of a run at play: which one it is, and a film of it, as .mp4 or .gif.

This only reads the run, and it works while the run trains. The film is written by the ffmpeg that
comes with imageio-ffmpeg.
"""

import os
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from evorl.config import RunConfig
from evorl.envs import (
    Env,
    EnvSpec,
    Failure,
    SpaceAdapter,
    make_env,
    spaces_of,
    steps_limit,
    with_trace,
)
from evorl.errors import ConfigError, RunError
from evorl.networks import Spec
from evorl.pipeline import POPULATION, Snapshot
from evorl.reporting import Console
from evorl.runs import Agent, Interface, RunDirectory, SavedAgent, make_checkpoints, reading
from evorl.seeding import held_out
from evorl.training import checked_algorithm, env_spec, make_networks

FPS = 30.0  # where the environment does not say
SMALLEST = 160  # pixels of the shorter side: smaller pictures are enlarged by a whole factor
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
HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
HEADLESS |= {"PYGAME_HIDE_SUPPORT_PROMPT": "1"}

Frame = NDArray[np.uint8]  # [H, W, 3]


class Selected(NamedTuple):
    """An agent of a run, and where it plays."""

    path: Path  # of the run
    config: RunConfig
    spec: EnvSpec
    agent: SavedAgent
    title: str  # such as `agent 6, the best, as of generation 9`

    @property
    def heading(self) -> str:
        """What was selected, to print."""
        return f"{self.path}: {self.config.env.id}, {self.title}"

    @property
    def used_seeds(self) -> set[int]:
        """The run's held-out seeds; those of training and selection are of another range."""
        return set(held_out(self.config.seed, self.config.evaluation.final_episodes))


def select_agent(run: str | Path, id: int | None = None) -> Selected:
    """The run's best agent, or the one of this id in its newest checkpoint."""
    directory = RunDirectory.open(run)
    config = directory.config()
    spec = env_spec(config)
    spaces = spaces_of(spec)
    networks = make_networks(config, spaces.observation, spaces.action)
    specs = {name: own.spec for name, own in networks.items()}
    if id is None:
        agent = directory.best()
        when = agent.facts.get("generation")
        title = f"agent {agent.genome.id}, the best, as of generation {when}"
    else:
        agent = _of_checkpoint(directory, config, specs, spaces, id)
        title = f"agent {id}, as of checkpoint {agent.facts['checkpoint']}"
    if (agent.specs, agent.interface) != (specs, Interface.of(spaces)):
        what = "the environment's observations or actions are not those that it was trained with"
        raise RunError(f"{directory.path}: agent {agent.genome.id}: {what}")
    return Selected(directory.path, config, spec, agent, title)


def _of_checkpoint(
    directory: RunDirectory,
    config: RunConfig,
    specs: dict[str, Spec],
    spaces: SpaceAdapter,
    id: int,
) -> SavedAgent:
    checkpoint = make_checkpoints(config, directory, directory.schedule()).newest([POPULATION])
    if checkpoint is None:
        raise RunError(f"{directory.path}: has no checkpoint yet; leave --agent out for the best")
    with reading(checkpoint.path):
        agents = Snapshot.read(checkpoint)
    places = {one.id: i for i, one in enumerate(agents.genomes) if agents.alive[i]}
    if id not in places:
        ids = ", ".join(map(str, sorted(places)))
        raise RunError(f"{directory.path}: no agent {id}; its newest checkpoint has {ids}")
    agent = SavedAgent(
        agents.genomes[places[id]],
        specs,
        agents.states[places[id]].online,
        checked_algorithm(config).model_dump(mode="json"),
        Interface.of(spaces),
        {"env": config.env.id, "place": places[id], "checkpoint": checkpoint.path.name},
    )
    try:
        agent.check()
    except ValueError as error:
        raise RunError(f"{directory.path}: agent {id}: {error}") from None
    return agent


# The film


class Episode(NamedTuple):
    """An episode that was filmed."""

    seed: int
    score: float  # undiscounted return
    steps: int
    cut: bool  # by the limit of steps


def watch_agent(
    selected: Selected, seeds: Sequence[int], output: Path, console: Console
) -> list[Episode]:
    """Film one episode for each seed, and write it to `output`."""
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)
    spec = replace(selected.spec, backend="sync")
    with closing(make_env(spec)) as plain:
        modes = plain.metadata.get("render_modes") or ()
    if "rgb_array" not in modes:
        has = f"its render modes are {', '.join(map(str, modes))}" if modes else "it cannot render"
        raise RunError(f"{selected.path}: {spec.id!r} gives no pictures: {has}")
    agent = Agent(selected.agent)
    filmed = replace(spec, kwargs={**spec.kwargs, "render_mode": "rgb_array"})
    env = make_env(filmed, masked=False)
    own = env.spec.max_episode_steps if env.spec else None
    limit = steps_limit(selected.config.evaluation.final_max_steps, own)
    episodes: list[Episode] = []

    def frames() -> Iterator[Frame]:
        try:
            for seed in seeds:
                episodes.append((yield from _play(env, agent, seed, limit)))
                console.advance(1)
        except RunError:
            raise
        except Exception:  # of the environment, whatever it is
            failure = Failure(0, traceback.format_exc())
            raise with_trace(f"{spec.id!r} raised while it was filmed", failure) from None

    with closing(env), closing(console):
        console.start(len(seeds), "filming", "episode")
        write_film(output, frames(), float(env.metadata.get("render_fps") or FPS))
    return episodes


def _play(env: Env, agent: Agent, seed: int, limit: int) -> Generator[Frame, None, Episode]:
    """One episode: its first picture, and one after every step."""
    obs, info = env.reset(seed=seed)
    yield _picture(env)
    score, over, steps = 0.0, False, 0
    while steps < limit and not over:
        mask = info.get("action_mask") if agent.saved.spec.mask else None
        obs, reward, terminated, truncated, info = env.step(agent.act(obs, mask))
        yield _picture(env)
        score += float(np.float32(reward))  # as evaluation adds them up
        over, steps = bool(terminated or truncated), steps + 1
    return Episode(seed, score, steps, not over)


def _picture(env: Env) -> Frame:
    """Large enough to see, and with even sides, which H.264 wants."""
    frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        what = f"{frame.dtype} of shape {frame.shape}"
        raise RunError(f"the environment gives no pictures to film: its render() gave {what}")
    factor = -(-SMALLEST // min(frame.shape[:2]))
    frame = frame.repeat(factor, 0).repeat(factor, 1)
    height, width = frame.shape[:2]
    return np.ascontiguousarray(frame[: height - height % 2, : width - width % 2])


def write_film(path: Path, frames: Iterator[Frame], fps: float) -> None:
    """Write a film that is there when it is whole, and not before; it replaces an older one."""
    if path.suffix.lower() not in OPTIONS:
        raise ConfigError(f"--output: {path} must end in .mp4 or .gif")
    aside = path.with_name(f".{path.stem}.new-{os.getpid()}{path.suffix}")
    try:
        aside.touch()  # says why it cannot be written better than ffmpeg does
        first = next(frames)
        writer = imageio_ffmpeg.write_frames(
            str(aside),
            first.shape[1::-1],
            fps=fps,
            macro_block_size=1,
            ffmpeg_log_level="quiet",  # what goes wrong is one line of ours
            **OPTIONS[path.suffix.lower()],
        )
        with closing(writer):
            writer.send(None)
            for frame in chain([first], frames):
                writer.send(frame)
        aside.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            aside.unlink()
