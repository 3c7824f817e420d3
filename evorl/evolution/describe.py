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
    for name, value in parent.hyperparameters.items():
        if value != (new := child.hyperparameters[name]):
            changes.append(f"{name} {_number_change(value, new)}")
    if changes:
        return ", ".join(changes)
    return "noise on the weights" if child.mutation == NOISE else "copy"


def describe_architectures(genome: Genome) -> str:
    """The shapes of an agent's networks, such as `64-64 relu`, by name if there are several."""
    return ", ".join(
        f"{_prefix(genome, name)}{_describe_architecture(architecture)}"
        for name, architecture in genome.architectures.items()
    )


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


def _describe_architecture(architecture: Architecture) -> str:
    words = [_join(architecture.hidden), architecture.activation]
    if architecture.channels:
        words.insert(0, f"channels {_join(architecture.channels)},")
    words += [name for name in ("layer_norm", "dueling") if getattr(architecture, name)]
    return " ".join(words)


def _join(sizes: Sequence[int]) -> str:
    return "-".join(str(size) for size in sizes)


def _prefix(genome: Genome, network: str) -> str:
    """What tells a network from the agent's others."""
    return f"{network} " if len(genome.architectures) > 1 else ""


def _number_change(old: float, new: float) -> str:
    for digits in range(DIGITS, EXACT + 1):
        texts = describe_number(old, digits), describe_number(new, digits)
        if texts[0] != texts[1]:
            break
    return " → ".join(texts)


def _architecture_changes(old: Architecture, new: Architecture) -> Iterator[str]:
    sizes = ["channels", "kernels", "strides"]
    if layer := _extra_layer(new, old):
        yield f"layer {layer} added: {_join(new.hidden)}"
    elif layer := _extra_layer(old, new):
        yield f"layer {layer} removed: {_join(new.hidden)}"
    else:
        sizes.insert(0, "gated" if old.hidden == new.hidden else "hidden")
    for name in sizes:
        if getattr(old, name) != getattr(new, name):
            yield f"{name} {_join(getattr(old, name))} → {_join(getattr(new, name))}"
    if old.activation != new.activation:
        yield f"activation {old.activation} → {new.activation}"
    for name in ("layer_norm", "dueling"):
        if getattr(old, name) != getattr(new, name):
            yield f"{name} {'on' if getattr(new, name) else 'off'}"


def _extra_layer(deeper: Architecture, other: Architecture) -> int | None:
    """The layer, counted from 1, without which the deeper network is the other; the last of any."""
    for k in reversed(range(deeper.depth)):
        hidden = deeper.hidden[:k] + deeper.hidden[k + 1 :]
        gated = deeper.gated[:k] + deeper.gated[k + 1 :]
        if (hidden, gated) == (other.hidden, other.gated):
            return k + 1
    return None
