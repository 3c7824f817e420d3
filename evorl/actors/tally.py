"""How many messages the actors of each slot have sent: in a file, so that it outlives them."""

import mmap
import struct
from pathlib import Path

COUNT = struct.Struct("<q")


class Tally:
    """A number for each slot, which the process in it writes and its learner reads."""

    def __init__(self, path: Path | str, slots: int) -> None:
        """The same file for all of them; it is made by whoever comes first."""
        self.path = Path(path)
        with self.path.open("a+b") as file:
            file.truncate(COUNT.size * slots)
            self._counts = mmap.mmap(file.fileno(), COUNT.size * slots)

    def __getitem__(self, slot: int) -> int:
        return int(COUNT.unpack_from(self._counts, COUNT.size * slot)[0])

    def add(self, slot: int) -> None:
        """One more; a slot has one process at a time."""
        COUNT.pack_into(self._counts, COUNT.size * slot, self[slot] + 1)
