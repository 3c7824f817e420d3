"""A child from its parent: one kind of mutation each, drawn by the weights of a configuration."""

import dataclasses
from typing import NamedTuple

import numpy as np
import torch

from evorl.config import MutationConfig
from evorl.evolution.explore import Explore
from evorl.evolution.surgery import (
    Changed,
    add_layer,
    add_units,
    remove_layer,
    remove_units,
    reset_dormant,
)
from evorl.evolution.units import Wires, all_wires
from evorl.genome import Activation, Architecture, Genome
from evorl.networks.layout import Problem, shapes
from evorl.population.group import AgentState


class Child(NamedTuple):
    """A new agent."""

    genome: Genome
    state: AgentState


class Mutation:
    """Makes children: a pure function of the parent and a generator."""

    def __init__(self, config: MutationConfig, problem: Problem, explore: Explore) -> None:
        self.config, self.problem, self.explore = config, problem, explore

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
        architecture, hyperparameters = parent.architecture, dict(parent.hyperparameters)
        mutation = self._kind(architecture, random)
        if mutation == "architecture":
            mutation, (architecture, state) = self._change(architecture, state, random)
        elif mutation == "parameters":
            state = self._disturb(architecture, state, random)
        elif mutation == "activation":
            chosen = self._activations(architecture)
            activation = chosen[int(random.integers(len(chosen)))]
            architecture = dataclasses.replace(architecture, activation=activation)
        elif mutation == "hyperparameters":
            hyperparameters = self.explore.propose(hyperparameters, fitness, generation, random)
        genome = Genome(id, {"q": architecture}, hyperparameters, parent.id, generation, mutation)
        return Child(genome, state)

    def _kind(self, architecture: Architecture, random: np.random.Generator) -> str:
        """One kind of those that are possible for this parent; none if there is none."""
        layers, widths = self._moves(architecture)
        possible = {
            "none": True,
            "architecture": bool(layers or widths),
            "parameters": True,
            "activation": bool(self._activations(architecture)),
            "hyperparameters": bool(self.explore.spaces),
        }
        weights = {kind: getattr(self.config, kind) for kind in possible if possible[kind]}
        total = sum(weights.values())
        if total == 0:
            return "none"
        return str(random.choice(list(weights), p=np.array(list(weights.values())) / total))

    def _activations(self, architecture: Architecture) -> list[Activation]:
        return [a for a in self.config.activations if a != architecture.activation]

    def _moves(self, architecture: Architecture) -> tuple[list[str], list[Wires]]:
        """Layer mutations and layers of another width that limits and probabilities allow."""
        config, layers = self.config, []
        if config.new_layer > 0:
            layers += ["add layer"] * (architecture.depth < config.max_layers)
            layers += ["remove layer"] * (architecture.depth > config.min_layers)
        wires = all_wires(self.problem, architecture) if config.new_layer < 1 else []
        return layers, [own for own in wires if self._directions(own)]

    def _directions(self, wires: Wires) -> list[str]:
        """Which of add and remove the limits allow; what lies outside them may come closer."""
        low, high = self._limits(wires)
        return ["add"] * (wires.size < high) + ["remove"] * (wires.size > low)

    def _limits(self, wires: Wires) -> tuple[int, int]:
        config = self.config
        if wires.kind == "units":
            return config.min_units, config.max_units
        return config.min_channels, config.max_channels

    def _change(
        self, architecture: Architecture, state: AgentState, random: np.random.Generator
    ) -> tuple[str, Changed]:
        layers, widths = self._moves(architecture)
        if layers and (not widths or random.random() < self.config.new_layer):
            move = layers[int(random.integers(len(layers)))]
            if move == "remove layer":
                return move, remove_layer(architecture, state)
            after = int(random.integers(architecture.depth))
            return move, add_layer(architecture, state, after, random)
        wires = widths[int(random.integers(len(widths)))]
        directions = self._directions(wires)
        direction = directions[int(random.integers(len(directions)))]
        amounts = self.config.units if wires.kind == "units" else self.config.channels
        amount = amounts[int(random.integers(len(amounts)))]
        low, high = self._limits(wires)
        if direction == "add":
            count = min(amount, high - wires.size)
            changed = add_units(architecture, state, wires, count, random)
        else:
            count = min(amount, wires.size - low)
            changed = remove_units(architecture, state, wires, count)
        return f"{direction} {wires.kind}", changed

    def _disturb(
        self, architecture: Architecture, state: AgentState, random: np.random.Generator
    ) -> AgentState:
        """Dormant units reset, if wanted, and noise on a share of the weights of both networks."""
        if self.config.reset_dormant:
            state = reset_dormant(self.problem, architecture, state, random)
        online, target = dict(state.online), dict(state.target)
        # in the layout's order: a state from a file may have another
        for name, shape in shapes(self.problem, architecture).items():
            if name.endswith(".weight"):
                chosen = random.random(shape) < self.config.noise_fraction
                factors = np.where(chosen, 1 + self.config.noise * random.standard_normal(shape), 1)
                factor = torch.from_numpy(factors).to(online[name])
                online[name], target[name] = online[name] * factor, target[name] * factor
        return state._replace(online=online, target=target)
