"""docs/scaling.md has what the model prints."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_has_the_tables():
    words = [sys.executable, ROOT / "benchmarks" / "scaling_model.py"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    tables = printed.strip().split("\n\n")
    assert len(tables) == 3
    page = (ROOT / "docs" / "scaling.md").read_text()
    for table in tables:
        assert table in page, table
