"""A child from its parent: one kind of mutation each, drawn by the weights of a configuration."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from evorl.algorithms import Declaration
from evorl.config import MutationConfig, explain, unknown_key
from evorl.errors import RunError, one_line, raised
from evorl.evolution.explore import Explore
from evorl.evolution.surgery import (
    Changed,
    add_layer,
    add_units,
    remove_layer,
    remove_units,
    reset_dormant,
)
from evorl.evolution.units import UnitAxes, all_units
from evorl.genome import Activation, Architecture, Genome
from evorl.networks import NetworkSpec, Parameters, Spec, row_shapes
from evorl.population import PARTS, AgentState


class Child(NamedTuple):
    """A new agent."""

    genome: Genome
    state: AgentState


# A mutation of one's own: a child's genome and weights from its parent's. What it changes in the
# genome are architectures and hyperparameters; id, parent, generation and name are filled in.
UserMutation = Callable[[Genome, AgentState, np.random.Generator], tuple[Genome, AgentState]]


class Mutation:
    """Makes children: a pure function of the parent and a generator."""

    def __init__(
        self,
        config: MutationConfig,
        specs: Mapping[str, Spec],
        explore: Explore,
        user: Mapping[str, UserMutation] | None = None,
    ) -> None:
        """`user` are mutations of one's own, by the names that the configuration gives them."""
        self.config, self.specs, self.explore = config, dict(specs), explore
        self.user = dict(user or {})
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
        random: np.random.Generator,
    ) -> Child:
        """A child of this parent, whose fitness was this, to train from this generation on."""
        child, mutation = parent, self._kind(parent, random)
        if mutation in self.user:
            child, state = self.user[mutation](parent, state, random)
        elif mutation == "architecture":
            mutation, child, state = self._change(parent, state, random)
        elif mutation == "parameters":
            state = self._disturb(parent, state, random)
        elif mutation == "activation":
            child = self._other_activation(parent, random)
        elif mutation == "hyperparameters":
            values = self.explore.propose(dict(parent.hyperparameters), fitness, generation, random)
            child = dataclasses.replace(parent, hyperparameters=values)
        genome = dataclasses.replace(
            child, id=id, parent=parent.id, born=generation, mutation=mutation
        )
        return Child(genome, state)

    def _kind(self, parent: Genome, random: np.random.Generator) -> str:
        """One kind of those that are possible for this parent; none if there is none."""
        possible = {
            "none": True,
            "architecture": any(any(self._moves(parent, name)) for name in self.networks),
            "parameters": True,
            "activation": bool(self._activations(parent)),
            "hyperparameters": bool(self.explore.spaces),
        }
        weights = {kind: getattr(self.config, kind) for kind in possible if possible[kind]}
        weights |= {name: self.config.user[name] for name in self.user}
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

    def _other_activation(self, parent: Genome, random: np.random.Generator) -> Genome:
        chosen = self._activations(parent)
        name, activation = chosen[int(random.integers(len(chosen)))]
        own = dataclasses.replace(parent.architectures[name], activation=activation)
        return _with_architecture(parent, name, own)

    def _moves(self, parent: Genome, name: str) -> tuple[list[str], list[UnitAxes]]:
        """Layer mutations and layers of another width that limits and probabilities allow."""
        config, layers, architecture = self.config, [], parent.architectures[name]
        if config.new_layer > 0:
            layers += ["add layer"] * (architecture.depth < config.max_layers)
            layers += ["remove layer"] * (architecture.depth > config.min_layers)
        units = all_units(self.networks[name], architecture) if config.new_layer < 1 else []
        return layers, [own for own in units if self._directions(own)]

    def _directions(self, layer: UnitAxes) -> list[str]:
        """Which of add and remove the limits allow; what lies outside them may come closer."""
        low, high = self._limits(layer)
        return ["add"] * (layer.size < high) + ["remove"] * (layer.size > low)

    def _limits(self, layer: UnitAxes) -> tuple[int, int]:
        config = self.config
        if layer.kind == "units":
            return config.min_units, config.max_units
        return config.min_channels, config.max_channels

    def _change(
        self, parent: Genome, state: AgentState, random: np.random.Generator
    ) -> tuple[str, Genome, AgentState]:
        """A network, then a change of it."""
        names = [name for name in self.networks if any(self._moves(parent, name))]
        name = names[int(random.integers(len(names)))] if len(names) > 1 else names[0]
        layers, widths = self._moves(parent, name)
        architecture, own = parent.architectures[name], state.network(name)
        if layers and (not widths or random.random() < self.config.new_layer):
            move = layers[int(random.integers(len(layers)))]
            if move == "remove layer":
                changed = remove_layer(architecture, own)
            else:
                after = int(random.integers(architecture.depth))
                changed = add_layer(architecture, own, after, random)
        else:
            layer = widths[int(random.integers(len(widths)))]
            move, changed = self._resize(architecture, own, layer, random)
        child = _with_architecture(parent, name, changed.architecture)
        return move, child, state.with_network(name, changed.state)

    def _resize(
        self,
        architecture: Architecture,
        state: AgentState,
        layer: UnitAxes,
        random: np.random.Generator,
    ) -> tuple[str, Changed]:
        directions = self._directions(layer)
        direction = directions[int(random.integers(len(directions)))]
        amounts = self.config.units if layer.kind == "units" else self.config.channels
        amount = amounts[int(random.integers(len(amounts)))]
        low, high = self._limits(layer)
        if direction == "add":
            count = min(amount, high - layer.size)
            changed = add_units(architecture, state, layer, count, random)
        else:
            count = min(amount, layer.size - low)
            changed = remove_units(architecture, state, layer, count)
        return f"{direction} {layer.kind}", changed

    def _disturb(
        self, parent: Genome, state: AgentState, random: np.random.Generator
    ) -> AgentState:
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


def _with_architecture(genome: Genome, name: str, changed: Architecture) -> Genome:
    """The genome with another architecture of one network."""
    return dataclasses.replace(genome, architectures={**genome.architectures, name: changed})


class CheckedMutation:
    """A user's mutation: what it returns fits the run, or RunError says what does not.

    It gets copies: what it changes in place is the child's alone.
    """

    def __init__(
        self, name: str, function: UserMutation, specs: Mapping[str, Spec], algorithm: Declaration
    ) -> None:
        self.name, self.function, self.specs, self.algorithm = name, function, specs, algorithm

    def __call__(
        self, genome: Genome, state: AgentState, random: np.random.Generator
    ) -> tuple[Genome, AgentState]:
        """A child with the hyperparameters in the order of their declaration."""
        online, target, m, v = map(_copied, state[:4])
        own = AgentState(online, target, m, v, state.steps)
        architectures, values = dict(genome.architectures), dict(genome.hyperparameters)
        copied = dataclasses.replace(genome, architectures=architectures, hyperparameters=values)
        try:
            found = self.function(copied, own, random)
        except Exception as error:
            raise self._refusal(f"raised {raised(error)}") from error
        match found:
            case (Genome() as child, AgentState() as after):
                self._check_weights(child, after, state)
                values = self._checked_values(child)
                return dataclasses.replace(child, hyperparameters=values), after
        raise self._refusal(f"must return a genome and a state, got {found!r:.60}")

    def _checked_values(self, child: Genome) -> dict[str, int | float]:
        """All hyperparameters, within the limits of their declaration."""
        known = self.algorithm.hyperparameters
        given = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in child.hyperparameters.items()
        }
        for name in given:
            if name not in known:
                raise self._refusal(f"returned hyperparameters.{name}: {unknown_key(name, known)}")
        for name in known:
            if name not in given:
                raise self._refusal(f"returned no hyperparameters.{name}")
        model = type(self.algorithm)
        try:
            model.model_validate(self.algorithm.model_dump() | given)
        except ValidationError as error:
            what = explain(error, model, "")
            raise self._refusal(f"returned hyperparameters.{what}") from None
        return {name: given[name] for name in known}

    def _check_weights(self, child: Genome, after: AgentState, before: AgentState) -> None:
        """Names and shapes as the architectures have them, and finite numbers in them."""
        names = {name for name, spec in self.specs.items() if isinstance(spec, NetworkSpec)}
        if child.architectures.keys() != names:
            given = f"{sorted(child.architectures)} instead of {sorted(names)}"
            raise self._refusal(f"returned architectures of {given}")
        try:
            shapes = row_shapes(self.specs, child.architectures)
        except (ValueError, AttributeError) as error:
            raise self._refusal(f"returned architectures that cannot be: {error}") from error
        dtype = next(iter(before.online.values())).dtype
        for part in PARTS:
            own = getattr(after, part)
            for name in {**shapes, **own}:
                shape, tensor = shapes.get(name), own.get(name)
                if shape is None or tensor is None:
                    what = "a weight" if shape is None else "no weight"
                    raise self._refusal(f"returned {what} {name} in state.{part}")
                self._check_tensor(f"returned state.{part}: {name}", tensor, dtype, shape)

    def _check_tensor(
        self, what: str, tensor: object, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        rule = f"must be a tensor of {dtype} and shape {shape}, as its architecture says"
        if not isinstance(tensor, torch.Tensor):
            raise self._refusal(f"{what} {rule}, got {type(tensor).__name__}")
        if tensor.dtype != dtype or tensor.shape != shape:
            raise self._refusal(f"{what} {rule}, got {tensor.dtype} and {tuple(tensor.shape)}")
        if not tensor.isfinite().all():
            raise self._refusal(f"{what} is not finite")

    def _refusal(self, what: str) -> RunError:
        return RunError(one_line(f"evolution.mutation: {self.name!r} {what}"))


def _copied(weights: Parameters) -> Parameters:
    return {name: tensor.clone() for name, tensor in weights.items()}
