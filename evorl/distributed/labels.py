"""What a process is, for stages that say where they run: labels, and patterns that match them.

    EVORL_LABELS="gpu;1=evaluator;2-3=collector"

gives every process the label gpu, rank 1 evaluator, and ranks 2 and 3 collector, beside those that
each has anyway: `standalone` or `distributed`, `node.RANK`, and `main` on rank 0.
"""

import os
import re
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from fnmatch import fnmatchcase

from evorl.errors import ConfigError, StageError

VARIABLE = "EVORL_LABELS"
ENTRY = re.compile(
    r"(?:(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?=)?(?P<label>[A-Za-z_][\w.-]*)", re.A
)
PATTERN = re.compile(r"[A-Za-z_*?][\w.*?-]*", re.ASCII)
OWN = re.compile(r"standalone|distributed|async|main|node\..*")  # not for EVORL_LABELS to give
EVERYWHERE = ("standalone", "distributed", "async")  # what one process has of these, all have
ROLES = {"trainer", "evaluator"}  # a process is both only where all are

# The stage that runs in this thread and its patterns, if some processes leave it out. Set for each
# of them in every iteration, hence no context manager: one costs as much as all the rest.
partial_stage: ContextVar[tuple[str, tuple[str, ...]] | None] = ContextVar(
    "partial_stage", default=None
)


def labels_of(rank: int, ranks: int) -> frozenset[str]:
    """The labels of a process, by its rank and the environment."""
    kind = "standalone" if ranks == 1 else "distributed"
    main = ["main"] if rank == 0 else []
    return frozenset({kind, f"node.{rank}", *main, *_given(os.environ.get(VARIABLE, ""), rank)})


def checked_patterns(filter_labels: Collection[str]) -> tuple[str, ...]:
    """Labels, and patterns such as `node.*`, that a stage may be filtered by."""
    if isinstance(filter_labels, str):
        raise ConfigError(
            f"filter_labels: expected a list, got {filter_labels!r}; write [{filter_labels!r}]"
        )
    for label in filter_labels:
        if not isinstance(label, str) or not PATTERN.fullmatch(label):
            raise ConfigError(
                f"filter_labels: expected labels such as main or node.*, got {label!r}"
            )
    return tuple(filter_labels)


def match(labels: Collection[str], patterns: Collection[str]) -> bool:
    """Whether one of the labels matches one of the patterns."""
    return any(fnmatchcase(label, pattern) for label in labels for pattern in patterns)


def match_everywhere(labels: Collection[str], patterns: Collection[str]) -> bool:
    """Whether patterns that match this process are known to match all others, too."""
    common = [label for label in labels if label in EVERYWHERE]
    common += (*ROLES, "learner") if set(labels) >= ROLES else ()
    return match(common, patterns) or "node.*" in patterns


def refuse_in_partial_stage(collective: str, roles: Collection[str] = ()) -> None:
    """StageError in a stage that some of those who must come leave out: the others would wait.

    `roles` are labels that all of these have, and nobody else; none: all ranks must come.
    """
    stage = partial_stage.get()
    if stage is not None and not match(roles, stage[1]):
        who = f"those with the label {' or '.join(roles)}" if roles else "all ranks"
        instead = f"filter_labels=[{next(iter(roles))!r}]" if roles else "no filter_labels"
        raise StageError(
            f"World.{collective}: stage {stage[0]!r} has filter_labels, so that some of {who} never"
            f" come here and the others would wait for them; use the stage with {instead}"
        )


def _given(text: str, rank: int) -> Iterator[str]:
    for entry in text.split(";") if text else []:
        found = ENTRY.fullmatch(entry.strip())
        if found is None or OWN.fullmatch(found["label"]):
            why = "" if found is None else f"{found['label']} is not yours to give; "
            raise ConfigError(
                f"{VARIABLE}: {why}expected entries such as gpu, 1=evaluator or 2-3=collector with"
                f" ; between them, got {entry!r}"
            )
        first = int(found["first"] or 0)
        last = int(found["last"] or first)
        if last < first:
            raise ConfigError(f"{VARIABLE}: expected ranks in order, got {entry!r}")
        if found["first"] is None or first <= rank <= last:
            yield found["label"]
