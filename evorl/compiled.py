"""torch.compile for the update: when it pays, how it stays alive, what happens when it fails."""

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.eval_frame import innermost_fn
from torch.fx import GraphModule

from evorl.algorithms.base import Algorithm, Batch
from evorl.group import Group, UpdateFunction, functional_update
from evorl.networks.layout import Signature

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


class Program(NamedTuple):
    """What torch.compile made of an update, called without its guards and wrappers.

    They cost 0.1 ms a call, whatever the number of agents: a third of an update of four.
    """

    function: Callable[..., Sequence[Tensor]]
    places: list[int | None]  # of each argument among an update's tensors; None: the group's size

    def __call__(self, size: int, tensors: Sequence[Tensor]) -> Tensor:
        """Move every row by one update; temporal-difference errors [P, B]."""
        arguments = [size if place is None else tensors[place] for place in self.places]
        return self.function(*arguments)[0]


class CompiledUpdates:
    """One compiled update per kind of group; the first failure turns all of them eager."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.failed = False
        self._functions: dict[Kind, UpdateFunction] = {}
        self._shapes: set[tuple[object, ...]] = set()
        # by kind, group size and batch, on which all guards depend: so they held before
        self._programs: dict[tuple[object, ...], Program] = {}
        self._called: tuple[Callable[..., Any], Sequence[Any]] | None = None
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, PROGRAMS)

    def update(self, group: Group, batch: Batch, numbers: Tensor) -> Tensor:
        """Move every row of the group by one update, in place; TD errors [P, B].

        The tensors of the batch must be contiguous, and so must the coefficients [P, 6, 1].
        """
        if not self.failed:
            try:
                return self._call(group, batch, numbers)
            except Exception as error:
                # Nothing has moved yet: compiling fails before the program runs.
                self.failed = True
                reason = str(error).strip().splitlines() or [type(error).__name__]
                message = f"torch.compile failed, going on without it: {reason[0]}"
                warnings.warn(message, stacklevel=2)
        return group.update(self.algorithm, batch, numbers)

    def _call(self, group: Group, batch: Batch, numbers: Tensor) -> Tensor:
        kind = (group.layout.signature, group.layout.depth, group.network.mlp.blended)
        key = (kind, group.size, batch.obs.shape)
        if program := self._programs.get(key):
            return program(group.size, (*group.tensors, *batch, numbers))
        # copies: where a view begins in its memory would become an argument of the program
        batch, numbers = Batch(*(field.clone() for field in batch)), numbers.clone()
        tensors = (*group.tensors, *batch, numbers)
        if kind not in self._functions:
            function = functional_update(group.network, self.algorithm)
            self._functions[kind] = _compile(function, self._backend)
        shape = (kind, batch.obs.shape[1:], group.size == 1)
        if shape not in self._shapes:  # marks count while compiling only
            self._shapes.add(shape)
            if group.size > 1:  # the group size comes and goes with evolution; 1 is always special
                for tensor in tensors:
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        matrices = (group.theta, group.target, group.m, group.v)
        td_error = self._functions[kind](*matrices, group.live, batch, numbers)
        if program := self._found(group.size, tensors):
            self._programs[key] = program
        return td_error

    def _backend(self, graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """torch.compile's own, with a note of what it calls."""
        made = torch._inductor.compile(graph, inputs, {"cpp_wrapper": True})
        function = innermost_fn(made)  # without what keeps torch.compile from compiling it again

        def noted(*arguments: Any) -> Any:
            self._called = function, arguments
            return function(*arguments)

        return noted

    def _found(self, size: int, tensors: Sequence[Tensor]) -> Program | None:
        """What was just called, if it wants nothing but these tensors and the group's size."""
        if self._called is None:
            return None
        (function, arguments), self._called = self._called, None
        place_of = {id(tensor): place for place, tensor in enumerate(tensors)}
        known = all(id(a) in place_of or (type(a) is int and a == size) for a in arguments)
        return Program(function, [place_of.get(id(a)) for a in arguments]) if known else None


def _compile(function: UpdateFunction, backend: Callable[..., Any]) -> UpdateFunction:
    """Compile under a code object of its own.

    torch.compile keeps its programs by code object. Sharing one, every call would look through the
    programs of all kinds for its own, and all kinds together would share one limit.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = FunctionType(code, function.__globals__, function.__name__, None, closure)
    compiled: UpdateFunction = torch.compile(
        own,
        backend=backend,
        fullgraph=True,
        dynamic=False,  # widths static: dynamic ones were 26 % slower
    )
    return compiled
