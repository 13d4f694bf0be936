"""Executors: call a function for many independent items, here, in local processes, or on a cluster.

The results are the same for each of them.
"""

from __future__ import annotations

from simdp.studies.executor.base import (
    CompletedItem,
    Failed,
    PointExecutor,
    SerialExecutor,
    attempt,
    in_order,
)

__all__ = [
    "CompletedItem",
    "Failed",
    "PointExecutor",
    "SerialExecutor",
    "attempt",
    "executor_for",
    "in_order",
]


def executor_for(workers: int = 1, scheduler: str | None = None) -> PointExecutor:
    """Choose an executor.

    Parameters
    ----------
    workers : int
        Processes on this machine; 1 is this process.
    scheduler : str, optional
        Address of a Dask scheduler, as ``"tcp://host:8786"``, to use its workers instead.

    Raises
    ------
    ValueError
        If ``workers < 1``.
    ScenarioError
        If no scheduler answers there.
    """
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    if scheduler is not None:
        from simdp.studies.executor.dask import DaskExecutor  # optional dependency

        return DaskExecutor(scheduler)
    if workers == 1:
        return SerialExecutor()
    from simdp.studies.executor.processes import ProcessExecutor  # not needed by a single run

    return ProcessExecutor(workers)
