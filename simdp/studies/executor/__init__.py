"""Executors: many things that do not depend on each other, here, in local processes, or elsewhere.

What they are given, and what comes out, is the same for each of them.
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
    """Choose who does many things.

    Parameters
    ----------
    workers : int
        Processes of this machine that share them; 1 is this process.
    scheduler : str, optional
        Address of a Dask scheduler, as ``"tcp://host:8786"``, whose workers share them instead.

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
        from simdp.studies.executor.dask import DaskExecutor  # which few have

        return DaskExecutor(scheduler)
    if workers == 1:
        return SerialExecutor()
    from simdp.studies.executor.processes import ProcessExecutor  # which a single run does without

    return ProcessExecutor(workers)
