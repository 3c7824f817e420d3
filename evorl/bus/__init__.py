"""Processes that talk at any time, without collectives: values, queues, requests."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.bus.bus import Bus
    from evorl.bus.delivery import Value
    from evorl.bus.guests import check_token, new_token, open_door, visit
    from evorl.bus.rendezvous import remove_if_left, remove_left_folders, short_folder
    from evorl.bus.waiting import Deadline
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
