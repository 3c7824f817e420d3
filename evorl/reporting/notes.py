"""What people write about a run on the dashboard: tags and a note, in notes.json of its folder."""

from pathlib import Path
from typing import Any, NamedTuple

from evorl.errors import RunError
from evorl.runs import atomic_write, field, parse_json, read_bytes, strict_json

NOTES = "notes.json"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 40, 2000  # a run's, and characters


class Notes(NamedTuple):
    """Tags in their order, each once."""

    tags: list[str]
    note: str


def read_notes(run: Path) -> Notes:
    """Of a run without any, or whose file is damaged, none."""
    try:
        return parse_notes(parse_json(read_bytes(run / NOTES)))
    except (RunError, ValueError):
        return Notes([], "")


def write_notes(run: Path, notes: Notes) -> None:
    """In place of those from before."""
    atomic_write(run / NOTES, strict_json(notes._asdict(), indent=2) + "\n")


def parse_notes(values: Any) -> Notes:
    """From JSON of unknown origin; ValueError if it is something else."""
    known = values if isinstance(values, dict) else {}
    tags, note = field(known, "tags", list), field(known, "note", str)
    if not all(isinstance(own, str) for own in tags):
        raise ValueError("tags: expected a list of texts")
    tags = list(dict.fromkeys(own.strip() for own in tags if own.strip()))
    if len(tags) > MOST_TAGS or max(map(len, tags), default=0) > LONGEST_TAG:
        raise ValueError(f"at most {MOST_TAGS} tags, of {LONGEST_TAG} characters each")
    if len(note) > LONGEST_NOTE:
        raise ValueError(f"a note has at most {LONGEST_NOTE} characters, got {len(note)}")
    return Notes(tags, note.strip())
