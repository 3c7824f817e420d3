"""Actors and learners: what they tell each other, and how."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.actors.child_processes import ChildProcesses
    from evorl.actors.exchange import (
        ActorEnd,
        BusExchange,
        Exchange,
        InlineExchange,
        LearnerGone,
        run_actor,
    )
    from evorl.actors.inbox import ActorMessage, Inbox
    from evorl.actors.messages import (
        DEAD,
        MOST_FAILURES,
        MOST_SEEN,
        SHARD,
        TRACE,
        UNROLL,
        WINDOW,
        Limits,
        experience_fields,
    )
    from evorl.actors.remote_shards import PATIENCE, ActorShards, OwnShard, on_bus
    from evorl.actors.tally import Tally
    from evorl.actors.weights_message import WeightsMessage, copy_of, load_weights
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
