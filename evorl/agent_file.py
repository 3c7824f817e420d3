"""One agent on disk: weights as safetensors, everything else as JSON. Nothing in it can execute."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from evorl.errors import RunError
from evorl.genome import Architecture, Genome
from evorl.networks.export import QNetwork, to_module
from evorl.networks.layout import Parameters, Problem, freeze, shapes

FORMAT = 1
WEIGHTS, FACTS = "weights.safetensors", "agent.json"


class SavedAgent(NamedTuple):
    """An agent as it was saved."""

    genome: Genome
    problem: Problem
    parameters: Parameters
    facts: dict[str, Any]  # what else was known of it: environment, fitness, steps

    def module(self) -> QNetwork:
        """An ordinary nn.Module: Q values [B, A] of observations [B, ...]."""
        return to_module(self.problem, self.genome.architecture, self.parameters)


def save_agent(folder: Path, agent: SavedAgent) -> None:
    """Write the agent's two files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(freeze(agent.parameters), folder / WEIGHTS)
    facts = {
        "format": FORMAT,
        "genome": dataclasses.asdict(agent.genome),
        "problem": dataclasses.asdict(agent.problem),
        **agent.facts,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def load_agent(folder: str | Path) -> SavedAgent:
    """Read an agent; RunError if the files are missing, damaged or don't fit each other."""
    folder = Path(folder)
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        parameters = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{folder}: no readable agent there: {reason}") from None
    try:
        if facts.pop("format") != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        genome, problem = _genome(facts.pop("genome")), _problem(facts.pop("problem"))
        expected = shapes(problem, genome.architecture)
        if {name: tuple(value.shape) for name, value in parameters.items()} != expected:
            raise ValueError("the weights don't fit the architecture")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / FACTS}: not an agent of this version: {error}") from None
    return SavedAgent(genome, problem, parameters, facts)


def _genome(data: dict[str, Any]) -> Genome:
    shape: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in data["architecture"].items()
    }
    return Genome(data["id"], Architecture(**shape), data["hyperparameters"])


def _problem(data: dict[str, Any]) -> Problem:
    image = data["image"]
    return Problem(**(data | {"image": tuple(image) if image is not None else None}))
