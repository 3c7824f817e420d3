"""Actors of a run: where they are, how they find their learner, and what each of them does.

Under a launcher they are ranks; without one, or with actors.place: children, every learner starts
its own; with actors.place: inline they play within the learner's process.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

import evorl
from evorl.actors import (
    ActorEnd,
    BusExchange,
    ChildProcesses,
    Exchange,
    Inbox,
    InlineExchange,
    Limits,
    Tally,
    WeightsMessage,
    copy_of,
    run_actor,
)
from evorl.bus import Bus
from evorl.config import RunConfig
from evorl.distributed import World, choose_host, launched_ranks, local_ranks, named_store
from evorl.envs import ActionSpec, EnvSpec, ObservationSpec, make_vector_env
from evorl.errors import ConfigError
from evorl.machine import set_threads
from evorl.pipeline import Actor
from evorl.population import Population
from evorl.training.agents import checked_algorithm, env_spec, make_networks
from evorl.training.make_replay import make_own_shard, shard_capacity

FORMAT = 1  # of what learners and actors tell each other
RUNS = count()  # with actors as ranks, of this process; all ranks begin them in one order


def start_world(config: RunConfig) -> World:
    """Meet the ranks that were launched; actors are ranks if the configuration wants them to be."""
    return World.start(config.population.size, **mesh_of_ranks(config), timeout=config.mesh.timeout)


def mesh_of_ranks(config: RunConfig) -> dict[str, Any]:
    """What the configuration says of ranks, for a World."""
    mesh = config.mesh.model_dump(exclude={"timeout"})
    return mesh | ({"actors": 0} if config.actors.place in ("children", "inline") else {})


def actors_of(config: RunConfig, world: World) -> int:
    """How many play for one learner."""
    each, rest = divmod(config.mesh.actors, world.mesh.trainers)
    if rest:
        what = f"must be as many for each of {world.mesh.trainers} learners"
        raise ConfigError(f"mesh.actors: {what}, got {config.mesh.actors}")
    if world.mesh.actors not in (0, config.mesh.actors):
        ranks = f"{world.mesh.actors} ranks of this World are actors"
        raise ConfigError(f"mesh.actors: {ranks}, got {config.mesh.actors}")
    if config.actors.place == "ranks" and not world.mesh.actors:
        raise ConfigError(
            f"actors.place: got ranks, but none of {launched_ranks()} launched ones is an actor;"
            " start more with accelerate launch --num_processes, or use children"
        )
    return each


def make_children(config: RunConfig, world: World, stack: ExitStack) -> ChildProcesses | None:
    """The parent of this learner's actors, if it starts them; made before there are any threads."""
    slots = actors_of(config, world)
    if not slots or world.mesh.actors or config.actors.place == "inline":
        return None
    if not world.trainers.joined:
        return None
    children = ChildProcesses(
        partial(_be_child, config), slots, respawns=not config.actors.lockstep
    )
    stack.callback(children.close)
    return children


def open_exchange(
    config: RunConfig,
    world: World,
    spec: EnvSpec,
    population: Population,
    children: ChildProcesses | None,
    stack: ExitStack,
    observation: ObservationSpec,
    action: ActionSpec,
) -> Exchange:
    """This learner's end of the exchange; it is closed by the stack."""
    slots, lockstep = actors_of(config, world), config.actors.lockstep
    opens = config.actors.listen is not None
    sizes = (population.size, config.env.num_envs, message_steps(config))
    n_step, shard = getattr(config.algorithm, "n_step", 1), shard_capacity(config, slots)
    limits = Limits(*sizes, observation, action, n_step, shard)
    may_be_late = not lockstep and config.algorithm.sends == "gradients"
    max_lag = config.actors.max_lag if may_be_late else None
    inbox = Inbox(population, limits, max(slots, config.actors.most) if opens else slots, max_lag)
    told: dict[str, Any] = {
        "backend": spec.backend,
        "compiled": population.compiled is not None,
        "precision": world.precision,
        "first": world.own_agents(config.population.size).start,
        "fellows": slots * world.data,
        "shard": shard,
    }
    numbers = range(world.data_rank * slots, (world.data_rank + 1) * slots)
    if children is None and not world.mesh.actors and not opens:
        weights = WeightsMessage(population)(0, np.zeros(population.size, np.int64))
        return InlineExchange(
            inbox, [make_actor(config, weights, stack, number=i, **told) for i in numbers]
        )
    if not slots:
        bus = Bus.join(None, 0, 1, topology="star", timeout=config.mesh.timeout)
    elif children is None:
        limit = timedelta(seconds=config.mesh.timeout)
        bus = _join(config, named_store(f"actors{next(RUNS)}/{world.rank}", limit), 0, slots)
    else:
        path = str(children.folder / "store")  # no port is open
        bus = _join(config, FileStore(path), 0, slots)
    stack.callback(bus.close)
    if children is not None:
        children.start({"store": path, "tally": str(children.tally.path), "slots": slots}, bus.wake)
    exchange = BusExchange(
        inbox,
        bus,
        lockstep=lockstep,
        timeout=config.mesh.timeout,
        greeting=told | {"number": numbers.start},
        children=children,
        own=slots,
    )
    stack.callback(exchange.close)
    return exchange


def message_steps(config: RunConfig) -> int:
    """Steps of every environment that one message tells of."""
    if config.algorithm.experience == "replay":
        return config.actors.steps
    return int(config.algorithm.rollout_steps)


def make_actor(
    config: RunConfig,
    weights: Mapping[str, Any],
    stack: ExitStack,
    *,
    backend: str,
    compiled: bool,
    precision: str,
    first: int,
    number: int,
    fellows: int,
    shard: int,
    incarnation: int = 0,
    share: float | None = None,
) -> Actor:
    """An actor for the agents of these weights; its environments are closed by the stack."""
    spec = dataclasses.replace(env_spec(config), backend=backend)
    env = make_vector_env(spec, len(weights["alive"]), config.env.num_envs)
    stack.callback(env.close)
    networks = make_networks(config, env.observation, env.action)
    half = torch.bfloat16 if precision == "bf16" else None
    population = copy_of(weights, networks, checked_algorithm(config), compiled=compiled, half=half)
    own = None
    if shard:
        kinds = (env.observation, env.action)
        own = make_own_shard(config, *kinds, population.size, shard, epoch=incarnation)
    return Actor(
        population,
        env,
        message_steps(config),
        seed=config.seed,
        first=first,
        number=number,
        fellows=fellows,
        incarnation=incarnation,
        share=share,
        first_errors=config.first_errors,
        shard=own,
    )


def act(config: RunConfig, end: ActorEnd) -> None:
    """What an actor does in a process of its own: play, until the learner says that it is over."""
    if end.greeting:
        told = dict(end.greeting)
        told["number"] += end.slot
        play(config, end, told, local_ranks() + config.mesh.actors)


def play(config: RunConfig, end: ActorEnd, told: Mapping[str, Any], processes: int) -> None:
    """The same, as it was told to; `processes` share the cores."""
    with ExitStack() as stack:
        weights = end.newest()
        if weights is None:
            return
        actor = make_actor(config, weights.fields, stack, **told)
        if actor.shard is not None:
            actor.shard.serve(end.bus)
        population = actor.population
        set_threads(population.widest, population.pixels, processes)
        run_actor(end, actor, weights, config.actors.lockstep)


def act_as_rank(config: RunConfig, world: World) -> None:
    """Be an actor on a rank of a launch."""
    learner, slot = world.mesh.actor_of(world.rank)
    limit = timedelta(seconds=config.mesh.timeout)
    store = named_store(f"actors{next(RUNS)}/{learner}", limit)
    with _join(config, store, slot + 1, actors_of(config, world)) as bus:
        act(config, ActorEnd(bus, config.mesh.timeout))


def _be_child(config: RunConfig, slot: int, told: Mapping[str, Any]) -> None:
    """Be an actor in a process that was forked."""
    torch.set_num_threads(1)  # OpenMP's do not survive a fork
    store, tally = FileStore(told["store"]), Tally(told["tally"], told["slots"])
    with _join(config, store, slot + 1, told["slots"]) as bus:
        act(config, ActorEnd(bus, config.mesh.timeout, tally))


def _join(config: RunConfig, store: Any, rank: int, slots: int) -> Bus:
    """The star of a learner and its actors; all must agree on what they talk about."""
    return Bus.join(
        store,
        rank,
        1 + slots,
        topology="star",
        timeout=config.mesh.timeout,
        host=None if isinstance(store, FileStore) else choose_host(launched_ranks()),
        schema=agreed(config),
    )


def agreed(config: RunConfig) -> str:
    """A hash of what learners and actors must agree on."""
    found: list[Any] = [FORMAT, evorl.__version__, config.seed, config.population.size]
    parts = (config.env, config.algorithm, config.network, config.actors, config.replay)
    not_theirs = {"backend", "place", "listen", "most"}
    found += [part.model_dump_json(exclude=not_theirs) for part in parts]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]
