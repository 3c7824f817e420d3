"""The parts of one's own that docs/your_algorithm.md shows, as files."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "your_algorithm.md"


def block(language: str) -> str:
    """The first block of the page in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def write_parts(folder: Path) -> Path:
    """The module and the configuration, in a folder; the configuration's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_module.py").write_text(block("python"))
    path = folder / "soft.yaml"
    path.write_text(block("yaml"))
    return path
