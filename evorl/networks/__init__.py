"""The networks of all agents of a group as one: layout of a row, masks, forward and backward."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.networks.initialization import fresh_parameters as fresh_parameters
    from evorl.networks.layout import (
        Layout as Layout,
        NetworkLayout as NetworkLayout,
        Parameters as Parameters,
        Signature as Signature,
        Weights as Weights,
        aligned as aligned,
        freeze as freeze,
        network_part as network_part,
        row_shapes as row_shapes,
        shapes as shapes,
        signature as signature,
    )
    from evorl.networks.masks import (
        LayerMask as LayerMask,
        Masks as Masks,
        layers_with_skips as layers_with_skips,
        make_masks as make_masks,
        needed_rows as needed_rows,
    )
    from evorl.networks.module import PlainNetwork as PlainNetwork, to_module as to_module
    from evorl.networks.spec import (
        VALUE as VALUE,
        NetworkSpec as NetworkSpec,
        ParameterSpec as ParameterSpec,
        Spec as Spec,
    )
    from evorl.networks.stacked import (
        Networks as Networks,
        StackedNetwork as StackedNetwork,
        bind as bind,
    )
    from evorl.networks.views import layer_views as layer_views
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
