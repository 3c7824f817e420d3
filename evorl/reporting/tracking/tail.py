"""A file that grows: what is new in it since the last look."""

from pathlib import Path


class Tail:
    """The lines of a file, each given once; one that is not complete yet comes later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def news(self) -> list[bytes]:
        """Whole lines that were not there at the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._offset += end
        return text[:end].split(b"\n")[:-1]
