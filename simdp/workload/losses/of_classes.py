"""OfClasses: base of the losses whose targets are class indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float, Int
from simdp.workload.losses.base import Loss


class OfClasses(Loss):
    """Mean or sum over the targets that count; the classes are the last axis of the prediction.

    Attributes
    ----------
    weight : list of float or None
        One for each class, on the targets of that class; the mean divides by what they add up to.
    ignore_index : int
        Targets with this value do not count.
    reduction : {"mean", "sum"}
        What is made of the targets.
    """

    of_classes: ClassVar[bool] = True

    weight: tuple[Annotated[Float, Field(ge=0)], ...] | None = None
    ignore_index: Int = -100
    reduction: Literal["mean", "sum"] = "mean"

    @property
    def adds(self) -> bool:
        return self.reduction == "sum"

    def count(self, target: Array) -> float:
        counting = target != self.ignore_index
        if self.weight is None:
            return int(np.count_nonzero(counting))
        return float(np.asarray(self.weight)[target[counting]].sum())

    def ignored(self, target: Array) -> Array:
        found: Array = target == self.ignore_index
        return found

    def ignored_label(self) -> int | None:
        return self.ignore_index

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape[:-1]

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if not output_shape:
            return f"the model makes one number of each sample, but {self.kind} needs classes."
        if target.shape[1:] != self.target_shape(output_shape):
            wanted = (len(target), *self.target_shape(output_shape))
            return f"y has shape {target.shape}, but {self.kind} needs class indices {wanted}."
        if not np.issubdtype(target.dtype, np.integer):
            return f"y is {target.dtype}, but {self.kind} needs class indices: whole numbers."
        counting = target[target != self.ignore_index]
        classes = output_shape[-1]
        if wrong := problem_with_weight(self.weight, classes):
            return wrong
        if counting.size and (counting.min() < 0 or counting.max() >= classes):
            low, high = int(counting.min()), int(counting.max())
            return (
                f"y holds labels {low} ... {high}, but the model tells {classes} classes apart; "
                f"labels must be 0 ... {classes - 1} or ignore_index {self.ignore_index}."
            )
        return None


def problem_with_weight(weight: Sequence[float] | None, classes: int) -> str | None:
    """Say that there is not one weight for each class, or None."""
    if weight is None or len(weight) == classes:
        return None
    return (
        f"the loss has a weight of {len(weight)} values, but the model tells "
        f"{classes} classes apart; give one for each."
    )
