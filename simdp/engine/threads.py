"""Threads: ranks compute side by side on this machine's cores, with the same bits on any number.

NumPy's kernels let other threads run while they work. Each rank's arrays are its own and each
matrix product runs in one thread, so that the order in which ranks are served changes nothing.
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
"""Parameters of a model from which on a rank's work outweighs the hand-over to a thread."""

M_ARENA_MAX = -8
"""Of glibc's malloc.h: how many pools of memory threads may have (mallopt(3))."""


def available() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_limit = available()


def limit(num_threads: int) -> None:
    """Use so many threads from now on, 1 or more; for processes that share a machine."""
    global _limit
    _limit = num_threads
    _pool.cache_clear()


def _share_free_memory() -> None:
    """Let threads take memory from one pool: what one of them has freed serves the others too.

    With pools of their own a run keeps up to a quarter more than it has arrays, and is no faster.
    """
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    except (AttributeError, OSError):  # a C library of another kind
        return


@cache
def _pool() -> ThreadPoolExecutor:
    _share_free_memory()
    return ThreadPoolExecutor(_limit, thread_name_prefix="rank")


def each_rank(work: Callable[[int], T], world_size: int, num_elements: int) -> list[T]:
    """Do something for every rank.

    Parameters
    ----------
    work : callable
        Takes a rank; touches nothing that belongs to another.
    world_size : int
        Number of ranks.
    num_elements : int
        Parameters that the work goes over.

    Returns
    -------
    list
        What it returned, by rank.
    """
    if _limit == 1 or world_size == 1 or num_elements < WORTHWHILE_ELEMENTS:
        return [work(rank) for rank in range(world_size)]

    def with_the_callers_errors(rank: int) -> T:
        with np.errstate(**errors):  # what NumPy warns about is set per thread
            return work(rank)

    errors = np.geterr()
    return list(_pool().map(with_the_callers_errors, range(world_size)))
