"""How far a W&B run has come on this disk: what a run that goes on need not tell again.

W&B writes its log in blocks, up to 15 seconds late: of a run that was killed, only the log itself
says what is in it. The format is LevelDB's, with a header of 7 bytes; a log that ends in the middle
of a record is read up to there.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAGIC, BLOCK, HEADER = b":W&B", 32768, 7  # the file's header and a record's are equally long
WHOLE, LAST = 1, 4  # kinds of pieces that complete a record


def next_step(folder: Path, run_id: str) -> int:
    """The first step that no log of a run has; `folder` is the one that W&B writes to."""
    steps = [step for path in folder.glob(f"*run-*/run-{run_id}.wandb") for step in _steps(path)]
    return 1 + max(steps, default=-1)


def records(path: Path) -> Iterator[bytes]:
    """The records of a log, as far as they are whole."""
    data = path.read_bytes()
    if data[:4] != MAGIC:
        return
    place, record = HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:  # too little for a record: zeros
            place += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + HEADER : place + HEADER + length]
        if len(piece) < length or checksum != zlib.crc32(piece, zlib.crc32(bytes([kind]))):
            return
        place += HEADER + length
        record += piece
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def _steps(path: Path) -> Iterator[int]:
    from wandb.proto import wandb_internal_pb2

    for data in records(path):
        record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data)
        if record.HasField("history"):
            yield int(record.history.step.num)
