"""What the machine has: its memory, and the cores that ranks share."""

import ctypes
import os
from functools import cache

from evorl.errors import ConfigError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h
LARGEST_BLOCK = 2**25  # bytes, the most that glibc takes: larger ones come from the system always
KEPT = 2**30  # bytes of free memory that stay
WIDE = 256  # padded units of a layer from which one matrix product is worth sharing out
LARGE = 32 * 32  # pixels of an image from which a convolution is


@cache
def keep_freed_memory() -> bool:
    """Once per process: tell glibc to keep what PyTorch frees; False where there is no glibc.

    Tensors over 128 KiB otherwise come from the system each time, and touching their pages
    costs more than the arithmetic: an update of three networks 128 wide took 3.5 ms instead of 2.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT) and blocks)


def check_fits(size: int, what: str, advice: str) -> None:
    """ConfigError if a size in bytes is more than the machine has; it would be killed later."""
    total = total_memory()
    if total is not None and size > total:
        raise ConfigError(
            f"{what} needs {size / 2**30:,.1f} GiB, the machine has {total / 2**30:,.1f}; {advice}"
        )


def total_memory() -> int | None:
    """Bytes of physical memory; None where the system doesn't say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(widest: int, pixels: int = 0, ranks: int = 1) -> int:
    """Give PyTorch this rank's share of the cores for large networks, one thread for small ones.

    There, waiting for the others costs more than they bring. OMP_NUM_THREADS is left in charge, if
    it is the user's.

    Args:
        widest: Padded units of the widest layer.
        pixels: Of an observation that is an image.
        ranks: The ranks on this machine.
    """
    import torch

    if not threads_are_given():
        large = widest >= WIDE or pixels >= LARGE
        torch.set_num_threads(max(1, cores() // ranks) if large else 1)
    return torch.get_num_threads()


def threads_are_given() -> bool:
    """Whether the user set OMP_NUM_THREADS, and not the launcher.

    accelerate launch and torchrun set it to 1 if the user did not; 1 under a launcher is taken for
    that.
    """
    launched = "LOCAL_WORLD_SIZE" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return bool(threads) and not (launched and threads == "1")
