"""Memory: refuse what cannot fit, and keep what was freed."""

import ctypes
import os
from functools import cache

from evorl.errors import ConfigError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h
LARGEST_BLOCK = 2**25  # bytes, the most that glibc takes: larger ones come from the system anew
KEPT = 2**30  # bytes of free memory that stay


@cache
def keep_freed_memory() -> bool:
    """Once per process: tell glibc to keep what PyTorch frees; False where there is no glibc.

    Tensors over 128 KiB otherwise come from the system anew each time, and touching their pages
    costs more than the arithmetic: an update of three networks 128 wide took 3.5 ms instead of 2.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT) and blocks)


def check_fits(size: int, what: str, advice: str) -> None:
    """ConfigError if so many bytes are more than the machine has; it would be killed later."""
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
