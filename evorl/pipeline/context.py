"""What the stages of a Task share in one iteration: any attribute, written by one, read by others.

    def collect(ctx):
        ctx.setdefault("env_steps", 0)
        ctx.data = play()
        ctx.env_steps += len(ctx.data)
        ctx.keep("env_steps")  # the next iteration has it, too; ctx.data vanishes

Where stages run at once, each gets a context of its own onto the same values, which notes what it
reads and writes: names that one writes and another one uses are an error, whoever was faster.
"""

import copy
import threading
from typing import Any, NamedTuple

import numpy as np
import torch

from evorl.config import did_you_mean
from evorl.errors import StageError
from evorl.pipeline.router import Router


class MissingAttributeError(AttributeError):
    """A stage read what nobody wrote."""


class Control:
    """What outlives an iteration; the contexts of a task share it.

    Attributes:
        iteration: Iterations completed.
        kept: Names that are carried on, in the order in which they were kept.
        stopping: Set when everything is to end at once: a stage has failed.
        over: Set when no further iteration comes; what runs beside the loop may complete.
        denied: Whether a stage of this iteration was told that it is not the last one.
    """

    def __init__(self) -> None:
        self.iteration = 0
        self.kept: dict[str, None] = {}
        self.stopping, self.over = threading.Event(), threading.Event()
        self._finish = self.denied = False
        self.processes = Router(None)  # the others, if there are any

    @property
    def finishing(self) -> bool:
        """Whether this is the last iteration, here or elsewhere."""
        return self.ending or self.processes.finished

    @property
    def ending(self) -> bool:
        """Whether this process has said that this is the last iteration."""
        return self._finish or self.stopping.is_set() or self.over.is_set()

    @property
    def ended(self) -> bool:
        """Whether no further iteration is to start.

        If another process has finished, but a stage asked in this iteration and was told no, there
        is one more: else it could not do what it does at the end.
        """
        return self.ending or (self.finishing and not self.denied)

    def finish(self) -> None:
        """Let this iteration be the last one, on every process."""
        self._finish = True
        self.processes.finish()

    def share(self, values: dict[str, Any]) -> None:
        """Send values to the other processes, if there are any."""
        self.processes.share(values)


class Use(NamedTuple):
    """How a stage has used a name in this iteration."""

    stage: str
    writes: bool


class Accesses:
    """Who reads and writes what in an iteration whose stages run at once."""

    def __init__(self, context: "Context") -> None:
        self.conflict: StageError | None = None  # the first one, should a stage have caught it
        self.closed = False  # from now on one stage follows the other
        self.present = frozenset(context._values)  # when the iteration began
        self.iteration = context.iteration
        self._uses: dict[str, dict[int, Use]] = {}  # by name, and by place among the stages
        self._lock = threading.Lock()

    def note(self, place: int, stage: str, name: str, writes: bool) -> None:
        """Remember it; StageError if the outcome depends on which of two stages is faster."""
        with self._lock:
            if self.closed:
                return
            uses = self._uses.setdefault(name, {})
            own = uses.get(place)
            if own is not None and (own.writes or not writes):
                return
            uses[place] = Use(stage, writes)
            for other in sorted(uses.keys() - {place}):
                if writes or uses[other].writes:
                    first, second = (uses[i] for i in sorted((place, other)))
                    self.conflict = self.conflict or self._error(name, first, second)
                    raise self.conflict

    def _error(self, name: str, first: Use, second: Use) -> StageError:
        if name not in self.present and not first.writes:  # it cannot be read before
            first, second = second, first
        does = ["writes" if use.writes else "reads" for use in (first, second)]
        return StageError(
            f"ctx.{name}: stage {first.stage!r} {does[0]} it while stage {second.stage!r} {does[1]}"
            f" it, in iteration {self.iteration}; put them in order:"
            f" task.use(task.serial({first.stage}, {second.stage}))"
        )


class Watch(NamedTuple):
    """A stage that runs beside others, and where what it does is noted."""

    accesses: Accesses
    place: int
    stage: str

    def note(self, name: str, writes: bool) -> None:
        """The stage is about to read or write a name."""
        self.accesses.note(self.place, self.stage, name, writes)

    def note_default(self, name: str) -> None:
        """It sets a default: writes, if the iteration began without the name, whoever is first."""
        self.note(name, name not in self.accesses.present)


class Context:
    """Any attribute; fresh in every iteration, except for the names that are kept."""

    __slots__ = ("_control", "_iteration", "_values", "_vanished", "_watch")
    _control: Control
    _iteration: int
    _values: dict[str, Any]
    _vanished: frozenset[str]  # names of the iteration before that were not kept
    _watch: Watch | None  # in a stage that runs beside others

    def __init__(self, **values: Any) -> None:
        for name in values:
            _check_name(name)
        self._set_up(values, Control())

    def _set_up(
        self,
        values: dict[str, Any],
        control: Control,
        vanished: frozenset[str] = frozenset(),
        watch: Watch | None = None,
    ) -> None:
        slots = (control, control.iteration, values, vanished, watch)
        for slot, value in zip(Context.__slots__, slots, strict=True):
            object.__setattr__(self, slot, value)

    @property
    def iteration(self) -> int:
        """Iterations completed before this one."""
        return self._iteration

    @property
    def finish(self) -> bool:
        """Whether this iteration is the last one, because a stage of any process said so."""
        finishing = self._control.finishing
        self._control.denied |= not finishing
        return finishing

    @finish.setter
    def finish(self, value: bool) -> None:
        """True ends the task after this iteration, on all processes; False leaves it as it is."""
        if value:
            self._control.finish()

    def keep(self, *names: str) -> None:
        """Carry these names on from iteration to iteration, from now on."""
        for name in names:
            _check_name(name)
            self._control.kept[name] = None

    def share(self, *names: str) -> None:
        """Send these values, as they are now, to the other processes: `task.parallel_ctx`.

        They arrive together, and replace what was shared under the same names before.
        """
        self._control.share({name: getattr(self, name) for name in names})

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or the default where nobody wrote it."""
        if self._watch is not None:
            self._watch.note(name, False)
        return self._values.get(name, default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The value of a name, which becomes the default where nobody wrote it."""
        _check_name(name)
        if self._watch is not None:
            self._watch.note_default(name)
        return self._values.setdefault(name, default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Context.__slots__:  # copy and the like ask for them
            raise AttributeError(name)
        if self._watch is not None:
            self._watch.note(name, False)
        try:
            return self._values[name]
        except KeyError:
            raise MissingAttributeError(self._missing(name)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "finish":
            object.__setattr__(self, name, value)
            return
        _check_name(name)
        if self._watch is not None:
            self._watch.note(name, True)
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        if self._watch is not None:
            self._watch.note(name, True)
        if name not in self._values:
            raise MissingAttributeError(self._missing(name))
        del self._values[name]

    def __contains__(self, name: str) -> bool:
        if self._watch is not None:
            self._watch.note(name, False)
        return name in self._values

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._values})

    def __repr__(self) -> str:
        return f"Context({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def _missing(self, name: str) -> str:
        if name in self._vanished:
            return (
                f"ctx.{name}: it vanished with the iteration before; ctx.keep({name!r}) carries it"
                " on"
            )
        known = {*self._values, *(own for own in RESERVED if not own.startswith("_"))}
        return f"ctx.{name}: no stage has written it{did_you_mean(name, known)}"


RESERVED = frozenset(name for name in vars(Context) if not name.startswith("__"))


def _check_name(name: str) -> None:
    if name in RESERVED:
        raise AttributeError(f"ctx.{name}: this name is the context's own; choose another one")


def control_of(context: Context) -> Control:
    """What a context shares with those before and after it."""
    return context._control


def renewed(context: Context) -> Context:
    """The next iteration's: with the names that are kept."""
    values = context._values
    kept = {name: values[name] for name in list(context._control.kept) if name in values}
    return _like(context, kept, frozenset(values.keys() - kept.keys()))


def watched(context: Context, accesses: Accesses, place: int, stage: str) -> Context:
    """The same values, as a stage sees them that runs beside others, in this place among them."""
    return _like(context, context._values, context._vanished, Watch(accesses, place, stage))


def snapshot(context: Context) -> Context:
    """A copy that nothing else writes: tensors, arrays, modules, and containers of them, too."""
    values = {name: _copied(value) for name, value in context._values.items()}
    return _like(context, values, context._vanished)


def _like(
    context: Context, values: dict[str, Any], vanished: frozenset[str], watch: Watch | None = None
) -> Context:
    made = Context.__new__(Context)
    made._set_up(values, context._control, vanished, watch)
    return made


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray | torch.nn.Module):
        return copy.deepcopy(value)
    if isinstance(value, dict):
        made = copy.copy(value)  # an OrderedDict stays one
        for key, each in value.items():
            made[key] = _copied(each)
        return made
    if isinstance(value, tuple):
        parts = [_copied(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list | set | frozenset):
        return type(value)(_copied(each) for each in value)
    return value
