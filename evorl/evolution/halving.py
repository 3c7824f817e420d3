"""Successive halving: many agents begin, the worse half goes again and again, few go on.

Copies of a good agent do not make it learn faster, but the steps of those that go do.
"""

from dataclasses import dataclass

from evorl.config import HalvingConfig


@dataclass(frozen=True)
class Halving:
    """How many agents there are at which share of the budget."""

    sizes: tuple[int, ...]  # from all agents to the survivors, each half of the one before
    within: float  # share of the budget, which all but the last divide evenly

    @classmethod
    def of(cls, config: HalvingConfig, agents: int) -> "Halving":
        """As configured, for a population that begins with so many agents."""
        sizes, survivors = [agents], agents if config.survivors is None else config.survivors
        while sizes[-1] > survivors:
            sizes.append(max(survivors, -(-sizes[-1] // 2)))
        return cls(tuple(sizes), config.within)

    def agents(self, spent: float) -> int:
        """How many are to be left when this share of the budget is spent."""
        rungs = len(self.sizes) - 1
        if spent >= self.within or not rungs:
            return self.sizes[-1]
        return self.sizes[int(spent / self.within * rungs)]
