"""Delayed: gradients that DDP reduces by themselves, all at once, when another one is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.errors import shown
from simdp.steps.bucket import Bucket
from simdp.workload import Workload


class Delayed(NamedTuple):
    """Gradients that wait for another parameter's.

    Attributes
    ----------
    bucket : Bucket
        The gradients.
    hooked : str
        The parameter whose gradient starts their all_reduce.
    """

    bucket: Bucket
    hooked: str


def problem_with_delay(names: Sequence[str], hooked: str, workload: Workload) -> str | None:
    """Say why gradients cannot wait for one that is to start their all_reduce; or None."""
    ready, all_of_them = workload.graph.ready_order, [p.name for p in workload.graph.trainable]
    unknown = [name for name in names if name not in all_of_them]
    if unknown:
        return (
            f"delay_all_reduce_named_params: no parameter is called {shown(unknown[0])}; known: "
            f"{_few(all_of_them)}."
        )
    if hooked not in ready:
        return (
            f"param_to_hook_all_reduce: no parameter {shown(hooked)} gets a gradient; known: "
            f"{_few(ready)}."
        )
    before = ready[: ready.index(hooked)]
    late = [name for name in names if name in ready and name not in before]
    if late:
        return (
            f"param_to_hook_all_reduce: {late[0]} has no gradient yet when {hooked} gets one, so "
            f"that it would not be reduced; hook the last one, {ready[-1]}, or leave it out of "
            "delay_all_reduce_named_params."
        )
    return None


def _few(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")
