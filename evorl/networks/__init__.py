"""The networks of all agents of a group as one: layout of a row, masks, forward and backward."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.networks.layers import (
        LayerMask,
        Masks,
        layer_views,
        layers_with_skips,
        make_masks,
        needed_rows,
    )
    from evorl.networks.layout import (
        Layout,
        NetworkLayout,
        Parameters,
        Signature,
        Weights,
        aligned,
        freeze,
        fresh_parameters,
        network_part,
        row_shapes,
        shapes,
        signature,
    )
    from evorl.networks.module import PlainNetwork, to_module
    from evorl.networks.normalizer import Moments, scale_of
    from evorl.networks.spec import (
        NORMALIZER,
        VALUE,
        NetworkSpec,
        NormalizerSpec,
        ParameterSpec,
        Spec,
    )
    from evorl.networks.stacked import Names, Networks, StackedNetwork, bind, encode
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
