"""Losses of margins: of sides, 1 or -1 (hinge_embedding, soft_margin), and of classes."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float, Int
from simdp.workload.layers.activations.sigmoid import logistic
from simdp.workload.losses.elementwise import Elementwise
from simdp.workload.losses.of_classes import OfClasses


class Sided(Elementwise):
    """Base: targets are 1 or -1."""

    def drawn(self, y: Array) -> Array:
        return np.where(y < 0, -1.0, 1.0).astype(y.dtype)

    def problem_with_values(self, target: Array) -> str | None:
        if np.isin(target, (-1, 1)).all():
            return None
        return (
            f"y holds {target.min()} ... {target.max()}, but {self.kind} needs sides; give 1 or -1."
        )


class HingeEmbedding(Sided):
    """Mean over elements of ``x`` where the target is 1, and of ``max(0, margin - x)`` where -1.

    As torch.nn.HingeEmbeddingLoss.

    Attributes
    ----------
    margin : float
        From which distance on unlike pairs cost nothing.
    """

    kind: Literal["hinge_embedding"] = "hinge_embedding"
    margin: Float = 1.0

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        same, short = target == 1, self.margin - prediction
        slope = np.where(same, 1, np.where(short >= 0, -1, 0)).astype(prediction.dtype)
        return np.where(same, prediction, np.maximum(short, 0)), slope


class SoftMargin(Sided):
    """Mean over elements of ``log(1 + exp(-t x))``, as torch.nn.SoftMarginLoss."""

    kind: Literal["soft_margin"] = "soft_margin"

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        signed = target * prediction
        return np.logaddexp(0, -signed), -target * logistic(-signed)


class MultiMargin(OfClasses):
    """Mean over samples of ``w[t] sum_c max(0, margin - x[t] + x[c])^p / C``, c not t.

    As torch.nn.MultiMarginLoss, with C classes; the weights do not change what the mean divides by.

    Attributes
    ----------
    p : {1, 2}
        The power.
    margin : float
        By how much the label's number must exceed the others.
    weight : list of float or None
        w, one for each class.
    """

    kind: Literal["multi_margin"] = "multi_margin"

    p: Int = Field(1, ge=1, le=2)
    margin: Float = 1.0

    def count(self, target: Array) -> float:
        return int(np.count_nonzero(target != self.ignore_index))

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        rows = np.flatnonzero(target != self.ignore_index)
        at, kind = (np.arange(len(rows)), target[rows]), prediction.dtype.type
        given = prediction[rows]
        short = kind(self.margin) - given[at][:, None] + given
        short[at] = 0
        short = np.maximum(short, 0)
        share = np.full(len(rows), kind(1 / prediction.shape[1]))
        if self.weight is not None:
            share *= np.asarray(self.weight, dtype=kind)[at[1]]
        if self.reduction == "mean":
            share /= kind(len(rows))
        found = (short > 0).astype(kind) if self.p == 1 else 2 * short
        found *= share[:, None]
        found[at] = -found.sum(axis=1)
        slope = np.zeros_like(prediction)
        slope[rows] = found
        return float((share[:, None] * short**self.p).sum()), slope

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if len(output_shape) > 1:
            return (
                f"the model makes {output_shape} of each sample, but multi_margin needs one row of "
                "classes."
            )
        return super().problem_with(target, output_shape)
