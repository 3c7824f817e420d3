"""The replay of a run: where transitions are kept, here or with the actors who collected them."""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch

from evorl.actors import (
    PATIENCE,
    ActorShards,
    BusExchange,
    Exchange,
    InlineExchange,
    OwnShard,
    on_bus,
)
from evorl.config import RunConfig
from evorl.distributed import World
from evorl.envs import ActionSpec, ObservationSpec
from evorl.experience import (
    LocalShard,
    PrioritisedSampler,
    ReplayBuffer,
    Sampler,
    ShardedSampler,
    UniformSampler,
)
from evorl.pipeline import Actor
from evorl.seeding import generator

Streams = Sequence[np.random.Generator]


def make_replay(
    config: RunConfig,
    world: World,
    observation: ObservationSpec,
    action: ActionSpec,
    streams: Streams,
    shards: ActorShards | None = None,
) -> Sampler:
    """One for all agents of this rank or one for each, or the `shards` of its actors."""
    replay, noise = config.replay, config.algorithm.loss_noise(action)
    share = replay.share
    sampler: PrioritisedSampler | ShardedSampler
    if shards is not None:
        agents = len(streams)
        like = make_buffer(config, observation, action, agents, 1, world.device)
        capacity = shards.limits.shard
        sampler = ShardedSampler(shards.shards, streams, like, capacity, share, noise)
        sampler.map = shards.map
    else:
        size = (len(streams), replay.capacity)
        buffer = make_buffer(config, observation, action, *size, world.device)
        if replay.kind == "uniform":
            return UniformSampler(buffer, streams, share, noise)
        sampler = make_prioritised(config, buffer, streams, noise)
    if world.data > 1:
        sampler.highest = world.max_over_replicas
    return sampler


def make_buffer(
    config: RunConfig,
    observation: ObservationSpec,
    action: ActionSpec,
    agents: int,
    capacity: int,
    device: torch.device | str = "cpu",
) -> ReplayBuffer:
    """Rings of this capacity for so many agents."""
    return ReplayBuffer(
        capacity,
        observation.shape,
        observation.dtype,
        config.algorithm.n_step,
        num_replays=agents if config.replay.share == "agent" else 1,
        device=device,
        action_shape=action.shape,
        action_dtype=action.dtype,
    )


def make_prioritised(
    config: RunConfig, buffer: ReplayBuffer, streams: Streams, noise: int = 0
) -> PrioritisedSampler:
    """Draws by priority, as the configuration has it."""
    replay = config.replay
    exponents = (replay.alpha, replay.priority_eps)
    return PrioritisedSampler(buffer, streams, *exponents, replay.share, noise)


def shard_capacity(config: RunConfig, actors: int) -> int:
    """Of what one of a learner's actors keeps itself; 0 if it keeps nothing."""
    return -(-config.replay.capacity // actors) if config.replay_at_actors else 0


def make_own_shard(
    config: RunConfig,
    observation: ObservationSpec,
    action: ActionSpec,
    agents: int,
    capacity: int,
    epoch: int,
) -> OwnShard:
    """What an actor keeps; its learner draws, with random numbers of its own."""
    buffer = make_buffer(config, observation, action, agents, capacity)
    unused = [generator(config.seed, "sample", 0, agent) for agent in range(agents)]
    return OwnShard(LocalShard(make_prioritised(config, buffer, unused), epoch))


def make_actor_shards(exchange: Exchange, stack: ExitStack) -> ActorShards:
    """A learner's view of what its actors keep."""
    inbox, lockstep = exchange.inbox, exchange.lockstep
    if isinstance(exchange, InlineExchange):
        shards = [own.shard for own in exchange.actors if isinstance(own, Actor) and own.shard]
        return ActorShards([shard.answer for shard in shards], inbox, lockstep)
    assert isinstance(exchange, BusExchange)
    # in lock-step nobody can be left out, and of one actor everything is waited for
    waits = lockstep or inbox.slots == 1
    patience = exchange.timeout if waits else PATIENCE
    asks = [on_bus(exchange.bus, slot, patience) for slot in range(inbox.slots)]
    found = ActorShards(asks, inbox, lockstep, exchange.bus)
    stack.callback(found.close)
    return found
