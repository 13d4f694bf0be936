"""What the comparisons with torch share: a model of ours at work, and what to do without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers.base import Pass
from simdp.workload.models.base import Model
from simdp.workload.precision import Full
from simdp.workload.weights import drawn

NO_TORCH = 2

Slope = Callable[[Any], tuple[Any, Any]]


def simdp_step(model: Model, x: Any, slope_of: Slope) -> Callable[[], Any]:
    """Return a function that runs forward and backward on one thread, in float32.

    ``slope_of`` takes the output; it gives what the function is to return, and the gradient of the
    output.
    """
    weights = drawn(model, model.graph, "float32", 0, 0)
    buffers = {buffer.name: weights.pop(buffer.name) for buffer in model.graph.buffers}
    room = {name: np.empty_like(weight) for name, weight in weights.items()}
    executor = GraphExecutor(model.graph, call_dtypes(model.graph, Full(), "float32"), "float32")

    def step() -> Any:
        run = Pass(weights, buffers, into=room, samples=np.arange(len(x)))
        (y,), kept = _played(executor.forward(run, [x]))
        told, slope = slope_of(y)
        _played(executor.backward(run, kept, [slope]))
        return told

    return step


def _played(script: Any) -> Any:
    """What a pass returns that never yields."""
    try:
        next(script)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a model without synchronised layers never yields")


def complain(benchmark: str) -> None:
    """Say how to get torch."""
    sys.stderr.write(
        f"benchmarks.{benchmark} compares with torch, which is not installed; run "
        "'pip install torch --index-url https://download.pytorch.org/whl/cpu'.\n"
    )
