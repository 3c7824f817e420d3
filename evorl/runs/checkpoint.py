"""A point from which a run resumes exactly: safetensors and JSON. Nothing in it can execute.

FOLDER/generation-000005/ holds manifest.json and STEM.safetensors files. It is written aside, as
generation-000005.new, then renamed; the manifest has the checksum of every file, and its own.
"""

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evorl.errors import CheckpointError, WriteError
from evorl.runs.files import MOST_BYTES, field, parse_json, read_regular, reason, sync

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 5
MANIFEST, SUFFIX, NEW = "manifest.json", ".safetensors", ".new"
PLACE = "generation-{:06d}"
STEM = re.compile("[a-z0-9-]+")
CHANGED = "it is not what was written: its checksum is another"


class Written(NamedTuple):
    """A file of a checkpoint."""

    stem: str
    sha256: str


class Checkpoint:
    """One whose manifest is verified here; each file is verified when it is read."""

    def __init__(self, path: Path, run: str) -> None:
        with reading(path / MANIFEST):
            data = read_regular(path / MANIFEST, MOST_BYTES)
            facts = parse_json(data)
            if (version := field(facts, "format", int)) != FORMAT:
                raise ValueError(f"format version {version} wrote it, this is version {FORMAT}")
            if _seal(facts) != data:  # also for a key twice
                raise ValueError(CHANGED)
            if (other := field(facts, "run", str)) != run:
                raise ValueError(f"its run has configuration {other!r:.40}, this {run!r}")
            self.path, self.generation = path, field(facts, "generation", int)
            if path.name != PLACE.format(self.generation):
                raise ValueError(f"it is of generation {self.generation}")
            self.state: dict[str, Any] = field(facts, "state", dict)  # as `Draft.commit` got it
            self.files: dict[str, str] = field(facts, "files", dict)  # checksums by stem
            for stem in self.files:
                if not STEM.fullmatch(stem):
                    raise ValueError(f"{stem!r:.40} is no name of a file in it")

    def load(self, stem: str) -> "dict[str, Tensor]":
        """The tensors of a file, on the CPU; for a moment they are in memory twice."""
        import safetensors.torch

        path = self.path / f"{stem}{SUFFIX}"
        with reading(path):
            data = read_regular(path)
            if hashlib.sha256(data).hexdigest() != self.files[stem]:
                raise ValueError(CHANGED)
            return dict(safetensors.torch.load(data))


class Checkpoints:
    """All of a run's. `run` is a fingerprint of its configuration: those of others are refused."""

    def __init__(self, folder: Path, run: str, keep: int = 2) -> None:
        self.folder, self.run, self.keep = folder, run, keep

    def begin(self, generation: int) -> "Draft":
        """An empty draft; what a run left that was killed while saving is removed."""
        draft = Draft(self.folder / f"{PLACE.format(generation)}{NEW}", self)
        with draft.writing():
            for path in self.folder.glob(f"generation-*{NEW}"):
                shutil.rmtree(path)
            draft.path.mkdir(parents=True)
        return draft

    def newest(self, stems: Sequence[str] | None = None) -> Checkpoint | None:
        """The newest of which these files, or all, are good, with a warning for each newer one."""
        problems: list[str] = []
        for path in self._find():
            try:
                checkpoint = Checkpoint(path, self.run)
                for stem in checkpoint.files if stems is None else stems:
                    checkpoint.load(stem)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                warnings.warn(f"{problem}; the one before is taken: {path.name}", stacklevel=2)
            return checkpoint
        if problems:
            raise CheckpointError(f"{self.folder}: no checkpoint there can be used; {problems[0]}")
        return None

    def prune(self, newest: Path) -> None:
        """Keep the newest, up to one that was just committed."""
        kept = 0
        for path in self._find():
            if path.name > newest.name:  # it was refused, or there would not be this commit
                continue
            with suppress(CheckpointError, OSError):  # a damaged one stays, and does not count
                Checkpoint(path, self.run)
                kept += 1
                if kept > self.keep:  # renamed: killed halfway, it does not look like a damaged one
                    shutil.rmtree(path.rename(path.with_name(path.name + NEW)))

    def _find(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("generation-" + "[0-9]" * 6), reverse=True)


class Draft:
    """One being written, by all who have a Draft of this path; whoever began it commits."""

    def __init__(self, path: Path, owner: Checkpoints | None = None) -> None:
        self.path, self._owner = path, owner
        self.final = path.with_name(path.name.removesuffix(NEW))

    def write(self, stem: str, tensors: "Mapping[str, Tensor]") -> Written:
        """Write a file of tensors; for a moment they are in memory twice."""
        with self.writing():
            data = serialise(tensors)
            (self.path / f"{stem}{SUFFIX}").write_bytes(data)
        return Written(stem, hashlib.sha256(data).hexdigest())

    def commit(self, state: Mapping[str, Any], files: Sequence[Written]) -> Path:
        """Put it in its place and prune. `state` is JSON: lists for tuples, text for keys."""
        owner, generation = self._owner, int(self.final.name.removeprefix("generation-"))
        assert owner is not None, "only the draft that Checkpoints.begin made can be committed"
        facts: dict[str, Any] = {"format": FORMAT, "run": owner.run, "generation": generation}
        facts |= {"files": dict(sorted(files)), "state": state}
        with self.writing():
            (self.path / MANIFEST).write_bytes(_seal(facts))
            sync(*self.path.iterdir(), self.path, owner.folder.parent)
            if self.final.exists():  # newest() has refused it, or there would not be this commit
                shutil.rmtree(self.final)
            self.path.rename(self.final)
            sync(owner.folder)
        owner.prune(self.final)
        return self.final

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What cannot be written, as on a full disk, is one line, and leaves no draft behind."""
        try:
            yield
        except (OSError, ValueError, TypeError, MemoryError) as error:
            shutil.rmtree(self.path, ignore_errors=True)
            raise WriteError(f"{self.final}: cannot be written: {reason(error)}") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What is wrong with a checkpoint, or a file of it, is one line."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever a parser stumbles on in bytes that others made
        raise CheckpointError(f"{path}: cannot be used: {reason(error)}") from None


def serialise(tensors: "Mapping[str, Tensor]") -> bytes:
    """Safetensors: the same bytes for equal tensors, whatever order they were given in."""
    import safetensors.torch

    plain, seen = dict[str, "Tensor"](), set[int]()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if memory in seen else tensor  # shared memory is refused
        seen.add(memory)
    return bytes(safetensors.torch.save(plain))


def digest(tensors: "Mapping[str, Tensor]") -> str:
    """SHA-256 of names, types, shapes and bits: equal only if everything is."""
    return hashlib.sha256(serialise(tensors)).hexdigest()


def _seal(facts: Mapping[str, Any]) -> bytes:
    """JSON with its own checksum: the same content in the same order gives the same bytes."""
    rest = {key: value for key, value in facts.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(rest, allow_nan=False).encode())
    return json.dumps(rest | {"sha256": checksum.hexdigest()}, allow_nan=False).encode()
