"""A point from which a run goes on exactly: safetensors and JSON. Nothing in it can execute.

FOLDER/generation-000005/ holds manifest.json and STEM.safetensors files. One that ends in .new is
being written or removed, and does not count. One that ends in .old is as good as any: a commit of
the same generation set it aside and was killed before it could remove it.
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
from typing import Annotated, Any, NamedTuple

import safetensors.torch
import torch
from pydantic import NonNegativeInt, StringConstraints, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from evorl.errors import CheckpointError, one_line
from evorl.runs.atomic import sync

FORMAT = 2
MANIFEST, SUFFIX, NEW, OLD = "manifest.json", ".safetensors", ".new", ".old"
PLACE = "generation-{:06d}"
NAME = re.compile(r"generation-([0-9]{6,})((?:\.old)*)(\.new)?")
STEM = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"  # no separator, no "..", not hidden


class Written(NamedTuple):
    """A file of a checkpoint."""

    stem: Annotated[str, StringConstraints(pattern=STEM)]
    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """What manifest.json says."""

    format: int
    run: str
    generation: NonNegativeInt
    best: bool
    state: dict[str, Any]
    files: list[Written]
    sha256: str  # of the manifest without this


Facts = Mapping[str, Any]
_JSON, _MANIFEST = TypeAdapter(dict[str, Any]), TypeAdapter(Manifest)


class Checkpoint:
    """One that was verified; each file is verified again when it is read."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.generation, self.best = path, manifest.generation, manifest.best
        self.state = manifest.state  # what `Draft.commit` was given, as JSON returns it
        self.files = {file.stem: file for file in manifest.files}

    def stems(self) -> list[str]:
        """The names of its files."""
        return sorted(self.files)

    def load(self, stem: str) -> dict[str, Tensor]:
        """The tensors of a file, on the CPU; for a moment they are in memory twice."""
        data = self.raw(stem)
        try:
            return dict(safetensors.torch.load(data))
        except Exception as error:  # whatever the parser stumbles on in bytes that others made
            raise _refusal(self.path / f"{stem}{SUFFIX}", "not safetensors", error) from None

    def raw(self, stem: str) -> bytes:
        """The verified bytes of a file, to send to others."""
        if stem not in self.files:
            raise _refusal(self.path, f"has no {stem!r}, only {', '.join(self.stems())}")
        return _read(self.path / f"{stem}{SUFFIX}", self.files[stem])


class Checkpoints:
    """All of a run's. `run` is a fingerprint of its configuration: those of others are refused."""

    def __init__(self, folder: Path, run: str, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint has to stay")
        self.folder, self.run, self.keep = folder, run, keep
        self._damaged: set[str] = set()  # names that newest() refused: they don't count as kept

    def begin(self, generation: int) -> "Draft":
        """An empty draft; what a killed run left of one is removed."""
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
            facts = _JSON.validate_json(data, strict=True)
            if type(version := facts.get("format")) is int and version != FORMAT:
                raise ValueError(f"format version {version} wrote it, this is version {FORMAT}")
            manifest = _MANIFEST.validate_json(data, strict=True)
            if _text(facts) != data:  # also for NaN, or a key twice
                raise ValueError("it is not what was written: its checksum is another")
            if manifest.run != self.run:
                raise ValueError(f"its run has configuration {manifest.run!r}, this {self.run!r}")
            if path.name.split(".")[0] != PLACE.format(manifest.generation):
                raise ValueError(f"it is of generation {manifest.generation}")
        except ValueError as error:
            raise _refusal(path / MANIFEST, "cannot be used", error) from None
        return Checkpoint(path, manifest)

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
        self._unsettled: list[Path] = []  # files that need not be on the disk yet

    def write(self, stem: str, tensors: Mapping[str, Tensor]) -> Written:
        """Write a file of tensors; for a moment they are in memory twice."""
        with self.writing():
            return self.write_bytes(stem, serialise(tensors))

    def write_bytes(self, stem: str, data: bytes) -> Written:
        """Write a file of tensors that are serialised already, as they came over the network."""
        with self.writing():
            if not re.fullmatch(STEM, stem):
                raise ValueError(f"{stem!r} is not a plain name of letters, digits, - and _")
            path = self.path / f"{stem}{SUFFIX}"
            path.write_bytes(data)
            self._unsettled.append(path)
            with safe_open(path, "pt"):  # reads the header: better refused now than when resuming
                return Written(stem, len(data), hashlib.sha256(data).hexdigest())

    def settle(self) -> None:
        """See that what was written is on the disk; `commit` does so for its own draft."""
        with self.writing():
            sync(*self._unsettled)
            self._unsettled.clear()

    def commit(self, state: Facts, files: Sequence[Written], best: bool = False) -> Path:
        """Put it in its place and prune. `state` is JSON: lists for tuples, text for keys."""
        if (owner := self._owner) is None:
            raise ValueError("only the draft that Checkpoints.begin made can be committed")
        with self.writing():
            there = sorted((path.name, path.stat().st_size) for path in self.path.iterdir())
            if there != sorted((f"{file.stem}{SUFFIX}", file.bytes) for file in files):
                raise ValueError("the files given are not those written: each one, and once")
            generation = int(self.final.name.removeprefix("generation-"))
            facts = {"format": FORMAT, "run": owner.run, "generation": generation, "best": best}
            facts |= {"state": dict(state), "files": [file._asdict() for file in sorted(files)]}
            text = _text(json.loads(json.dumps(facts, sort_keys=True)))  # keys as text, then sorted
            _MANIFEST.validate_json(text, strict=True)  # it reads less than json writes
            (self.path / MANIFEST).write_bytes(text)
            folders = (self.path, owner.folder.parent)
            sync(*self._unsettled, self.path / MANIFEST, *folders)
            aside = self.final
            while os.path.lexists(aside):
                aside = aside.with_name(aside.name + OLD)
            if aside != self.final:  # nothing good goes before the new one is in place
                self.final.rename(aside)
            self.path.rename(self.final)
            sync(self.final.parent)
        owner.prune(generation)
        return self.final

    def abandon(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A full disk is the user's to mend, and leaves no draft behind."""
        try:
            yield
        except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
            self.abandon()
            raise _refusal(self.final, "cannot be written", error) from None


def serialise(tensors: Mapping[str, Tensor]) -> bytes:
    """Safetensors: the same bytes for equal tensors, whatever order they were given in."""
    plain, seen = dict[str, Tensor](), set[int]()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if memory in seen else tensor  # shared memory is refused
        seen.add(memory)
    return bytes(safetensors.torch.save(plain))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bits: equal only if everything is."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _text(facts: Facts) -> bytes:
    """Canonical JSON with its own checksum: the same content gives the same bytes."""
    rest = {key: value for key, value in facts.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode())
    rest["sha256"] = checksum.hexdigest()
    return json.dumps(rest, sort_keys=True, allow_nan=False).encode()


def _read(path: Path, file: Written | None = None) -> bytes:
    """The bytes of a file that is no link, and of the size and checksum that were written."""
    try:
        if path.is_symlink() or not path.is_file():
            raise _refusal(path, "is missing, or a link")
        if file and (size := path.stat().st_size) != file.bytes:
            raise _refusal(path, f"has {size:,} bytes instead of {file.bytes:,}")
        data = path.read_bytes()
    except OSError as error:
        raise _refusal(path, "cannot be read", error) from None
    if file and hashlib.sha256(data).hexdigest() != file.sha256:
        raise _refusal(path, "is not what was written: its checksum is another")
    return data


def _refusal(path: Path, what: str, error: Exception | None = None) -> CheckpointError:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        what = ": ".join(map(str, (what, *first["loc"], first["msg"])))
    elif error:
        what += f": {getattr(error, 'strerror', None) or error}"
    return CheckpointError(one_line(f"{path}: {what}"))
