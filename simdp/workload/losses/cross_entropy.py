"""Cross entropy of logits and classes or their probabilities, as torch.nn.CrossEntropyLoss."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.arrays.softmax import log_softmax
from simdp.workload.losses.of_classes import OfClasses, problem_with_weight


class CrossEntropy(OfClasses):
    """Mean over the targets that count; the classes are the last axis of the prediction.

    ``-(1 - s) w[label] log p[label] - s / C sum_c w[c] log p[c]`` with ``p = softmax(prediction)``,
    C classes, their weights w and s the label smoothing.

    Targets that are floats in the shape of the prediction are probabilities of the classes, q:
    ``-sum_c w[c] ((1 - s) q[c] + s / C) log p[c]``, of which the mean is over all targets. What
    targets take of memory is counted as of indices.

    Attributes
    ----------
    label_smoothing : float
        Share of a target that is spread over all classes.
    """

    kind: Literal["cross_entropy"] = "cross_entropy"

    # torch: log_softmax keeps its output; nll_loss's gradient is there when its own is made.
    num_kept: ClassVar[int] = 1
    num_gradients: ClassVar[int] = 2

    label_smoothing: Float = Field(0.0, ge=0, le=1)

    def count(self, target: Array) -> float:
        return target.size / target.shape[-1] if _is_soft(target) else super().count(target)

    def ignored(self, target: Array) -> Array:
        if _is_soft(target):
            return np.zeros(target.shape[:-1], dtype=bool)
        return super().ignored(target)

    def drawn(self, y: Array) -> Array:
        found: Array = np.exp(log_softmax(y))
        return found

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if not _is_soft(target) or target.shape[1:] != output_shape or not output_shape:
            return super().problem_with(target, output_shape)
        if target.size and not (target.min() >= 0 and target.max() <= 1):
            return (
                f"y holds {target.min()} ... {target.max()}, but cross_entropy needs probabilities "
                "of classes; give values from 0 to 1, or class indices."
            )
        return problem_with_weight(self.weight, output_shape[-1])

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        if _is_soft(target):
            return self._soft(prediction, target)
        mean = self._mean if self.weight is None else self._weighted_mean
        value, slope = mean(prediction, target)
        if self.reduction == "sum":
            whole = self.count(target)
            value *= whole
            slope *= slope.dtype.type(whole)
        return value, slope

    def _soft(self, prediction: Array, target: Array) -> tuple[float, Array]:
        classes, kind = prediction.shape[-1], prediction.dtype
        pull = target.astype(kind) * (1 - self.label_smoothing) + self.label_smoothing / classes
        if self.weight is not None:
            pull *= np.asarray(self.weight, dtype=kind)
        if self.reduction == "mean":
            pull *= kind.type(1 / self.count(target))
        log = log_softmax(prediction)
        return float(-(pull * log).sum()), np.exp(log) * pull.sum(axis=-1, keepdims=True) - pull

    def _mean(self, prediction: Array, target: Array) -> tuple[float, Array]:
        classes = prediction.shape[-1]
        logits, labels = prediction.reshape(-1, classes), target.reshape(-1)
        rows = np.flatnonzero(labels != self.ignore_index)
        at, smooth = (rows, labels[rows]), self.label_smoothing
        # One array is the shifted logits, then their exponentials, then the gradient.
        work = logits - logits.max(axis=1, keepdims=True)
        chosen = work[at]
        if smooth:
            chosen = (1 - smooth) * chosen + smooth * work.mean(axis=1)[rows]
        np.exp(work, out=work)
        total = work.sum(axis=1)
        value = (np.log(total[rows]) - chosen).mean()
        work *= (1 / (total * total.dtype.type(len(rows))))[:, None]
        if smooth:
            work -= smooth / (classes * len(rows))
        work[at] -= (1 - smooth) / len(rows)
        if len(rows) < len(labels):
            work[labels == self.ignore_index] = 0
        return float(value), work.reshape(prediction.shape)

    def _weighted_mean(self, prediction: Array, target: Array) -> tuple[float, Array]:
        """Each target by the weight of its class; what is spread, by those of all classes."""
        labels, smooth = target.reshape(-1), self.label_smoothing
        rows = np.flatnonzero(labels != self.ignore_index)
        at = (np.arange(len(rows)), labels[rows])
        weight = np.asarray(self.weight, dtype=prediction.dtype)
        log = log_softmax(prediction.reshape(len(labels), -1)[rows])
        # What each class of each row weighs.
        pull = np.broadcast_to(weight * (smooth / len(weight)), log.shape).copy()
        pull[at] += (1 - smooth) * weight[at[1]]
        pull /= weight[at[1]].sum()
        slope = np.zeros((len(labels), len(weight)), dtype=prediction.dtype)
        slope[rows] = np.exp(log) * pull.sum(axis=1, keepdims=True) - pull
        return float(-(pull * log).sum()), slope.reshape(prediction.shape)


def _is_soft(target: Array) -> bool:
    return bool(np.issubdtype(target.dtype, np.floating))
