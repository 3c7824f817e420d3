"""torch.compile for rounds of updates: when it pays, how it survives evolution, what if it fails.

Legend: U updates of a round, K networks, P agents, B batch.

This is the one door to torch's private functions. `RoundPrograms` makes one program of a whole
round, with a loop inside and symbols for all sizes, and calls it without torch.compile's guards and
wrappers: the fastest way, by functions that another version of torch may not have. `UpdatePrograms`
makes one program of a single update through torch.compile as it is documented, slower by a call
each update. `CompiledRounds` takes the first that works, and eager updates in the end.
"""

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from evorl.algorithms import Algorithm, Hyperparameters
from evorl.networks import LayerMask, Masks, Names, Signature
from evorl.population.group import Group, Matrices
from evorl.population.optimizer import RoundCoefficients
from evorl.population.update import (
    AnySamples,
    Outcome,
    Tensors,
    UpdateFunction,
    UpdateResult,
    eager_round,
    make_functional_update,
    outcome_of,
    reward_scale,
    updates_of,
)

try:
    from torch._dynamo.eval_frame import innermost_fn
    from torch._higher_order_ops.while_loop import while_loop
    from torch.fx import GraphModule
    from torch.fx.experimental import _config

    PRIVATE_WORKS = hasattr(torch._inductor, "compile")
    SIZES: Any = _config  # of symbolic shapes; its functions are made when it is imported
except ImportError:
    PRIVATE_WORKS = False

WORTH_UPDATES = 100_000  # compiling costs 5 to 25 s a program and saves 0.3 ms an update or more
CACHED = ("torch.ops.higher_order.while_loop", "torch.ops.higher_order.cond")
PROGRAMS = 64  # of one shape: one for each number of agents, of some convolutions; torch has 8

Compile = Literal["auto"] | bool
Shape = tuple[tuple[Signature, tuple[bool, ...]], ...]  # of each network, and where it has skips
Key = tuple[object, ...]
RoundFunction = Callable[[Matrices, Mapping[str, Masks], AnySamples, Tensor, Tensor], Outcome]


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

    def __init__(
        self, algorithm: Algorithm, private: bool = PRIVATE_WORKS, delayed: Names = frozenset()
    ) -> None:
        """`delayed` are the networks that some updates move for no agent."""
        self.algorithm = algorithm
        self._ways: list[RoundPrograms | UpdatePrograms] = [UpdatePrograms(algorithm, delayed)]
        if private:
            self._ways.append(RoundPrograms(algorithm, delayed))

    @property
    def failed(self) -> bool:
        """Whether nothing is compiled any more."""
        return not self._ways

    def learn(self, group: Group, samples: AnySamples, steps: RoundCoefficients) -> Outcome:
        """Move every row of the group by the updates of a round, in place.

        Samples are [U, P, B, ...].
        """
        if not len(steps.coefficients):
            none = group.theta.new_zeros(group.size)
            made = none.long() if self.algorithm.may_stop else None
            return Outcome(torch.zeros_like(samples.weight), none, made)
        while self._ways:
            try:
                return self._ways[-1](group, samples, steps.coefficients)
            except Exception as error:
                # Nothing has moved yet: compiling fails before the program runs.
                self._ways.pop()
                reason = str(error).strip().splitlines() or [type(error).__name__]
                then = "trying its public way" if self._ways else "updates are eager from here on"
                warnings.warn(f"torch.compile failed, {then}: {reason[0]}", stacklevel=2)
        return eager_round([group], self.algorithm, [samples], [steps])[0]


def shape_of(group: Group) -> Shape:
    """What a program depends on, and the widths of this group."""
    return tuple((own.layout.signature, own.mlp.skips) for own in group.networks.values())


def without_widths(shape: Shape) -> Shape:
    """What a program depends on."""
    return tuple((own._replace(widths=()), skips) for own, skips in shape)


class UpdatePrograms:
    """A compiled function of a single update for each shape, through the public torch.compile."""

    def __init__(self, algorithm: Algorithm, delayed: Names = frozenset()) -> None:
        self.algorithm, self.delayed = algorithm, delayed
        self.functions: dict[Shape, UpdateFunction] = {}

    def __call__(self, group: Group, samples: AnySamples, numbers: Tensor) -> Outcome:
        """Move every row of the group by the updates of a round, in place."""
        shape = shape_of(group)
        if shape not in self.functions:
            function = make_functional_update(group, self.algorithm, self.delayed)
            self.functions[shape] = torch.compile(_apart_from_others(function), fullgraph=True)
        # the same memory without the marks of _mark_sizes, which this program would refuse
        before = Matrices(*(matrix.detach() for matrix in group.matrices))
        masks = {name: _detached(own) for name, own in group.masks.items()}
        values, found = group.hyperparameters.values.detach(), list[UpdateResult]()
        active = torch.ones_like(before.theta[:, :1], dtype=torch.bool)
        made = torch.zeros_like(active[:, 0], dtype=torch.int64)
        for (batch, _), own in zip(updates_of(group, samples, numbers), numbers, strict=True):
            apart = type(batch)(*(field.contiguous() for field in batch))
            given = (before, masks, apart, values, own.contiguous(), active)
            one, before, active = self.functions[shape](*given)
            made += active[:, 0]
            found.append(one)
        for matrix, new in zip(group.matrices, before, strict=True):
            matrix.copy_(new)
        outcome = outcome_of(self.algorithm, found, samples.weight)
        return outcome._replace(made=made) if self.algorithm.may_stop else outcome


class Program(NamedTuple):
    """What torch.compile made of a round, called without its guards and wrappers.

    They cost 0.1 ms a call, whatever the number of agents.
    """

    function: Callable[..., Sequence[Tensor]]
    arguments: list[int | Tensor]  # the place among a round's tensors, or a size that never changes

    def __call__(self, tensors: Sequence[Tensor]) -> Outcome:
        """Move every row by the updates of a round."""
        given = [tensors[a] if type(a) is int else a for a in self.arguments]
        return Outcome(*self.function(*given))


class RoundPrograms:
    """One program for rounds of groups that differ in sizes only."""

    def __init__(self, algorithm: Algorithm, delayed: Names = frozenset()) -> None:
        self.algorithm, self.delayed = algorithm, delayed
        self.functions: dict[Shape, RoundFunction] = {}
        # by shape and how samples lie in memory, on which all guards depend: so they held before
        self._programs: dict[Key, Program] = {}
        self._called: tuple[Callable[..., Any], Sequence[Any]] | None = None
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, PROGRAMS)
        # torch.compile keeps no program with a loop or branch on disk unless told to; the next run
        # would compile it again, which takes 10 s or more
        cacheable = torch._inductor.config.unsafe_marked_cacheable_functions
        cacheable.update(dict.fromkeys(CACHED, torch.__version__))

    def __call__(self, group: Group, samples: AnySamples, numbers: Tensor) -> Outcome:
        """Move every row of the group by the updates of a round, in place."""
        shape = shape_of(group)
        layouts = ((field.shape, field.stride(), field.dtype) for field in samples)
        key = (shape, *layouts)
        if program := self._programs.get(key):
            return program((*group.tensors, *samples, numbers))
        return self._compile(key, without_widths(shape), group, samples, numbers)

    def _compile(
        self, key: Key, shape: Shape, group: Group, samples: AnySamples, numbers: Tensor
    ) -> Outcome:
        # copies: where a view begins in its memory would become an argument of the program
        samples, numbers = type(samples)(*map(_apart, samples)), _apart(numbers)
        tensors = (*group.tensors, *samples, numbers)
        if shape not in self.functions:
            update = make_functional_update(group, self.algorithm, self.delayed)
            function = looped(update, self.algorithm, group)
            self.functions[shape] = torch.compile(
                _apart_from_others(function),
                backend=self._backend,
                fullgraph=True,
                dynamic=False,  # but for what is marked
            )
        _mark_sizes(group, samples, numbers)
        # else a size of 1 would get a program of its own, and so would as many updates as agents
        with SIZES.patch(backed_size_oblivious=True, use_duck_shape=False):
            outcome = self.functions[shape](
                group.matrices, group.masks, samples, group.hyperparameters.values, numbers
            )
        if program := self._found(tensors):
            self._programs[key] = program
        return outcome

    def _backend(self, graph: "GraphModule", inputs: list[Any]) -> Callable[..., Any]:
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


def looped(update: UpdateFunction, algorithm: Algorithm, group: Group) -> RoundFunction:
    """A round of updates as one function of plain tensors: one program, however long."""
    closed, stops = algorithm.has_closed_form(), algorithm.may_stop
    names, layout = group.names, group.layout

    def compiled_round(
        matrices: Matrices,
        masks: Mapping[str, Masks],
        samples: AnySamples,
        values: Tensor,
        numbers: Tensor,
    ) -> Outcome:
        gamma, count = Hyperparameters(names, values)["gamma"], len(numbers)
        batches = samples.batches(gamma, reward_scale(layout, matrices.theta, masks))

        def continues(u: Tensor, *_: Tensor) -> Tensor:
            return u < count

        def body(u: Tensor, priorities: Tensor, *carried: Tensor) -> Tensors:
            place = int(u.item())
            torch._check(place >= 0)  # type: ignore[no-untyped-call]
            torch._check(place < count)  # type: ignore[no-untyped-call]
            batch = type(batches)(*(field.select(0, place) for field in batches))
            before, active = Matrices(*carried[-4:]), carried[1] if stops else numbers
            given = (batch, values, numbers.select(0, place))
            found, after, active = update(before, masks, *given, active)
            priorities = torch.select_scatter(priorities, found.priority, 0, place)
            losses = () if found.loss is None else (carried[0] + found.loss,)
            stopping = (active, carried[2] + active.select(1, 0)) if stops else ()
            return u + 1, priorities, *losses, *stopping, *after

        first = torch.zeros((), dtype=torch.int64, device=numbers.device)
        extra: Tensors = () if closed else (torch.zeros_like(gamma),)
        if stops:
            active = torch.ones_like(matrices.theta[:, :1], dtype=torch.bool)
            extra = (*extra, active, torch.zeros_like(active.select(1, 0), dtype=torch.int64))
        start = (first, torch.zeros_like(samples.weight), *extra, *(m.clone() for m in matrices))
        _, priorities, *carried = while_loop(continues, body, start)  # type: ignore[no-untyped-call]
        for matrix, new in zip(matrices, carried[-4:], strict=True):
            matrix.copy_(new)
        if closed:
            return Outcome(priorities, algorithm.loss_of(priorities, samples.weight).sum(0))
        return Outcome(priorities, carried[0], carried[2] if stops else None)

    return compiled_round


def _detached(masks: Masks) -> Masks:
    """Other tensors in the same memory."""
    return tuple(LayerMask(*(part.detach() for part in mask)) for mask in masks)


def _apart(view: Tensor) -> Tensor:
    """A copy with memory of its own, but the same strides."""
    strides = view.stride()
    return torch.empty_strided(view.shape, strides, dtype=view.dtype, device=view.device).copy_(
        view
    )


def _mark_sizes(group: Group, samples: AnySamples, numbers: Tensor) -> None:
    """Mark what comes and goes with evolution: agents, updates, batches and the widths of layers.

    A program for all of them is as fast as one of their own, and has the same bits.
    """
    always = perhaps = torch._dynamo.maybe_mark_dynamic
    if all(own.cnn is None for own in group.networks.values()):
        always = torch._dynamo.mark_dynamic  # some convolutions are a loop over the agents
    for tensor in group.tensors[:-1]:
        always(tensor, 0)
    always(group.hyperparameters.values, 1)
    for tensor in (*samples, numbers):
        always(tensor, 0)
    for tensor in samples:
        always(tensor, 1)
        perhaps(tensor, 2)
    always(numbers, 3)
    for masks in group.masks.values():
        for mask in masks:
            perhaps(mask.units, 2)
    for matrix in group.matrices:  # as long as widths make it
        perhaps(matrix, 1)


def _apart_from_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own.

    torch.compile keeps its programs by code object. Sharing one, every call would look through the
    programs of all shapes for its own, and all together would share one limit.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    return FunctionType(code, function.__globals__, function.__name__, None, closure)
