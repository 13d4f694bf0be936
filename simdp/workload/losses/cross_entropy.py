"""Cross entropy of logits and class indices, as torch.nn.CrossEntropyLoss."""

from __future__ import annotations

from typing import Literal

import numpy as np

from simdp.spec import Int
from simdp.workload.losses.base import Array, Loss


class CrossEntropy(Loss):
    """Mean over the targets that count; the classes are the last axis of the prediction.

    Attributes
    ----------
    ignore_index : int
        Targets with this value do not count.
    """

    kind: Literal["cross_entropy"] = "cross_entropy"
    ignore_index: Int = -100

    def count(self, target: Array) -> int:
        return int((target != self.ignore_index).sum())

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        logits = prediction.reshape(-1, prediction.shape[-1])
        labels = target.reshape(-1)
        counts = labels != self.ignore_index
        rows = np.flatnonzero(counts)
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        total = exponentials.sum(axis=1, keepdims=True)
        log_probability = shifted[rows, labels[rows]] - np.log(total[rows, 0])
        gradient = exponentials / total
        gradient[rows, labels[rows]] -= 1
        gradient[~counts] = 0
        gradient /= len(rows)
        return float(-log_probability.mean()), gradient.reshape(prediction.shape)

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if not output_shape:
            return "the model makes one number of each sample, but cross_entropy needs classes."
        if target.shape[1:] != output_shape[:-1]:
            wanted = (len(target), *output_shape[:-1])
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
