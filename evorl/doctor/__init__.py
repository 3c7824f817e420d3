"""Does this machine have what evorl needs? Each check is tried out, not looked up."""

from evorl.doctor.checks import CHECKS, Check, examine
from evorl.doctor.finding import Finding
from evorl.doctor.ranks import TwoRanks

__all__ = ["CHECKS", "Check", "Finding", "TwoRanks", "examine"]
