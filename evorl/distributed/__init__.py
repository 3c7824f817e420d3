"""The ranks of a run: one process, or several that `accelerate launch` started."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.distributed.launch import (
        is_main_process_of_launch,
        let_main_speak_first,
        local_ranks,
        read_on_main_rank,
    )
    from evorl.distributed.world import Mesh, World, lay_out
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
