"""The networks of all agents of a group as one: layout of a row, masks, forward and backward."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.networks.initialization import fresh_parameters as fresh_parameters
    from evorl.networks.layout import Layout as Layout
    from evorl.networks.layout import NetworkLayout as NetworkLayout
    from evorl.networks.layout import Parameters as Parameters
    from evorl.networks.layout import Signature as Signature
    from evorl.networks.layout import Weights as Weights
    from evorl.networks.layout import aligned as aligned
    from evorl.networks.layout import freeze as freeze
    from evorl.networks.layout import network_part as network_part
    from evorl.networks.layout import row_shapes as row_shapes
    from evorl.networks.layout import shapes as shapes
    from evorl.networks.layout import signature as signature
    from evorl.networks.masks import LayerMask as LayerMask
    from evorl.networks.masks import Masks as Masks
    from evorl.networks.masks import layers_with_skips as layers_with_skips
    from evorl.networks.masks import make_masks as make_masks
    from evorl.networks.masks import needed_rows as needed_rows
    from evorl.networks.module import PlainNetwork as PlainNetwork
    from evorl.networks.module import to_module as to_module
    from evorl.networks.spec import NetworkSpec as NetworkSpec
    from evorl.networks.spec import ParameterSpec as ParameterSpec
    from evorl.networks.spec import Spec as Spec
    from evorl.networks.spec import VALUE as VALUE
    from evorl.networks.stacked import Networks as Networks
    from evorl.networks.stacked import StackedNetwork as StackedNetwork
    from evorl.networks.stacked import bind as bind
    from evorl.networks.views import layer_views as layer_views
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
