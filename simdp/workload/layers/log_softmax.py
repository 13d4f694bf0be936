"""LogSoftmax along an axis, as torch.nn.LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.softmax import log_softmax
from simdp.workload.layers.base import Pass
from simdp.workload.layers.exponentials import Exponentials


class LogSoftmax(Exponentials):
    """``x - log(sum exp(x))``."""

    kind: Literal["log_softmax"] = "log_softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = log_softmax(inputs[0], self.dim)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (dy - np.exp(saved) * dy.sum(axis=self.dim, keepdims=True),)
