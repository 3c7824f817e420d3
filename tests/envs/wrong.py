"""The environments of benchmarks/misbehaving.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from misbehaving import PROCESSES, RESETS, STEPS, Misbehaves

__all__ = ["PROCESSES", "RESETS", "STEPS", "Misbehaves"]
