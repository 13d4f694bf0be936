"""Host memory: what ranks free is kept for what they ask for next."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Numbers of glibc's settings (malloc.h)."""

LARGEST = 32 * 2**20
"""Beyond this glibc maps each block by itself, whatever it is told [bytes]."""

KEPT = 2**31 - 1
"""What is kept at most [bytes]."""


def keep_what_is_freed() -> None:
    """Let malloc keep blocks of some megabytes, for as long as the process lives.

    Left to itself it gives them back to the system at once, which clears the pages of the next one:
    a twentieth of a step of small batches. Nothing happens with another library than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)  # ranks take turns, so that one is enough for all threads
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, KEPT)
