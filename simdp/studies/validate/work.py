"""Work: jobs done here, or shared by several processes, with the same results in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from simdp.engine import threads

J = TypeVar("J")
R = TypeVar("R")

WORTH_A_PROCESS = 150
"""Runs that take about as long as to start a process."""


@contextmanager
def at_work(
    do: Callable[[J], R], jobs: Sequence[J], processes: int | None, num_runs: int
) -> Iterator[Iterator[R]]:
    """Do jobs; results come in their order.

    Parameters
    ----------
    do : callable
        Does one.
    jobs : sequence
        All of them.
    processes : int or None
        How many share them; None: as many as there are cores, if there is enough to do.
    num_runs : int
        The most runs that all of them take.
    """
    if processes is None:
        processes = min(threads.available(), 1 + num_runs // WORTH_A_PROCESS, len(jobs))
    if processes <= 1:
        yield map(do, jobs)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")  # each process counts its BLAS threads anew
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=threads.limit, initargs=(1,)
    ) as pool:
        yield pool.map(do, jobs)
