"""torch.compile for rounds of updates: when it pays, how it stays alive, what if it fails.

Legend: U updates of a round, K networks, P agents, B batch.

torch_private.py makes the programs: one for a whole round through torch's private functions, or
one for each update through the public torch.compile, where those are other ones than they were.
"""

import os
import shutil
import sys
import warnings
from typing import Literal

from torch import Tensor

from evorl.algorithms import Algorithm
from evorl.experience import Samples
from evorl.population.group import Group
from evorl.population.torch_private import PRIVATE_WORKS, RoundPrograms, UpdatePrograms
from evorl.population.update import Outcome, eager_round

WORTH_UPDATES = 100_000  # compiling costs 5 to 25 s a program and saves 0.3 ms an update or more

Compile = Literal["auto"] | bool


def wants_compiling(setting: Compile, updates: int, device: str = "cpu") -> bool:
    """Whether a run of this many updates is to be compiled; `auto` needs a C++ compiler, too.

    It stays eager on other devices, where nobody has tried it yet.
    """
    if setting == "auto":
        return updates >= WORTH_UPDATES and device == "cpu" and has_compiler()
    return setting


def has_compiler() -> bool:
    """Is there a C++ compiler that torch.compile could call?"""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


class CompiledRounds:
    """Compiled rounds for all groups; what fails is done the next simpler way, in the end eager."""

    def __init__(self, algorithm: Algorithm, private: bool = PRIVATE_WORKS) -> None:
        self.algorithm = algorithm
        self._ways: list[RoundPrograms | UpdatePrograms] = [UpdatePrograms(algorithm)]
        if private:
            self._ways.append(RoundPrograms(algorithm))

    @property
    def failed(self) -> bool:
        """Whether nothing is compiled any more."""
        return not self._ways

    def learn(self, group: Group, samples: Samples, numbers: Tensor) -> Outcome:
        """Move every row of the group by the updates of a round, in place.

        Samples are [U, P, B, ...], and coefficients [U, K, 6, P, 1].
        """
        while self._ways:
            try:
                return self._ways[-1](group, samples, numbers)
            except Exception as error:
                # Nothing has moved yet: compiling fails before the program runs.
                self._ways.pop()
                reason = str(error).strip().splitlines() or [type(error).__name__]
                then = "trying its public way" if self._ways else "updates are eager from here on"
                warnings.warn(f"torch.compile failed, {then}: {reason[0]}", stacklevel=2)
        return eager_round(group, self.algorithm, samples, numbers)
