"""torch.compile for the update: when it pays, how it stays alive, what happens when it fails."""

import os
import shutil
import sys
import warnings
from typing import Literal

import torch
from torch import Tensor

from evorl.algorithms.base import Algorithm, Batch
from evorl.group import Group, UpdateFunction, functional_update
from evorl.networks.layout import Signature
from evorl.optimizer import Coefficients

WORTH_UPDATES = 100_000  # compiling costs 5 to 25 s a signature and saves about 0.3 ms an update
GRAPHS = 256  # torch counts graphs per function, and all signatures share one

Compile = Literal["auto"] | bool


def wants_compiling(setting: Compile, updates: int) -> bool:
    """Whether a run of so many updates is to be compiled; `auto` needs a C++ compiler, too."""
    if setting == "auto":
        return updates >= WORTH_UPDATES and has_compiler()
    return setting


def has_compiler() -> bool:
    """Is there a C++ compiler that torch.compile could call?"""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


class CompiledUpdates:
    """One compiled update per kind of group; the first failure turns all of them eager."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.failed = False
        self._functions: dict[tuple[Signature, int, tuple[bool, ...]], UpdateFunction] = {}

    def update(self, group: Group, batch: Batch, c: Coefficients) -> Tensor:
        """Move every row of the group by one update, in place; TD errors [P, B]."""
        if not self.failed:
            try:
                return self._call(group, batch, c)
            except Exception as error:
                # Nothing has moved yet: compiling fails before the program runs.
                self.failed = True
                reason = str(error).strip().splitlines() or [type(error).__name__]
                warnings.warn(
                    f"torch.compile failed, going on without it: {reason[0]}", stacklevel=2
                )
        return group.update(self.algorithm, batch, c)

    def _call(self, group: Group, batch: Batch, c: Coefficients) -> Tensor:
        key = (group.layout.signature, group.layout.depth, group.network.mlp.blended)
        if key not in self._functions:
            self._functions[key] = torch.compile(
                functional_update(group.network, self.algorithm),
                fullgraph=True,
                dynamic=False,  # widths static: dynamic ones were 26 % slower
                options={"cpp_wrapper": True},
            )
        matrices = (group.theta, group.target, group.m, group.v)
        if group.size > 1:  # the group size comes and goes with evolution; 1 is always special
            masks = (part for mask in group.live for part in mask)
            for tensor in (*matrices, *masks, *batch, *c):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        with torch._dynamo.config.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=GRAPHS):
            return self._functions[key](*matrices, group.live, batch, c)
