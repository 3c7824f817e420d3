"""In what a child differs from its parent, in words."""

import math
from collections.abc import Iterator, Sequence

from evorl.genome import Architecture, Genome

DIGITS = 3  # significant ones of a number, or as many as it takes to tell two numbers apart
EXACT = 17  # significant digits that tell any two floats apart
NOISE = "parameters"  # the mutation that changes weights only


def describe_change(parent: Genome, child: Genome) -> str:
    """What changed, such as `lr 0.001 → 0.002`; of several networks `critic layer_norm on`."""
    changes = [
        f"{_prefix(parent, name)}{change}"
        for name, old in parent.architectures.items()
        for change in _architecture_changes(old, child.architectures[name])
    ]
    changes += _hyperparameter_changes(parent, child)
    if changes:
        return ", ".join(changes)
    return "noise on the weights" if child.mutation == NOISE else "copy"


def describe_architectures(genome: Genome) -> str:
    """The shapes of an agent's networks, by name if there are several."""
    return ", ".join(
        f"{_prefix(genome, name)}{describe_architecture(architecture)}"
        for name, architecture in genome.architectures.items()
    )


def describe_architecture(architecture: Architecture) -> str:
    """The shape of a network, such as `64-64 relu`."""
    words = [join(architecture.hidden), architecture.activation]
    if architecture.channels:
        words.insert(0, f"channels {join(architecture.channels)},")
    words += [name for name in ("layer_norm", "dueling") if getattr(architecture, name)]
    return " ".join(words)


def describe_number(value: float, digits: int = DIGITS) -> str:
    """A number with this many significant digits; near 1, as gamma is, those of its rest to 1."""
    if value == int(value):
        return str(int(value))
    if 0.9 < value < 1:
        places = digits - 1 - math.floor(math.log10(1 - value)) - 1
        return f"{value:.{min(places, EXACT)}f}".rstrip("0").rstrip(".")
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def join(sizes: Sequence[int]) -> str:
    """Sizes of layers, such as 64-96."""
    return "-".join(str(size) for size in sizes)


def _prefix(genome: Genome, network: str) -> str:
    """What tells a network from the agent's others."""
    return f"{network} " if len(genome.architectures) > 1 else ""


def _hyperparameter_changes(parent: Genome, child: Genome) -> Iterator[str]:
    for name, old in parent.hyperparameters.items():
        new = child.hyperparameters[name]
        if old == new:
            continue
        for digits in range(DIGITS, EXACT + 1):
            texts = describe_number(old, digits), describe_number(new, digits)
            if texts[0] != texts[1]:
                break
        yield f"{name} {' → '.join(texts)}"


def _architecture_changes(old: Architecture, new: Architecture) -> Iterator[str]:
    yield from _layer_changes(old, new)
    for name in ("channels", "kernels", "strides"):
        if getattr(old, name) != getattr(new, name):
            yield f"{name} {join(getattr(old, name))} → {join(getattr(new, name))}"
    if old.activation != new.activation:
        yield f"activation {old.activation} → {new.activation}"
    for name in ("layer_norm", "dueling"):
        if getattr(old, name) != getattr(new, name):
            yield f"{name} {'on' if getattr(new, name) else 'off'}"


def _layer_changes(old: Architecture, new: Architecture) -> Iterator[str]:
    if new.depth == old.depth + 1 and (layer := _extra_layer(new, old)):
        yield f"layer {layer} added: {join(new.hidden)}"
    elif new.depth == old.depth - 1 and (layer := _extra_layer(old, new)):
        yield f"layer {layer} removed: {join(new.hidden)}"
    elif old.hidden != new.hidden:
        yield f"hidden {join(old.hidden)} → {join(new.hidden)}"
    elif old.gated != new.gated:
        layers = zip(old.gated, new.gated, strict=True)
        for layer, (before, after) in enumerate(layers, 1):
            if before != after:
                yield f"layer {layer} {'gated' if after else 'no longer gated'}"


def _extra_layer(deeper: Architecture, other: Architecture) -> int | None:
    """The layer, counted from 1, without which the deeper network is the other; the last of any."""
    for by_gates in (True, False):
        for k in reversed(range(deeper.depth)):
            hidden = deeper.hidden[:k] + deeper.hidden[k + 1 :]
            gated = deeper.gated[:k] + deeper.gated[k + 1 :]
            if hidden == other.hidden and (gated == other.gated or not by_gates):
                return k + 1
    return None
