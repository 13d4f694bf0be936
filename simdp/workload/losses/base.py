"""Loss: a mean over what counts in a batch, or a sum, and its gradient."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from simdp.arrays import Array
from simdp.spec import Spec


class Loss(Spec):
    """What is made small."""

    kind: str

    of_classes: ClassVar[bool] = False
    """Whether targets are class indices, which are whole numbers."""

    num_kept: ClassVar[int] = 0
    """Tensors like the prediction that torch's loss keeps from forward for backward."""

    num_gradients: ClassVar[int] = 1
    """Tensors like the prediction that there are at a time in its backward."""

    @property
    def adds(self) -> bool:
        """Whether losses of parts add up to that of the whole; else its mean by `count` is."""
        return False

    @abstractmethod
    def count(self, target: Array) -> float:
        """What the loss of these targets averages: samples, targets that count, their weights."""

    def ignored(self, target: Array) -> Array:
        """Which elements of these targets do not count, shaped like them; by default none."""
        return np.zeros(target.shape, dtype=bool)

    def ignored_label(self) -> int | None:
        """What a data set writes where nothing is to be told; None where all targets count."""
        return None

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a sample's target where the model makes this of it; by default the same."""
        return output_shape

    def drawn(self, y: Array) -> Array:
        """Make of real numbers, such as synthetic data sets draw, targets of the loss."""
        return y

    @abstractmethod
    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        """Return the loss and its gradient by the prediction; the count is above 0."""

    @abstractmethod
    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        """Say why targets do not fit a model's output, or None; the targets are all of a data set.

        Parameters
        ----------
        target : ndarray, shape `(num_samples, ...)`
            The data set's ``y``.
        output_shape : tuple of int
            What the model makes of one sample.
        """
