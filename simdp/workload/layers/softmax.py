"""Softmax along an axis, as torch.nn.Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Pass
from simdp.workload.layers.exponentials import Exponentials


class Softmax(Exponentials):
    """``exp(x) / sum exp(x)``."""

    kind: Literal["softmax"] = "softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = inputs[0] - inputs[0].max(axis=self.dim, keepdims=True)
        np.exp(y, out=y)
        y /= y.sum(axis=self.dim, keepdims=True)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (saved * (dy - (dy * saved).sum(axis=self.dim, keepdims=True)),)
