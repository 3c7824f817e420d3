"""A film, frame by frame, as .mp4 or .gif: by the ffmpeg that comes with imageio-ffmpeg."""

import importlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evorl.errors import ConfigError, RunError, one_line

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

Frame = NDArray[np.uint8]  # [H, W, 3]


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
