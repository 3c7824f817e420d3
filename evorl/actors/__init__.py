"""Actors and learners: what they tell each other, and how."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.actors.children import Children
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
        LARGEST,
        MOST_FAILURES,
        MOST_SEEN,
        SHARD,
        TRACE,
        UNROLL,
        WINDOW,
        Limits,
        experience_fields,
    )
    from evorl.actors.shards import PATIENCE, ActorShards, OwnShard, on_bus
    from evorl.actors.tally import Tally
    from evorl.actors.weights import Weights, copy_of, load_weights
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
