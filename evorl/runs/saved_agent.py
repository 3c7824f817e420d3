"""One agent on disk: weights as safetensors, everything else as JSON. Nothing in it can execute."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from evorl.errors import RunError
from evorl.genome import Genome
from evorl.networks.layout import Parameters, freeze, network_part, row_shapes
from evorl.networks.module import QNetwork, to_module
from evorl.networks.spec import NetworkSpec, Spec

WEIGHTS, FACTS = "weights.safetensors", "agent.json"


class SavedAgent(NamedTuple):
    """An agent as it was saved."""

    genome: Genome
    specs: dict[str, Spec]
    parameters: Parameters
    facts: dict[str, Any]  # what else was known of it: environment, fitness, steps

    def module(self) -> QNetwork:
        """An ordinary nn.Module: Q values [B, A] of observations [B, ...]."""
        name, spec = next(iter(self.specs.items()))
        assert isinstance(spec, NetworkSpec)
        own = self.genome.architectures[name]
        return to_module(spec, own, network_part(self.parameters, name))


@dataclasses.dataclass(frozen=True)
class AgentFacts:
    """What agent.json says."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    format: Literal[1]
    genome: Genome
    specs: dict[str, Spec]
    facts: dict[str, Any]


def save_agent(folder: Path, agent: SavedAgent) -> None:
    """Write the agent's two files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # not by save_file, which lets nobody else read what it writes
    (folder / WEIGHTS).write_bytes(save(freeze(agent.parameters)))
    facts = AgentFacts(1, agent.genome, agent.specs, dict(sorted(agent.facts.items())))
    text = json.dumps(dataclasses.asdict(facts), indent=2, allow_nan=False)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def load_agent(folder: str | Path) -> SavedAgent:
    """Read an agent; RunError if the files are missing, damaged or don't fit each other."""
    folder = Path(folder)
    try:
        text = (folder / FACTS).read_bytes()
        parameters = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{folder}: no readable agent there: {reason}") from None
    try:
        read = TypeAdapter(AgentFacts).validate_json(text, strict=True)
        _check_weights(parameters, read)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}".splitlines()[0]
        raise RunError(f"{folder / FACTS}: not an agent of this version: {reason}") from None
    except ValueError as error:
        raise RunError(f"{folder / FACTS}: not an agent of this version: {error}") from None
    return SavedAgent(read.genome, read.specs, parameters, read.facts)


def _check_weights(parameters: Parameters, facts: AgentFacts) -> None:
    expected = row_shapes(facts.specs, facts.genome.architectures)
    if {name: tuple(value.shape) for name, value in parameters.items()} != expected:
        raise ValueError("the weights don't fit the architecture")
    if not all(value.is_floating_point() for value in parameters.values()):
        raise ValueError("the weights are no floating-point numbers")
