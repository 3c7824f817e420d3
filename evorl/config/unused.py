"""Options that were changed but have no effect, given the others."""

from collections.abc import Iterator

from pydantic import BaseModel

from evorl.config.run_config import RunConfig
from evorl.config.spaces import default_spaces
from evorl.config.wording import number


def unused_options(config: RunConfig, images: bool) -> list[str]:
    """One line for each; `images` says whether the observations are images."""
    found = [*_environment(config), *_learning(config), *_network(config, images)]
    if config.evolves:
        found += [*_selection(config), *_mutation(config, images), *_explore(config)]
    else:
        found += _evolution(config)
    return [*found, *_spaces(config), *_starts(config), *_tracking(config)]


def _environment(config: RunConfig) -> Iterator[str]:
    if config.env.backend == "envpool":
        yield from _changed("env", config.env, "backend: envpool", "max_failures")


def _learning(config: RunConfig) -> Iterator[str]:
    algorithm, replay = config.algorithm, config.replay
    ignored = _ignored(config)
    yield from _changed(
        "algorithm", algorithm, f"target_update: {algorithm.target_update}", ignored
    )
    if replay.kind == "uniform":
        names = ("alpha", "beta_start", "beta_end", "priority_eps")
        yield from _changed("replay", replay, "kind: uniform", *names)


def _network(config: RunConfig, images: bool) -> Iterator[str]:
    if not images:
        names = ("channels", "kernels", "strides", "channels_last")
        yield from _changed("network", config.network, "observations that are no images", *names)


def _evolution(config: RunConfig) -> Iterator[str]:
    """Of a run in which no agent is ever replaced."""
    evolution = config.evolution
    why = f"evolution.method: {evolution.method}"
    if evolution.method == "evolution":
        yield "evolution.method=evolution has no effect with one agent"
        why = "one agent"
    for name in ("selection", "mutation", "explore"):
        section = getattr(evolution, name)
        yield from _changed(f"evolution.{name}", section, why, *type(section).model_fields)


def _selection(config: RunConfig) -> Iterator[str]:
    selection = config.evolution.selection
    names = ("fraction",) if selection.kind == "tournament" else ("size", "elitism")
    yield from _changed("evolution.selection", selection, f"kind: {selection.kind}", *names)
    if selection.eval_loop * config.evaluation.episodes == 1:  # no difference has a standard error
        yield from _changed("evolution.selection", selection, "one episode", "min_gap")


def _mutation(config: RunConfig, images: bool) -> Iterator[str]:
    section, mutation = "evolution.mutation", config.evolution.mutation
    layers, units = ("min_layers", "max_layers"), ("units", "min_units", "max_units")
    convolutions = ("channels", "min_channels", "max_channels")
    if not mutation.architecture:
        everything = ("new_layer", *layers, *units, *convolutions)
        yield from _changed(section, mutation, "architecture: 0", *everything)
    else:
        if not images:
            why = "observations that are no images"
            yield from _changed(section, mutation, why, *convolutions)
        if mutation.new_layer == 0:
            yield from _changed(section, mutation, "new_layer: 0", *layers)
        elif mutation.new_layer == 1:
            yield from _changed(section, mutation, "new_layer: 1", *units)
            if images:
                yield from _changed(section, mutation, "new_layer: 1", *convolutions)
    if not mutation.parameters:
        names = ("noise_fraction", "noise", "reset_dormant")
        yield from _changed(section, mutation, "parameters: 0", *names)
    elif not mutation.noise_fraction:
        yield from _changed(section, mutation, "noise_fraction: 0", "noise")
    if not mutation.activation:
        yield from _changed(section, mutation, "activation: 0", "activations")
    elif _no_other_activation(config):
        why = f"activations: {mutation.activations}, which all agents have"
        yield from _changed(section, mutation, why, "activation")


def _explore(config: RunConfig) -> Iterator[str]:
    section, explore = "evolution.explore", config.evolution.explore
    if not config.mutated:
        moving = config.evolution.mutation.hyperparameters > 0
        why = "no evolution.spaces" if moving else "evolution.mutation.hyperparameters: 0"
        yield from _changed(section, explore, why, *type(explore).model_fields)
    elif explore.strategy != "resample":
        yield from _changed(section, explore, f"strategy: {explore.strategy}", "resample")
    elif explore.resample == 1:
        yield from _changed(section, explore, "resample: 1", "grow", "shrink")


def _spaces(config: RunConfig) -> Iterator[str]:
    evolution, ignored = config.evolution, _ignored(config)
    if ignored in config.drawn | config.mutated:
        why = f"target_update: {config.algorithm.target_update}"
        yield f"evolution.spaces.{ignored} has no effect with {why}"
    if config.population.init == "sample" and not config.drawn:
        yield "population.init=sample has no effect with no evolution.spaces"
    if evolution.spaces != default_spaces() and not (config.drawn or config.mutated):
        if evolution.method == "none":
            yield "evolution.spaces has no effect with method: none and population.init: config"
        elif evolution.spaces.evolving:
            alone = "one agent and population.init: config"
            why = "mutation.hyperparameters: 0" if config.evolves else alone
            yield f"evolution.spaces has no effect with {why}"


def _starts(config: RunConfig) -> Iterator[str]:
    """What agents do not start from, and what mutations leave."""
    for name in config.drawn:
        why = f"{config.drawn_by}, which draws it from evolution.spaces.{name}"
        if name != _ignored(config):
            yield from _changed("algorithm", config.algorithm, why, name)
    for name, space in config.mutated.items():
        if name in config.drawn or name == _ignored(config):
            continue
        for where, value in _start_values(config, name):
            if value not in space:
                outside = f"lies outside evolution.spaces.{name} ({space})"
                yield f"{where}={number(value)} {outside}; a mutation moves it inside"


def _start_values(config: RunConfig, name: str) -> Iterator[tuple[str, float]]:
    """Each value that agents start from, and where it is given."""
    own = [getattr(agent, name) for agent in config.population.agents]
    if None in own or len(own) < config.population.size:
        yield f"algorithm.{name}", getattr(config.algorithm, name)
    for index, value in enumerate(own):
        if value is not None:
            yield f"population.agents.{index}.{name}", value


def _no_other_activation(config: RunConfig) -> bool:
    """Whether all agents start with the only activation that a mutation may choose."""
    chosen = set(config.evolution.mutation.activations)
    agents = range(config.population.size)
    return len(chosen) == 1 and all(config.agent_network(i).activation in chosen for i in agents)


def _tracking(config: RunConfig) -> Iterator[str]:
    if config.tracking.wandb == "off":
        names = ("project", "entity", "group", "timeout")
        yield from _changed("tracking", config.tracking, "wandb: off", *names)


def _ignored(config: RunConfig) -> str:
    """The hyperparameter that the other kind of target network has."""
    return "tau" if config.algorithm.target_update == "periodic" else "target_period"


def _changed(section: str, values: BaseModel, why: str, *names: str) -> Iterator[str]:
    for name in names:
        value = getattr(values, name)
        if value != type(values).model_fields[name].default:
            yield f"{section}.{name}={value} has no effect with {why}"
