"""What a launcher (accelerate launch, torchrun) put into the environment of its processes."""

import os
import time

from evorl.errors import ConfigError

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # where there are several ranks
RESTART = "start with accelerate launch, or unset it"
SPEAKS_AFTER = 5.0  # seconds that a rank leaves to the main one, to print an error that both have


def launched_ranks() -> int:
    """The ranks that were launched, this one included; 1 without a launcher."""
    ranks = _number("WORLD_SIZE", 1)
    missing = [name for name in NEEDED if name not in os.environ]
    if ranks > 1 and missing:
        raise ConfigError(f"WORLD_SIZE: got {ranks}, but no {', '.join(missing)}; {RESTART}")
    return ranks


def rank() -> int:
    """This rank's number; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """How often the launcher has started all ranks again (--max_restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def local_ranks() -> int:
    """The ranks on this machine, this one included."""
    return _number("LOCAL_WORLD_SIZE", 1)


def is_main_process_of_launch() -> bool:
    """Whether this is rank 0, or no rank at all; known before there is a World."""
    return rank() == 0


def let_main_speak_first() -> None:
    """Call before an error is printed: ranks other than the main one wait.

    A launcher ends all ranks as soon as one has failed, and so perhaps the main one before its line
    is out. An error that all ranks have is printed by the main one, whose exit ends the others
    here. One that the main rank does not have is printed after all.
    """
    if not is_main_process_of_launch():
        time.sleep(SPEAKS_AFTER)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    # Not isdecimal, which takes other scripts' digits; not int alone, which takes "1_0".
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ConfigError(f"{name}: expected a whole number from 1 on, got {text!r}; {RESTART}")
    return int(text)
