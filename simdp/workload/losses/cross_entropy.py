"""Cross entropy of logits and class indices, as torch.nn.CrossEntropyLoss."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float, Int
from simdp.workload.losses.base import Loss


class CrossEntropy(Loss):
    """Mean over the targets that count; the classes are the last axis of the prediction.

    ``-(1 - s) log p[label] - s / C sum_c log p[c]`` with ``p = softmax(prediction)``, C classes and
    s the label smoothing.

    Attributes
    ----------
    ignore_index : int
        Targets with this value do not count.
    label_smoothing : float
        Share of a target that is spread over all classes.
    """

    kind: Literal["cross_entropy"] = "cross_entropy"

    # torch: log_softmax keeps its output; nll_loss's gradient is there when its own is made.
    of_classes: ClassVar[bool] = True
    num_kept: ClassVar[int] = 1
    num_gradients: ClassVar[int] = 2

    ignore_index: Int = -100
    label_smoothing: Float = Field(0.0, ge=0, le=1)

    def count(self, target: Array) -> int:
        return int(np.count_nonzero(target != self.ignore_index))

    def ignored(self, target: Array) -> Array:
        found: Array = target == self.ignore_index
        return found

    def ignored_label(self) -> int | None:
        return self.ignore_index

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape[:-1]

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
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

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if not output_shape:
            return "the model makes one number of each sample, but cross_entropy needs classes."
        if target.shape[1:] != self.target_shape(output_shape):
            wanted = (len(target), *self.target_shape(output_shape))
            return f"y has shape {target.shape}, but cross_entropy needs class indices {wanted}."
        if not np.issubdtype(target.dtype, np.integer):
            return f"y is {target.dtype}, but cross_entropy needs class indices: whole numbers."
        counting = target[target != self.ignore_index]
        classes = output_shape[-1]
        if counting.size and (counting.min() < 0 or counting.max() >= classes):
            low, high = int(counting.min()), int(counting.max())
            return (
                f"y holds labels {low} ... {high}, but the model tells {classes} classes apart; "
                f"labels must be 0 ... {classes - 1} or ignore_index {self.ignore_index}."
            )
        return None
