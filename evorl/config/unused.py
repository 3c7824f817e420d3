"""Options that were changed but have no effect, given the others."""

from collections.abc import Iterator
from typing import Any

from evorl.config.messages import number
from evorl.config.run_config import RunConfig

LAYERS = "evolution.mutation: min_layers max_layers"
UNITS = "evolution.mutation: units min_units max_units"
CHANNELS = "evolution.mutation: channels min_channels max_channels"
CONVOLUTIONS = "network: channels kernels strides channels_last"


def unused_options(config: RunConfig, images: bool) -> list[str]:
    """One line for each; `images` says whether the observations are images."""
    found: dict[str, str] = {}
    for holds, why, *groups in (*_rules(config, images), *_evolution_rules(config)):
        for path, value in _changed(config, groups) if holds else ():
            found.setdefault(path, f"{path}={value} has no effect with {why}")
    return [*found.values(), *_spaces(config), *_outside(config)]


def _rules(config: RunConfig, images: bool) -> Iterator[tuple[Any, ...]]:
    """Whether a rule holds, what it is, and the options that then have no effect."""
    evolution, replay = config.evolution, config.replay
    names = ("selection", "mutation", "explore")
    everything = [f"evolution.{n}: {' '.join(getattr(evolution, n).model_dump())}" for n in names]
    method = f"evolution.method: {evolution.method}"
    why = "one agent" if evolution.method == "evolution" else method
    yield not config.evolves, why, *everything
    yield config.env.backend == "envpool", "env.backend: envpool", "env: max_failures"
    priorities = "replay: alpha beta_start beta_end priority_eps"
    yield replay.kind == "uniform", "replay.kind: uniform", priorities
    yield True, "the other options of algorithm", f"algorithm: {' '.join(config.algorithm.unused)}"
    yield not images, "observations that are no images", CONVOLUTIONS, CHANNELS
    for name in config.drawn:
        drawn = f"{config.drawn_by}, which draws it from evolution.spaces.{name}"
        yield True, drawn, f"algorithm: {name}"
    accounts = "tracking: project entity group timeout"
    yield config.tracking.wandb == "off", "tracking.wandb: off", accounts


def _evolution_rules(config: RunConfig) -> Iterator[tuple[Any, ...]]:
    mutation, explore = config.evolution.mutation, config.evolution.explore
    once = config.evolution.selection.eval_loop * config.evaluation.episodes == 1
    yield once, "one episode", "evolution.selection: min_gap"  # which has no standard error
    own, tuned = "evolution.mutation:", "evolution.explore:"
    yield not mutation.architecture, "architecture: 0", f"{own} new_layer", LAYERS, UNITS, CHANNELS
    yield mutation.new_layer == 0, "new_layer: 0", LAYERS
    yield mutation.new_layer == 1, "new_layer: 1", UNITS, CHANNELS
    yield not mutation.parameters, "parameters: 0", f"{own} noise_fraction noise reset_dormant"
    yield not mutation.noise_fraction, "noise_fraction: 0", f"{own} noise"
    yield not mutation.activation, "activation: 0", f"{own} activations"
    agents = range(config.population.size)
    same = {config.agent_network(i).activation for i in agents} == set(mutation.activations)
    only = f"activations: {mutation.activations}, which all agents have"
    yield same and len(set(mutation.activations)) == 1, only, f"{own} activation"
    why = "no evolution.spaces" if mutation.hyperparameters else "mutation.hyperparameters: 0"
    yield not config.mutated, why, f"{tuned} strategy grow shrink resample"
    resample = explore.strategy == "resample"
    yield not resample, f"strategy: {explore.strategy}", f"{tuned} resample"
    yield resample and explore.resample == 1, "resample: 1", f"{tuned} grow shrink"


def _changed(config: RunConfig, groups: list[str]) -> Iterator[tuple[str, Any]]:
    """Of options such as `network: hidden dueling`, those that are not as by default."""
    for group in groups:
        section, _, names = group.partition(":")
        values: Any = config
        for part in section.split("."):
            values = getattr(values, part)
        for name in names.split():
            field, value = type(values).model_fields.get(name), getattr(values, name)
            if field is None or value != field.default:
                yield f"{section}.{name}", value


def _spaces(config: RunConfig) -> Iterator[str]:
    """Of evolution.spaces, and of starting from them."""
    given = config.evolution.spaces
    if config.evolution.method == "evolution" and not config.evolves:
        yield "evolution.method=evolution has no effect with one agent"
    if config.population.init == "sample" and not config.drawn:
        yield "population.init=sample has no effect with no evolution.spaces"
    if given == type(given)(**config.algorithm.default_spaces()):
        return
    for name in config.algorithm.unused & given.evolving.keys():
        yield f"evolution.spaces.{name} has no effect with the other options of algorithm"
    if config.spaces and not (config.drawn or config.mutated):
        why = "mutation.hyperparameters: 0" if config.evolves else "agents that stay as they are"
        yield f"evolution.spaces has no effect with {why}"


def _outside(config: RunConfig) -> Iterator[str]:
    """Values that agents start from, but that no mutation would give them."""
    agents = [agent.model_dump() for agent in config.population.agents]
    for name, space in config.mutated.items():
        own = {i: agent[name] for i, agent in enumerate(agents) if name in agent}
        starts = {f"population.agents.{i}.{name}": value for i, value in own.items()}
        if len(own) < config.population.size:
            starts = {f"algorithm.{name}": getattr(config.algorithm, name), **starts}
        for where, value in starts.items():
            if name not in config.drawn and value not in space:
                outside = f"lies outside evolution.spaces.{name} ({space})"
                yield f"{where}={number(value)} {outside}; a mutation moves it inside"
