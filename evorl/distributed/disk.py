"""Whether all ranks see the main rank's disk."""

import secrets
from pathlib import Path
from typing import Literal

from evorl.distributed.world import World
from evorl.writing import writing


def is_shared(world: World, folder: Path | None, setting: Literal["auto"] | bool = "auto") -> bool:
    """By the setting, or tried: the main rank leaves a file in the folder, which it alone knows."""
    if setting != "auto":
        return setting
    if world.size == 1:
        return True
    told = None
    if world.main:
        assert folder is not None
        token = folder.absolute() / f".seen-by-all-ranks-{secrets.token_hex(8)}"
        with writing(folder):
            token.touch()
        told = str(token).encode()
    token = Path(world.broadcast(told).decode())
    blind = world.agree(not token.exists())
    if world.main:
        token.unlink()
    return not blind
