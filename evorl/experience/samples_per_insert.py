"""How often items are drawn for each that comes, held within a band."""

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Count = int | npt.NDArray[np.int64]  # of one replay, or [P] of each agent


class SamplesPerInsert:
    """Says who must wait, learners or actors; waiting itself is theirs.

    Inserts call for samples, `ratio` each. Learners may be ahead of that by `slack` samples, and
    behind by as many. It is asked before a batch or a message of whatever size, so that one of the
    two can always go on.
    """

    def __init__(self, ratio: float, slack: float, starts: int = 0) -> None:
        """Before `starts` inserts nothing is sampled, and they call for nothing."""
        if not ratio > 0 or not slack >= 0:
            raise ValueError(f"ratio must be above 0 and slack at least 0, got {ratio}, {slack}")
        self.ratio, self.slack, self.starts = ratio, slack, starts
        # samples that are called for and not drawn yet; below 0: drawn ahead
        self.owed: npt.NDArray[np.float64] = np.zeros(())
        self.inserts: Count = 0

    def inserted(self, count: Count) -> None:
        """Items have come."""
        before = np.maximum(self.inserts, self.starts)
        self.inserts = self.inserts + count
        self.owed = self.owed + self.ratio * np.maximum(self.inserts - before, 0)

    def sampled(self, count: Count) -> None:
        """Items were drawn."""
        self.owed = self.owed - count

    @property
    def may_sample(self) -> Bools:
        """Whether learners may go on; else they wait for inserts."""
        return np.asarray((self.inserts >= self.starts) & (self.owed > -self.slack))

    @property
    def may_insert(self) -> Bools:
        """Whether actors may go on; else they get no credit."""
        return np.asarray((self.inserts < self.starts) | (self.owed <= self.slack))
