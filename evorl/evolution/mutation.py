"""A child from its parent: one kind of mutation each, drawn by the weights of a configuration.

A mutation of your own is a function of the parent's genome, its state and a generator to those of
the child. It may change architectures and hyperparameters of the genome; the rest is filled in.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from pydantic import ValidationError

from evorl.algorithms import Declaration
from evorl.config import MutationConfig, explain, resolve
from evorl.errors import RunError, raised
from evorl.evolution.explore import Explore
from evorl.evolution.surgery import (
    UnitAxes,
    add_layer,
    add_units,
    all_units,
    remove_layer,
    remove_units,
    reset_dormant,
)
from evorl.genome import Activation, Architecture, Genome
from evorl.networks import NetworkSpec, Spec, row_shapes
from evorl.population import PARTS, AgentState

T = TypeVar("T")


class Child(NamedTuple):
    """A new agent."""

    genome: Genome
    state: AgentState


class Mutation:
    """Makes children: a pure function of the parent and a generator."""

    def __init__(
        self,
        config: MutationConfig,
        specs: Mapping[str, Spec],
        explore: Explore,
        algorithm: Declaration,
    ) -> None:
        self.config, self.specs, self.explore = config, dict(specs), explore
        self.algorithm = algorithm
        self.networks = {
            name: spec for name, spec in specs.items() if isinstance(spec, NetworkSpec)
        }

    def __call__(
        self,
        parent: Genome,
        state: AgentState,
        *,
        id: int,
        generation: int,
        fitness: float,
        random: Generator,
    ) -> Child:
        """A child of this parent, whose fitness was this, to train from this generation on."""
        child, mutation = parent, self._kind(parent, random)
        if mutation in self.config.user:
            child, state = self._users_own(mutation, parent, state, random)
        elif mutation == "architecture":
            mutation, child, state = self._change(parent, state, random)
        elif mutation == "parameters":
            state = self._disturb(parent, state, random)
        elif mutation == "activation":
            name, activation = _draw(self._activations(parent), random)
            own = dataclasses.replace(parent.architectures[name], activation=activation)
            child = _with_architecture(parent, name, own)
        elif mutation == "hyperparameters":
            values = self.explore.propose(dict(parent.hyperparameters), fitness, generation, random)
            child = dataclasses.replace(parent, hyperparameters=values)
        genome = dataclasses.replace(
            child, id=id, parent=parent.id, born=generation, mutation=mutation
        )
        return Child(genome, state)

    def _kind(self, parent: Genome, random: Generator) -> str:
        """One kind of those that are possible for this parent; none if there is none."""
        possible = {
            "none": True,
            "architecture": any(any(self._moves(parent, name)) for name in self.networks),
            "parameters": True,
            "activation": bool(self._activations(parent)),
            "hyperparameters": bool(self.explore.spaces),
        }
        weights = {kind: getattr(self.config, kind) for kind in possible if possible[kind]}
        weights |= self.config.user
        total = sum(weights.values())
        if total == 0:
            return "none"
        return str(random.choice(list(weights), p=np.array(list(weights.values())) / total))

    def _activations(self, parent: Genome) -> list[tuple[str, Activation]]:
        """Networks, and activations that they don't have."""
        return [
            (name, other)
            for name in self.networks
            for other in self.config.activations
            if other != parent.architectures[name].activation
        ]

    def _moves(self, parent: Genome, name: str) -> tuple[list[str], list[UnitAxes]]:
        """Layer mutations and layers of another width that limits and probabilities allow."""
        config, layers, architecture = self.config, [], parent.architectures[name]
        if config.new_layer > 0:
            layers += ["add layer"] * (architecture.depth < config.max_layers)
            layers += ["remove layer"] * (architecture.depth > config.min_layers)
        units = all_units(self.networks[name], architecture) if config.new_layer < 1 else []
        return layers, [own for own in units if any(self._room(own).values())]

    def _room(self, layer: UnitAxes) -> dict[str, int]:
        """By how much the limits let it grow and shrink; what lies outside may come closer."""
        low, high = (getattr(self.config, f"{end}_{layer.kind}") for end in ("min", "max"))
        return {"add": max(0, high - layer.size), "remove": max(0, layer.size - low)}

    def _change(
        self, parent: Genome, state: AgentState, random: Generator
    ) -> tuple[str, Genome, AgentState]:
        """A network, then a change of it."""
        names = [name for name in self.networks if any(self._moves(parent, name))]
        name = _draw(names, random) if len(names) > 1 else names[0]
        layers, widths = self._moves(parent, name)
        architecture, own = parent.architectures[name], state.network(name)
        if layers and (not widths or random.random() < self.config.new_layer):
            move = _draw(layers, random)
            if move == "remove layer":
                changed = remove_layer(architecture, own)
            else:
                after = int(random.integers(architecture.depth))
                changed = add_layer(architecture, own, after, random)
        else:
            layer = _draw(widths, random)
            room = self._room(layer)
            direction = _draw([way for way in room if room[way]], random)
            count = min(_draw(getattr(self.config, layer.kind), random), room[direction])
            move = f"{direction} {layer.kind}"
            if direction == "add":
                changed = add_units(architecture, own, layer, count, random)
            else:
                changed = remove_units(architecture, own, layer, count)
        child = _with_architecture(parent, name, changed.architecture)
        return move, child, state.with_network(name, changed.state)

    def _disturb(self, parent: Genome, state: AgentState, random: Generator) -> AgentState:
        """Dormant units reset, if wanted, and noise on a share of the weights and their targets."""
        if self.config.reset_dormant:
            for name, spec in self.networks.items():
                own = parent.architectures[name]
                reset = reset_dormant(spec, own, state.network(name), random)
                state = state.with_network(name, reset)
        online, target = dict(state.online), dict(state.target)
        # in the layout's order: a state from a file may have another
        for name, shape in row_shapes(self.specs, parent.architectures).items():
            if name.endswith(".weight"):
                chosen = random.random(shape) < self.config.noise_fraction
                factors = np.where(chosen, 1 + self.config.noise * random.standard_normal(shape), 1)
                factor = torch.from_numpy(factors).to(online[name])
                online[name], target[name] = online[name] * factor, target[name] * factor
        return state._replace(online=online, target=target)

    def _users_own(
        self, name: str, parent: Genome, state: AgentState, random: Generator
    ) -> tuple[Genome, AgentState]:
        """What a mutation of the user's makes of copies; RunError if that does not fit the run."""
        who = f"evolution.mutation: {name!r}"
        architectures, values = dict(parent.architectures), dict(parent.hyperparameters)
        genome = dataclasses.replace(parent, architectures=architectures, hyperparameters=values)
        online, target, m, v = ({n: x.clone() for n, x in part.items()} for part in state[:4])
        own = AgentState(online, target, m, v, state.updates)
        try:
            child, after = resolve("mutation", name)(genome, own, random)
            own_values = child.hyperparameters.items()  # numpy's are unknown to JSON
            values = {n: v.item() if isinstance(v, np.generic) else v for n, v in own_values}
            problem = self._wrong_values(values) or self._wrong_weights(child, after, state)
        except Exception as error:
            raise RunError(f"{who} raised {raised(error)}") from error
        if problem:
            raise RunError(f"{who} returned {problem}")
        values = {name: values[name] for name in self.algorithm.hyperparameters}
        return dataclasses.replace(child, hyperparameters=values), after

    def _wrong_values(self, values: dict[str, int | float]) -> str:
        if odd := sorted(self.algorithm.hyperparameters.keys() ^ values.keys()):
            return f"other hyperparameters than there are: {', '.join(odd)}"
        model = type(self.algorithm)
        try:
            model.model_validate(self.algorithm.model_dump() | values)
        except ValidationError as error:
            return f"hyperparameters.{explain(error, model, '', {})}"
        return ""

    def _wrong_weights(self, child: Genome, after: AgentState, before: AgentState) -> str:
        dtype = next(iter(before.online.values())).dtype
        shapes = row_shapes(self.specs, child.architectures)
        for part in PARTS:
            own = getattr(after, part)
            found = {name: (tuple(x.shape), x.dtype) for name, x in own.items()}
            wanted = {name: (shape, dtype) for name, shape in shapes.items()}
            for name in {**wanted, **found}:
                if found.get(name) != wanted.get(name):
                    rule = f"must be {wanted.get(name)} by its architecture"
                    return f"state.{part}: {name} {rule}, got {found.get(name)}"
                if not own[name].isfinite().all():
                    return f"state.{part}: {name} is not finite"
        return ""


def _with_architecture(genome: Genome, name: str, changed: Architecture) -> Genome:
    return dataclasses.replace(genome, architectures={**genome.architectures, name: changed})


def _draw(choices: list[T], random: Generator) -> T:
    return choices[int(random.integers(len(choices)))]
