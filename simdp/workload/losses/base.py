"""Loss: a mean over what counts in a batch, and its gradient."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simdp.spec import Spec

Array = NDArray[Any]


class Loss(Spec):
    """What is made small."""

    kind: str

    @abstractmethod
    def count(self, target: Array) -> int:
        """How many things the loss of these targets averages: samples, or targets that count."""

    @abstractmethod
    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        """Return the mean loss and its gradient by the prediction; the count is above 0."""

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        """Say why targets do not fit a model's output, or None; the targets are all of a data set.

        Parameters
        ----------
        target : ndarray, shape `(num_samples, ...)`
            The data set's ``y``.
        output_shape : tuple of int
            What the model makes of one sample.
        """
        if target.shape[1:] != output_shape:
            return (
                f"y has shape {target.shape}, but the model makes {output_shape} of each sample; "
                f"give y the shape {(len(target), *output_shape)}."
            )
        if not np.issubdtype(target.dtype, np.floating) or not np.isfinite(target).all():
            return f"y is {target.dtype} or has values that are not finite; give finite floats."
        return None
