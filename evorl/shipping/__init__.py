"""An agent outside of training: selected, watched, exported."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.shipping.export import export_agent
    from evorl.shipping.play import select_agent, watch_agent
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
