"""What the machine has: its memory, the cores that ranks share, and processes that end together."""

import ctypes
import os
import signal
from contextlib import suppress
from functools import cache

from evorl.errors import ConfigError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h
LARGEST_BLOCK = 2**25  # bytes, the most that glibc takes: larger ones come from the system always
KEPT = 2**30  # bytes of free memory that stay
WIDE = 256  # padded units of a layer from which one matrix product is worth sharing out
LARGE = 32 * 32  # pixels of an image from which a convolution is
PR_SET_PDEATHSIG = 1  # of Linux: what a process gets when its parent dies


@cache
def keep_freed_memory() -> None:
    """Tell glibc, where it is there, to keep what PyTorch frees; once per process.

    Tensors over 128 KiB otherwise come from the system each time, and touching their pages
    costs more than the arithmetic: an update of three networks 128 wide took 3.5 ms instead of 2.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def check_fits(size: int, what: str, advice: str) -> None:
    """ConfigError if a size in bytes is more than the machine has; it would be killed later."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return  # the system doesn't say
    if size > total:
        has = f"{what} needs {size / 2**30:,.1f} GiB, the machine has {total / 2**30:,.1f}"
        raise ConfigError(f"{has}; {advice}")


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(widest: int, pixels: int = 0, ranks: int = 1) -> int:
    """Give PyTorch this rank's share of the cores for large networks, one thread for small ones.

    There, waiting for the others costs more than they bring. What a user has set stays. `widest`
    is the padded units of the widest layer, `pixels` the size of an image, `ranks` are those here.
    """
    import torch

    if not threads_are_given():
        large = widest >= WIDE or pixels >= LARGE
        torch.set_num_threads(max(1, cores() // ranks) if large else 1)
    return torch.get_num_threads()


def threads_are_given() -> bool:
    """Whether OMP_NUM_THREADS is the user's: launchers set it to 1 if the user did not."""
    launched = "LOCAL_WORLD_SIZE" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ
    return os.environ.get("OMP_NUM_THREADS", "") not in ({"", "1"} if launched else {""})


def end_with_parent(parent: int | None = None) -> None:
    """Have this process killed when the one that started it is gone, however that ends.

    `parent` is the process that should be there: without it this one is too late, and ends now.
    """
    with suppress(OSError, AttributeError):  # where there is no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent not in (None, os.getppid()):
        os._exit(1)


def share_cores(place: int, among: int) -> None:
    """Keep to this process's part of the cores, of several that compute at the same time."""
    if among > 1 and hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, mine[place::among] or [mine[place % len(mine)]])
