"""Threads: ranks compute in parallel on this machine's cores; their number changes no bit.

NumPy's kernels release the GIL. Each rank has its own arrays and each matrix product runs in one
thread, so that the order of ranks does not matter.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np

T = TypeVar("T")

WORTHWHILE_ELEMENTS = 100_000
"""Parameters of a model above which threads are faster."""

M_ARENA_MAX = -8
"""Option of glibc's malloc.h: maximum number of memory arenas of threads (mallopt(3))."""


def available() -> int:
    """Number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_limit = available()


def limit(num_threads: int) -> None:
    """Set the number of threads, at least 1; for processes that share a machine."""
    global _limit
    _limit = num_threads
    _pool.cache_clear()


def _share_free_memory() -> None:
    """Let all threads allocate from one arena, so that freed memory is reused.

    Separate arenas keep up to a quarter more memory than the arrays, and are not faster.
    """
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    except (AttributeError, OSError):  # another C library
        return


@cache
def _pool() -> ThreadPoolExecutor:
    _share_free_memory()
    return ThreadPoolExecutor(_limit, thread_name_prefix="rank")


def each_rank(work: Callable[[int], T], world_size: int, num_elements: int) -> list[T]:
    """Apply a function to every rank; return its results by rank.

    Parameters
    ----------
    work : callable
        Takes a rank; must not access another rank's arrays.
    world_size : int
        Number of ranks.
    num_elements : int
        Parameters processed per rank.
    """
    if _limit == 1 or world_size == 1 or num_elements < WORTHWHILE_ELEMENTS:
        return [work(rank) for rank in range(world_size)]

    def with_the_callers_errors(rank: int) -> T:
        with np.errstate(**errors):  # NumPy's error state is per thread
            return work(rank)

    errors = np.geterr()
    return list(_pool().map(with_the_callers_errors, range(world_size)))
