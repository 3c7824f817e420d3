"""The ranks of a run: one process, or several that `accelerate launch` started."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.distributed.actor_world import ActorWorld
    from evorl.distributed.labels import (
        checked_patterns,
        labels_of,
        match,
        match_everywhere,
        partial_stage,
    )
    from evorl.distributed.launcher import (
        choose_host,
        is_main_process_of_launch,
        launched_ranks,
        let_main_speak_first,
        local_ranks,
        named_store,
        outer_address,
        rank,
        read_on_main_rank,
    )
    from evorl.distributed.mesh import Mesh, lay_out
    from evorl.distributed.parallel import Parallel, Session, current_session
    from evorl.distributed.world import Team, World
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
