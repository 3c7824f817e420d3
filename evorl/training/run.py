"""All that a run is, on one rank, while it trains."""

import dataclasses

from evorl.config import RunConfig
from evorl.distributed import World
from evorl.pipeline import Storage
from evorl.reporting import Console
from evorl.training.build import Parts, Stages


@dataclasses.dataclass(frozen=True)
class Run:
    """All of a run that this rank has."""

    config: RunConfig
    world: World
    console: Console
    storage: Storage
    parts: Parts
    stages: Stages
    resumed: bool  # its folder was there already
