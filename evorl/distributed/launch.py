"""What a launcher (accelerate launch, torchrun) gives its processes: an environment and a store."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from evorl.errors import ConfigError, RunError

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # where there are several ranks
RESTART = "start with accelerate launch, or unset it"
SPEAKS_AFTER = 5.0  # seconds that a rank leaves to the main one, to print an error that both have
ADVICE = "look for an error above, and start the run again"
SHOWN = 160  # characters of torch's own words
PLACE = re.compile(r"^(Gloo \w+ failed with )?\[\S+:\d+\] ")  # a file of gloo's, and its line
START = timedelta(minutes=5)  # for the main rank to read a file


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


@contextmanager
def rank_errors(what: str, advice: str = ADVICE) -> Iterator[None]:
    """Makes a RunError of what torch.distributed raises: RuntimeErrors, often of many lines."""
    try:
        yield
    except RuntimeError as error:
        line = (str(error).splitlines() or [""])[0]
        reason = PLACE.sub("", line).split(". ")[0][:SHOWN] or type(error).__name__
        raise RunError(f"{what} ({reason}); {advice}") from error


def launcher_store(timeout: timedelta) -> Any:
    """The store, without what was there before the launcher started all ranks again."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timeout)
    return PrefixStore(f"evorl/attempt{restarts()}", store)


def read_on_main_rank(read: Callable[[], str]) -> str:
    """What `read` gives on the main rank, on every rank, before there is a World; only once.

    A run's folder may be on the main rank's disk alone, and says how to lay out the ranks.
    """
    if launched_ranks() == 1:
        return read()
    with rank_errors("start: the main rank said nothing"):
        store = launcher_store(START)
        if not is_main_process_of_launch():
            return str(store.get("config").decode())
    text = read()
    store.set("config", text)
    return text
