"""Executor on the workers of a Dask scheduler, which may join, leave and fail.

Items of a worker that died are repeated by another one, until the scheduler blames an item: after
distributed.scheduler.allowed-failures, 3. A worker runs one item at a time, since simulations in
one process share caches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import chain, count, islice
from threading import Lock
from typing import Any, Protocol

from simdp.engine import threads
from simdp.errors import ScenarioError, SimdpError
from simdp.studies.executor.base import CompletedItem, Failed, PointExecutor, R, T, attempt
from simdp.version import __version__

PATIENCE = 4.0  # timeout for a scheduler to answer, and to have a worker [s]
AHEAD = 4  # items that are queued per thread of a worker
TURNS = 50  # rounds of results between counts of the workers

LOOK, LOOKS = 5.0, 12
"""Timeout of waiting for an item before checking for workers [s], and number of such checks."""

LOGS = ("distributed", "distributed.client", "distributed.core")

INSTALL = "--scheduler: needs distributed; pip install 'simdp[cluster]'."

ALONE = Lock()  # held by a worker while an item runs


class _Future(Protocol):
    """An item's result to come, of Dask."""

    @property
    def status(self) -> str: ...

    def exception(self) -> BaseException: ...

    def result(self, timeout: float) -> Any: ...


class DaskExecutor(PointExecutor):
    """Calls a function on the workers of a Dask scheduler at ``address``, as ``"tcp://host:8786"``.

    A ScenarioError if no scheduler answers there, it has no workers, or the library is missing.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._levels = {name: logging.getLogger(name).level for name in LOGS}
        for name in LOGS:  # this class reports errors in one line
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            self._client = _connected(address)
        except BaseException:
            self._speak()
            raise

    def _speak(self) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)

    @property
    def workers(self) -> int:
        return max(1, int(sum(self._client.nthreads().values())))

    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, CompletedItem[R] | Failed]]:
        do = partial(_attempt, __version__, function)
        numbers: dict[Any, int] = {}
        coming = iter(range(len(items)))
        again: list[int] = []
        try:
            for turn in count():
                if turn % TURNS == 0:
                    workers = self.workers
                room = workers * AHEAD - len(numbers)
                for number in chain(again, islice(coming, max(0, room))):
                    numbers[self._client.submit(do, items[number], pure=False)] = number
                again = []
                if not numbers:
                    return
                for future in self._finished(list(numbers)):
                    number, outcome = numbers.pop(future), self._outcome(future)
                    if outcome is None:  # lost with its worker
                        again.append(number)
                    else:
                        yield number, outcome
        except OSError:  # of the connection: errors of items are results
            raise self._gone("went away") from None
        finally:
            if numbers and self._client.status == "running":
                self._client.cancel(list(numbers))

    def _finished(self, futures: list[_Future]) -> Iterable[Any]:
        """Wait for finished futures; fail where the scheduler has no workers for long."""
        from distributed import wait

        for _ in range(LOOKS):
            try:
                with self._client.as_current():
                    done: set[Any] = wait(futures, LOOK, return_when="FIRST_COMPLETED").done
                return done
            except TimeoutError:
                if self._client.nthreads():
                    return ()
            except CancelledError:
                return [future for future in futures if future.status != "pending"]
        raise self._gone("has lost its workers")

    def _outcome(self, future: _Future) -> CompletedItem[Any] | Failed | None:
        """Result of an item; None where it was lost with its worker."""
        if future.status == "error":
            return Failed.of(_translated(future.exception()))
        if self._client.status != "running":
            raise self._gone("went away")
        try:
            outcome: CompletedItem[Any] | Failed = future.result(timeout=LOOK * LOOKS)
            return outcome
        except TimeoutError:  # lost with its worker, and not repeated yet
            if not self._client.nthreads():
                raise self._gone("has lost its workers") from None
            return None
        except CancelledError:
            if self._client.status != "running":
                raise self._gone("went away") from None
            return None

    def _gone(self, what: str) -> ScenarioError:
        return ScenarioError(
            f"--scheduler {self.address}: {what}; finished points are kept; start it again "
            "with --continue."
        )

    def close(self) -> None:
        self._client.close(timeout=PATIENCE)
        self._speak()


def _connected(address: str) -> Any:
    """Connect to the scheduler, and wait for a worker."""
    try:
        from distributed import Client
    except ImportError:
        raise ScenarioError(INSTALL) from None
    where = f"--scheduler {address}"
    client = Client.__new__(Client)  # so that a failed start can be closed
    try:
        Client.__init__(client, address, timeout=PATIENCE, set_as_default=False)
    except Exception as error:  # another server may listen there
        client.close()  # as a finalizer it may deadlock with the start of another
        raise ScenarioError(
            f"{where}: no scheduler answers there ({type(error).__name__}); start one by `dask "
            "scheduler`, and give the address that it prints, as tcp://127.0.0.1:8786."
        ) from None
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        client.close()
        raise ScenarioError(
            f"{where}: the scheduler has no workers; start some by `dask worker {address}`."
        ) from None
    return client


def _translated(error: object) -> Exception:
    """Translate the error of a worker that could not run the item."""
    if isinstance(error, ModuleNotFoundError):
        return SimdpError(f"a worker has no {error.name}; install simdp on every one.")
    if type(error).__name__ == "KilledWorker":
        return SimdpError("the workers that simulated it died; they may have too little memory.")
    return error if isinstance(error, Exception) else SimdpError(str(error))


def _attempt(version: str, function: Callable[[T], R], item: T) -> CompletedItem[R] | Failed:
    """Call a function on a worker, which must have the same version of simdp."""
    if __version__ != version:
        return Failed.of(
            SimdpError(f"a worker has simdp {__version__}, not {version}; install that there")
        )
    with ALONE:
        threads.limit(1)
        return attempt(function, item)
