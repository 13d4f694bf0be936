"""Executor in several processes of this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from threading import Thread, current_thread, main_thread
from typing import Any

from simdp.engine import threads
from simdp.errors import SimdpError
from simdp.studies.executor.base import CompletedItem, Failed, PointExecutor, R, T, attempt

AHEAD = 2  # items that are queued per process, so that none waits
MAX_DEATHS = 2  # deaths of a process that runs one item alone until the item fails

DIED = "its process died, possibly out of memory; try fewer workers."


PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl(2): the signal of a process when the thread that started it ends."""


class ProcessExecutor(PointExecutor):
    """Calls a function in several processes of this machine, which share the cores."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers}")
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    @property
    def workers(self) -> int:
        return self._workers

    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, CompletedItem[R] | Failed]]:
        do: Any = partial(attempt, function)
        waiting, suspects = deque(range(len(items))), deque[int]()
        deaths = dict.fromkeys(range(len(items)), 0)
        running: dict[Future[Any], int] = {}
        try:
            while waiting or suspects or running:
                alone = bool(suspects)
                here = suspects or waiting
                while here and len(running) < (1 if alone else self._workers * AHEAD):
                    number = here.popleft()
                    with _safe_path():
                        running[self._started().submit(do, items[number])] = number
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    try:
                        yield number, future.result()
                    except BrokenProcessPool:
                        deaths[number] += alone
                        if deaths[number] < MAX_DEATHS:
                            suspects.append(number)
                        else:
                            yield number, Failed([DIED], SimdpError(DIED))
                        self.close()
                    except Exception as error:  # the item or its value cannot be pickled
                        yield number, Failed.of(error)
        finally:
            for future in running:
                future.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            import multiprocessing

            # A spawned process sets its own number of BLAS threads.
            context = multiprocessing.get_context("spawn")
            share = max(1, threads.available() // self._workers)
            # Linux ends a child with the thread that started it, and only the main one stays.
            is_lasting = current_thread() is main_thread()
            self._pool = ProcessPoolExecutor(
                self._workers,
                mp_context=context,
                initializer=_begin,
                initargs=(share, is_lasting),
            )
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start processes that import no module of the current folder before they have our path."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        os.environ.update({} if before is None else {"PYTHONSAFEPATH": before})


def _begin(num_threads: int, is_lasting: bool) -> None:
    """Set up a process: its number of threads, and its end with the parent's.

    ``is_lasting``: whether the thread that started it lives as long as the parent.
    """
    if is_lasting and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    threads.limit(num_threads)


def _end_with_parent() -> None:
    """Wait for the end of the parent, then end this process."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        # No exception would do: the main thread may be in the middle of a long computation.
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
