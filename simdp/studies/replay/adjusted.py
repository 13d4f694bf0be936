"""Removes from a traced step the times that the scenario charges itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simdp.studies.replay.strategy import UNIT_COPIES
from simdp.studies.replay.timeline import StepCollective, StepWork
from simdp.traces import RankTrace

Raw = dict[str, Any]

STATELESS = {"kind": "sgd", "lr": 0.1}

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "adagrad": "adagrad", "sgd": "sgd"}
"""Of those that annotations name, what a scenario calls them; sgd for all others."""


def optimizer_of(trace: RankTrace) -> Raw | str:
    """The optimizer, by the annotation of its step."""
    for name in trace.host.names:
        if name.startswith("Optimizer.step#"):
            kind = name.removeprefix("Optimizer.step#").split(".")[0].lower()
            return {"kind": OPTIMIZERS.get(kind, "sgd"), "lr": 0.1}
    return dict(STATELESS)


READY = "torch::autograd::AccumulateGrad"


def ready_times(trace: RankTrace, step: StepWork) -> list[float]:
    """When gradients of a step became ready on the host, by the trace's clock [s]."""
    host = trace.host
    if READY not in host.names or not len(step.launched):
        return []
    code = host.names.index(READY)
    at = host.start[(host.name == code)]
    low, high = step.launched.min(), step.launched.max()
    return [float(each) for each in at[(at >= low) & (at <= high)]]


def with_foreign(step: StepWork, foreign: Sequence[StepCollective]) -> StepWork:
    """The step with collectives of no strategy as work: what kernels waited for them."""
    busy, waits = step.busy.copy(), step.waits.copy()
    for sent in foreign:
        behind = np.flatnonzero(waits[sent.after :] > 0)
        if len(behind):
            kernel = sent.after + int(behind[0])
            took = min(sent.seconds, float(waits[kernel]))
            busy[kernel] += took
            waits[kernel] -= took
    return replace(step, busy=busy, waits=waits)


def without_unit_copies(step: StepWork) -> StepWork:
    """The step without the copies of units, which the strategy charges by itself."""
    copied = np.array([any(word in name for word in UNIT_COPIES) for name in step.names])
    return replace(step, busy=np.where(copied, 0.0, step.busy))
