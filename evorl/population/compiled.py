"""torch.compile for rounds of updates: when it pays, how it stays alive, what if it fails."""

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
from torch.fx.experimental import _config

from evorl.algorithms.base import Algorithm
from evorl.experience.transitions import Samples
from evorl.networks.layout import Signature
from evorl.population.group import Group
from evorl.population.update import Outcome, RoundFunction, eager_round, functional_round

WORTH_UPDATES = 100_000  # compiling costs 5 to 25 s a program and saves 0.3 ms an update or more

SIZES: Any = _config  # of symbolic shapes; its functions are made when it is imported

LOOP = "torch.ops.higher_order.while_loop"

PROGRAMS = 64  # of one kind: one for each number of agents, of some convolutions; torch has 8

Compile = Literal["auto"] | bool
Kind = tuple[Signature, tuple[bool, ...]]
Key = tuple[object, ...]


def wants_compiling(setting: Compile, updates: int, device: str = "cpu") -> bool:
    """Whether a run of so many updates is to be compiled; `auto` needs a C++ compiler, too.

    It stays eager on other devices, where nobody has tried it yet.
    """
    if setting == "auto":
        return updates >= WORTH_UPDATES and device == "cpu" and has_compiler()
    return setting


def has_compiler() -> bool:
    """Is there a C++ compiler that torch.compile could call?"""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


class Program(NamedTuple):
    """What torch.compile made of a round, called without its guards and wrappers.

    They cost 0.1 ms a call, whatever the number of agents.
    """

    function: Callable[..., Sequence[Tensor]]
    arguments: list[int | Tensor]  # the place among a round's tensors, or a size that never changes

    def __call__(self, tensors: Sequence[Tensor]) -> Outcome:
        """Move every row by the updates of a round."""
        given = [tensors[a] if type(a) is int else a for a in self.arguments]
        errors, losses = self.function(*given)
        return errors, losses


class CompiledRounds:
    """One compiled round for groups that differ in sizes only; a failure turns all eager."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.failed = False
        self._functions: dict[Kind, RoundFunction] = {}
        # by kind and how the samples lie in memory, on which all guards depend: so they held before
        self._programs: dict[Key, Program] = {}
        self._called: tuple[Callable[..., Any], Sequence[Any]] | None = None
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, PROGRAMS)
        # torch.compile keeps no program with a loop on disk unless told to; the next run would
        # compile it again, which takes 10 s
        torch._inductor.config.unsafe_marked_cacheable_functions[LOOP] = torch.__version__

    def learn(self, group: Group, samples: Samples, numbers: Tensor) -> Outcome:
        """Move every row of the group by the updates of a round, in place.

        Samples are [U, P, B, ...], and coefficients [U, 6, P, 1].
        """
        if self.failed:
            return eager_round(group, self.algorithm, samples, numbers)
        kind = (group.layout.signature, group.network.mlp.blended)
        layouts = ((field.shape, field.stride(), field.dtype) for field in samples)
        key = (kind, *layouts)
        if program := self._programs.get(key):
            return program((*group.tensors, *samples, numbers))
        try:
            return self._compile(key, kind, group, samples, numbers)
        except Exception as error:
            # Nothing has moved yet: compiling fails before the program runs.
            self.failed, self._called = True, None
            reason = str(error).strip().splitlines() or [type(error).__name__]
            message = f"torch.compile failed, going on without it: {reason[0]}"
            warnings.warn(message, stacklevel=2)
            return eager_round(group, self.algorithm, samples, numbers)

    def _compile(
        self, key: Key, kind: Kind, group: Group, samples: Samples, numbers: Tensor
    ) -> Outcome:
        # copies: where a view begins in its memory would become an argument of the program
        samples = Samples(*(_apart(field) for field in samples))
        tensors = (*group.tensors, *samples, numbers)
        alike = kind[0]._replace(widths=()), kind[1]
        if alike not in self._functions:
            function = functional_round(group.network, self.algorithm)
            self._functions[alike] = _compiled(function, self._backend)
        matrices = (group.theta, group.target, group.m, group.v)
        _mark_sizes(group, matrices, samples, numbers)
        # else a size of 1 would get a program of its own, and so would as many updates as agents
        with SIZES.patch(backed_size_oblivious=True, use_duck_shape=False):
            outcome = self._functions[alike](matrices, group.live, samples, group.gamma, numbers)
        if program := self._found(tensors):
            self._programs[key] = program
        return outcome

    def _backend(self, graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """torch.compile's own, with a note of what it calls."""
        made = torch._inductor.compile(graph, inputs, {"cpp_wrapper": True})
        function = innermost_fn(made)  # without what keeps torch.compile from compiling it again

        def noted(*arguments: Any) -> Any:
            self._called = function, arguments
            return function(*arguments)

        return noted

    def _found(self, tensors: Sequence[Tensor]) -> Program | None:
        """What was just called, if it wants nothing but these tensors and their sizes."""
        if self._called is None:
            return None
        (function, called), self._called = self._called, None
        place_of = {id(tensor): place for place, tensor in enumerate(tensors)}
        arguments: list[int | Tensor] = []
        for value in called:
            if type(value) is int:  # as a tensor, which the program would make of it at every call
                arguments.append(torch.tensor(value))
            elif id(value) in place_of:
                arguments.append(place_of[id(value)])
            else:
                return None
        return Program(function, arguments)


def _apart(view: Tensor) -> Tensor:
    """A copy with memory of its own, but the same strides."""
    strides = view.stride()
    return torch.empty_strided(view.shape, strides, dtype=view.dtype, device=view.device).copy_(
        view
    )


def _mark_sizes(
    group: Group, matrices: Sequence[Tensor], samples: Samples, numbers: Tensor
) -> None:
    """Mark what comes and goes with evolution: agents, updates, batches and the widths of layers.

    A program for all of them is as fast as one of their own, and has the same bits.
    """
    always = perhaps = torch._dynamo.maybe_mark_dynamic
    if group.network.cnn is None:  # some convolutions are a loop over the agents
        always = torch._dynamo.mark_dynamic
    for tensor in group.tensors:
        always(tensor, 0)
    for tensor in (*samples, numbers):
        always(tensor, 0)
    for tensor in samples:
        always(tensor, 1)
        perhaps(tensor, 2)
    always(numbers, 2)
    for mask in group.live:
        perhaps(mask.units, 2)
    for matrix in matrices:  # as long as widths make it
        perhaps(matrix, 1)


def _compiled(function: RoundFunction, backend: Callable[..., Any]) -> RoundFunction:
    """Compile under a code object of its own.

    torch.compile keeps its programs by code object. Sharing one, every call would look through the
    programs of all kinds for its own, and all kinds together would share one limit.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = FunctionType(code, function.__globals__, function.__name__, None, closure)
    compiled: RoundFunction = torch.compile(
        own,
        backend=backend,
        fullgraph=True,
        dynamic=False,  # but for what is marked
    )
    return compiled
