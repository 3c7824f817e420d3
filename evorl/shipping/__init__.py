"""An agent outside of training: selected, watched, exported."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.shipping.export import export as export
    from evorl.shipping.select import select_agent as select_agent
    from evorl.shipping.watch import Episode as Episode, watch as watch
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
