"""A child from its parent: one kind of mutation each, drawn by the weights of a configuration.

A mutation of your own is a function of the parent's genome, its state and a generator to those of
the child. It may change architectures and hyperparameters of the genome; the rest is filled in.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from pydantic import ValidationError

from evorl.algorithms import Declaration
from evorl.config import MutationConfig, explain, resolve
from evorl.errors import RunError, one_line, raised
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
from evorl.networks import NetworkSpec, Parameters, Spec, row_shapes
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
        online, target, m, v = map(_copied, state[:4])
        genome = dataclasses.replace(
            parent,
            architectures=dict(parent.architectures),
            hyperparameters=dict(parent.hyperparameters),
        )
        try:
            own = AgentState(online, target, m, v, state.steps)
            found = resolve("mutation", name)(genome, own, random)
        except Exception as error:
            _refuse(name, f"raised {raised(error)}", error)
        match found:
            case (Genome() as child, AgentState() as after):
                self._check_weights(name, child, after, parent, state)
            case _:
                _refuse(name, f"must return a genome and a state, got {found!r:.60}")
        values = self._checked_values(name, child)
        return dataclasses.replace(child, hyperparameters=values), after

    def _checked_values(self, mutation: str, child: Genome) -> dict[str, int | float]:
        """All hyperparameters as the algorithm declares them."""
        model, own = type(self.algorithm), child.hyperparameters
        if odd := sorted(self.algorithm.hyperparameters.keys() ^ own.keys()):
            _refuse(mutation, f"returned other hyperparameters than there are: {', '.join(odd)}")
        plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in own.items()}
        try:
            checked = model.model_validate(self.algorithm.model_dump() | plain)
        except ValidationError as error:
            _refuse(mutation, f"returned hyperparameters.{explain(error, model, '', {})}")
        return checked.hyperparameters

    def _check_weights(
        self, mutation: str, child: Genome, after: AgentState, parent: Genome, before: AgentState
    ) -> None:
        """Names and shapes as the architectures have them, and finite numbers in them."""
        if child.architectures.keys() != parent.architectures.keys():
            names = f"{sorted(child.architectures)} instead of {sorted(parent.architectures)}"
            _refuse(mutation, f"returned architectures of {names}")
        try:
            shapes = row_shapes(self.specs, child.architectures)
        except (ValueError, AttributeError) as error:
            _refuse(mutation, f"returned architectures that cannot be: {error}", error)
        dtype = next(iter(before.online.values())).dtype
        for part in PARTS:
            own = getattr(after, part)
            for name in {**shapes, **own}:
                tensor = own.get(name)
                got, rule = type(tensor).__name__, f"{dtype} and shape {shapes.get(name)}"
                if isinstance(tensor, torch.Tensor):
                    got = f"{tensor.dtype} and shape {tuple(tensor.shape)}"
                    if got == rule and not tensor.isfinite().all():
                        _refuse(mutation, f"returned state.{part}: {name} is not finite")
                if got != rule:
                    what = f"returned state.{part}: {name} must be a tensor of {rule}"
                    _refuse(mutation, f"{what}, as its architecture says, got {got}")


def _with_architecture(genome: Genome, name: str, changed: Architecture) -> Genome:
    return dataclasses.replace(genome, architectures={**genome.architectures, name: changed})


def _draw(choices: list[T], random: Generator) -> T:
    return choices[int(random.integers(len(choices)))]


def _copied(weights: Parameters) -> Parameters:
    return {name: tensor.clone() for name, tensor in weights.items()}


def _refuse(mutation: str, what: str, cause: Exception | None = None) -> NoReturn:
    raise RunError(one_line(f"evolution.mutation: {mutation!r} {what}")) from cause
