"""Whether all ranks see the main rank's disk."""

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

from evorl.distributed.world import World
from evorl.errors import RunError

TOKEN = ".seen-by-all-ranks-"


def is_shared(world: World, folder: Path | None, setting: Literal["auto"] | bool = "auto") -> bool:
    """By the setting, or tried: the main rank leaves a file in the folder, which it alone knows."""
    if world.main and folder is not None:
        for old in folder.glob(f"{TOKEN}*"):  # of a run that was killed here
            with suppress(OSError):
                old.unlink()
    if setting != "auto":
        return setting
    if world.size == 1:
        return True
    told = None
    if world.main:
        assert folder is not None
        token = folder.absolute() / f"{TOKEN}{secrets.token_hex(8)}"
        try:
            token.touch()
        except OSError as error:
            raise RunError(f"{folder}: cannot be written: {error.strerror}") from None
        told = str(token).encode()
    token = Path(world.broadcast(told).decode())
    blind = world.agree(not token.exists())
    if world.main:
        token.unlink()
    return not blind
