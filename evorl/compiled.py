"""torch.compile for the update: when it pays, how it stays alive, what happens when it fails."""

import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor

from evorl.algorithms.base import Algorithm, Batch
from evorl.group import Group, UpdateFunction, functional_update
from evorl.networks.layout import Signature
from evorl.optimizer import Coefficients

WORTH_UPDATES = 100_000  # compiling costs 5 to 25 s a signature and saves about 0.3 ms an update

PROGRAMS = 64  # of one kind: batch widths come and go; torch gives up after 8

Compile = Literal["auto"] | bool
Kind = tuple[Signature, int, tuple[bool, ...]]


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
        self._functions: dict[Kind, UpdateFunction] = {}
        self._shapes: set[tuple[object, ...]] = set()
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, PROGRAMS)

    def update(self, group: Group, batch: Batch, c: Coefficients) -> Tensor:
        """Move every row of the group by one update, in place; TD errors [P, B]."""
        if not self.failed:
            try:
                return self._call(group, batch, c)
            except Exception as error:
                # Nothing has moved yet: compiling fails before the program runs.
                self.failed = True
                reason = str(error).strip().splitlines() or [type(error).__name__]
                message = f"torch.compile failed, going on without it: {reason[0]}"
                warnings.warn(message, stacklevel=2)
        return group.update(self.algorithm, batch, c)

    def _call(self, group: Group, batch: Batch, c: Coefficients) -> Tensor:
        kind = (group.layout.signature, group.layout.depth, group.network.mlp.blended)
        matrices = (group.theta, group.target, group.m, group.v)
        if kind not in self._functions:
            self._functions[kind] = _compile(functional_update(group.network, self.algorithm))
        # Marks count while compiling only, and setting them takes longer than the guards do.
        shape = (kind, batch.obs.shape[1:], group.size == 1)
        if shape not in self._shapes:
            self._shapes.add(shape)
            if group.size > 1:  # the group size comes and goes with evolution; 1 is always special
                masks = (part for mask in group.live for part in mask)
                for tensor in (*matrices, *masks, *batch, *c):
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return self._functions[kind](*matrices, group.live, batch, c)


def _compile(function: UpdateFunction) -> UpdateFunction:
    """Compile under a code object of its own.

    torch.compile keeps its programs by code object. Sharing one, every call would look through the
    programs of all kinds for its own, and all kinds together would share one limit.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = FunctionType(code, function.__globals__, function.__name__, None, closure)
    compiled: UpdateFunction = torch.compile(
        own,
        fullgraph=True,
        dynamic=False,  # widths static: dynamic ones were 26 % slower
        options={"cpp_wrapper": True, "guard_filter_fn": _tensors_only},
    )
    return compiled


def _tensors_only(guards: Sequence[Any]) -> list[bool]:
    """Keep the guards on tensors and shapes: all else that the update reads never changes.

    The network belongs to its kind. Checking it anew at every call took a fifth of the time.
    """
    return [guard.guard_type in ("TENSOR_MATCH", "SHAPE_ENV") for guard in guards]
