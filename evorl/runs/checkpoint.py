"""A point from which a run resumes exactly: safetensors and JSON. Nothing in it can execute.

FOLDER/generation-000005/ holds manifest.json and STEM.safetensors files. It is written aside, then
renamed; the manifest has the checksum of every file, and its own. One that ends in .new
is being written or removed, and does not count. One that ends in .old is as good as any: a commit
of the same generation set it aside and was killed before it could remove it.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from evorl.errors import CheckpointError, one_line
from evorl.runs.files import field, parse_json, reason, sync

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 3
MANIFEST, SUFFIX, NEW, OLD = "manifest.json", ".safetensors", ".new", ".old"
PLACE = "generation-{:06d}"
NAME = re.compile(r"generation-([0-9]{6,})((?:\.old)*)(\.new)?")
STEM = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")  # no separator, no "..", not hidden
KEYS = {"best", "files", "format", "generation", "run", "sha256", "state"}  # of a manifest


class Written(NamedTuple):
    """A file of a checkpoint."""

    stem: str
    bytes: int
    sha256: str


class Checkpoint:
    """One whose manifest was verified; each file is verified when it is read."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        field(facts, "format", int)
        self.path, self.run = path, field(facts, "run", str)
        self.generation, self.best = field(facts, "generation", int), field(facts, "best", bool)
        self.state = field(facts, "state", dict)  # what `Draft.commit` was given, as JSON
        files = [
            Written(field(file, "stem", str), field(file, "bytes", int), field(file, "sha256", str))
            for file in field(facts, "files", list)
        ]
        self.files = {_plain_name(file.stem): file for file in files}

    def stems(self) -> list[str]:
        """The names of its files."""
        return sorted(self.files)

    def load(self, stem: str) -> "dict[str, Tensor]":
        """The tensors of a file, on the CPU; for a moment they are in memory twice."""
        import safetensors.torch

        data = self.raw(stem)
        try:
            return dict(safetensors.torch.load(data))
        except Exception as error:  # whatever the parser stumbles on in bytes that others made
            raise _refusal(self.path / f"{stem}{SUFFIX}", "not safetensors", error) from None

    def raw(self, stem: str) -> bytes:
        """The verified bytes of a file, to send to others."""
        if stem not in self.files:
            raise _refusal(self.path, f"has no {stem!r}, only {', '.join(self.stems())}")
        path, file = self.path / f"{stem}{SUFFIX}", self.files[stem]
        data = _read(path, file.bytes)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise _refusal(path, "is not what was written: its checksum is another")
        return data


class Checkpoints:
    """All of a run's. `run` is a fingerprint of its configuration: those of others are refused.

    Whoever only looks at what there is may give None instead.
    """

    def __init__(self, folder: Path, run: str | None, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint has to stay")
        self.folder, self.run, self.keep = folder, run, keep
        self._damaged: set[str] = set()  # names that newest() refused: they don't count as kept

    def begin(self, generation: int) -> "Draft":
        """An empty draft; what a killed run left of one is removed."""
        if generation < 0:
            raise ValueError(f"generation is {generation}: they are counted from 0")
        draft = Draft(self.folder / f"{PLACE.format(generation)}{NEW}", self)
        with draft.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.abandon()
            draft.path.mkdir()
        return draft

    def newest(self, stems: Sequence[str] | None = None) -> Checkpoint | None:
        """The newest good one, with a warning for each newer one; None if there is none at all.

        `stems` are the files that have to be good, for whoever needs no others.
        """
        problems: list[str] = []
        for _, path in self._find():
            try:
                checkpoint = self._open(path)
                for stem in checkpoint.stems() if stems is None else stems:
                    checkpoint.load(stem)
            except CheckpointError as error:
                problems.append(str(error))
                self._damaged.add(path.name)
                continue
            for problem in problems:
                warnings.warn(f"{problem}; the one before is taken: {path.name}", stacklevel=2)
            return checkpoint
        if problems:
            raise _refusal(self.folder, f"no checkpoint there can be used; {problems[0]}")
        return None

    def clean(self) -> None:
        """Remove what a run left behind that was killed while saving."""
        for _, path in self._find(NEW):
            shutil.rmtree(path, ignore_errors=True)

    def prune(self, generation: int) -> None:
        """Keep the newest and the newest best, up to a generation that was just committed."""
        self._damaged.discard(PLACE.format(generation))
        kept, gone = dict[int, bool](), list[Path]()  # kept: generation, whether it is a best one
        for number, path in self._find():
            if number in kept:  # set aside by a commit of the same generation
                gone.append(path)
            # A later one was refused by newest(), or there would not have been this commit.
            elif number <= generation and path.name not in self._damaged:
                with suppress(CheckpointError):  # a damaged one stays, and does not count
                    checkpoint = self._open(path)
                    if len(kept) < self.keep or (checkpoint.best and not any(kept.values())):
                        kept[number] = checkpoint.best
                    else:
                        gone.append(path)
        for path in gone:  # renamed first: killed halfway, it does not look like a damaged one
            with suppress(OSError):  # the next commit tries again
                shutil.rmtree(path.rename(path.with_name(path.name + NEW)))

    def _open(self, path: Path) -> Checkpoint:
        """A checkpoint whose manifest is good; its files are still to be verified."""
        data = _read(path / MANIFEST)
        try:
            checkpoint = Checkpoint(path, _unseal(data))
            if self.run not in (None, checkpoint.run):
                raise ValueError(f"its run has configuration {checkpoint.run!r}, this {self.run!r}")
            if path.name.split(".")[0] != PLACE.format(checkpoint.generation):
                raise ValueError(f"it is of generation {checkpoint.generation}")
        except ValueError as error:
            raise _refusal(path / MANIFEST, "cannot be used", error) from None
        return checkpoint

    def _find(self, ending: str | None = None) -> list[tuple[int, Path]]:
        """Generation and path, the newest first; one set aside comes after the one in its place."""
        try:
            names = os.listdir(self.folder) if self.folder.exists() else []
        except OSError as error:
            raise _refusal(self.folder, "cannot be read", error) from None
        found = [match for match in map(NAME.fullmatch, names) if match and match[3] == ending]
        found.sort(key=lambda match: (-int(match[1]), match[2]))
        return [(int(match[1]), self.folder / match[0]) for match in found]


class Draft:
    """One being written, by all who have a Draft of this path; whoever began it commits."""

    def __init__(self, path: Path, owner: Checkpoints | None = None) -> None:
        self.path, self._owner = path, owner
        self.final = path.with_name(path.name.removesuffix(NEW))
        self._unsynced: list[Path] = []  # files that need not be on the disk yet

    def write(self, stem: str, tensors: "Mapping[str, Tensor]") -> Written:
        """Write a file of tensors; for a moment they are in memory twice."""
        with self.writing():
            return self.write_bytes(stem, serialise(tensors))

    def write_bytes(self, stem: str, data: bytes) -> Written:
        """Write a file of tensors that are serialised already, as they came over the network."""
        with self.writing():
            path = self.path / f"{_plain_name(stem)}{SUFFIX}"
            path.write_bytes(data)
            self._unsynced.append(path)
            with safe_open(path, "pt"):  # reads the header: better refused now than when resuming
                return Written(stem, len(data), hashlib.sha256(data).hexdigest())

    def settle(self) -> None:
        """Make sure that what was written is on the disk; `commit` does so for its own draft."""
        with self.writing():
            sync(*self._unsynced)
            self._unsynced.clear()

    def commit(
        self, state: Mapping[str, Any], files: Sequence[Written], best: bool = False
    ) -> Path:
        """Put it in its place and prune. `state` is JSON: lists for tuples, text for keys."""
        if (owner := self._owner) is None:
            raise ValueError("only the draft that Checkpoints.begin made can be committed")
        generation = int(self.final.name.removeprefix("generation-"))
        with self.writing():
            there = sorted((path.name, path.stat().st_size) for path in self.path.iterdir())
            if there != sorted((f"{file.stem}{SUFFIX}", file.bytes) for file in files):
                raise ValueError("the files given are not those written: each one, and once")
            facts: dict[str, Any] = {"format": FORMAT, "run": owner.run, "generation": generation}
            facts |= {"files": [file._asdict() for file in sorted(files)], "best": best}
            facts["state"] = json.loads(json.dumps(state), object_pairs_hook=_no_key_twice)
            (self.path / MANIFEST).write_bytes(_seal(facts))
            folders = (self.path, owner.folder.parent)
            sync(*self._unsynced, self.path / MANIFEST, *folders)
            self._move_into_place()
            sync(owner.folder)
        owner.prune(generation)
        return self.final

    def _move_into_place(self) -> None:
        aside = self.final
        while os.path.lexists(aside):
            aside = aside.with_name(aside.name + OLD)
        if aside != self.final:  # nothing good is removed before the new one is in place
            self.final.rename(aside)
        self.path.rename(self.final)

    def abandon(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What cannot be written, as on a full disk, is one line, and leaves no draft behind."""
        try:
            yield
        except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
            self.abandon()
            raise _refusal(self.final, "cannot be written", error) from None


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
    import torch

    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _seal(facts: Mapping[str, Any]) -> bytes:
    """JSON with its own checksum: the same content in the same order gives the same bytes."""
    rest = {key: value for key, value in facts.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(rest, allow_nan=False).encode())
    rest["sha256"] = checksum.hexdigest()
    return json.dumps(rest, allow_nan=False).encode()


def _unseal(data: bytes) -> dict[str, Any]:
    """What was sealed; ValueError if another version of evorl did so, or if it was changed."""
    facts = parse_json(data)
    if not isinstance(facts, dict):
        raise ValueError("expected a mapping")
    if type(version := facts.get("format")) is int and version != FORMAT:
        raise ValueError(f"format version {version} wrote it, this is version {FORMAT}")
    if _seal(facts) != data:  # also for NaN, or a key twice
        raise ValueError("it is not what was written: its checksum is another")
    if unknown := facts.keys() - KEYS:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    return facts


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON, in which 1 and "1" are one key."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"a key is there as a number and as text, among {', '.join(found)}")
    return found


def _plain_name(stem: str) -> str:
    if not STEM.fullmatch(stem):
        raise ValueError(f"{stem!r} is not a plain name of letters, digits, - and _")
    return stem


def _read(path: Path, size: int | None = None) -> bytes:
    """The bytes of a file that is no link, and of the size that was written."""
    try:
        if path.is_symlink() or not path.is_file():
            raise _refusal(path, "is missing, or a link")
        if size is not None and (found := path.stat().st_size) != size:
            raise _refusal(path, f"has {found:,} bytes instead of {size:,}")
        return path.read_bytes()
    except OSError as error:
        raise _refusal(path, "cannot be read", error) from None


def _refusal(path: Path, problem: str, error: Exception | None = None) -> CheckpointError:
    return CheckpointError(one_line(f"{path}: {problem}" + (f": {reason(error)}" if error else "")))
