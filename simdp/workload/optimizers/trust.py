"""What LAMB and LARS share: each tensor's rate follows from its norm and that of its update."""

from __future__ import annotations

from abc import abstractmethod
from math import sqrt
from typing import ClassVar

import numpy as np

from simdp.arrays import Array
from simdp.workload.optimizers.base import Optimizer, State


class TrustRatio(Optimizer):
    """An update in two parts, between which norms of whole tensors have to be known.

    Attributes
    ----------
    weight_decay : float
        So many times the parameter is added to its update; tensors for which it is 0, such as
        biases in a group of theirs, have no ratio, or 1.
    always_adapt : bool
        Whether these have one all the same.
    """

    trusts: ClassVar[bool] = True
    whole_tensors: ClassVar[bool] = True

    weight_decay: float
    always_adapt: bool

    @abstractmethod
    def measured(self, parameter: Array, gradient: Array, state: State, t: int) -> Array:
        """First part, of any elements: change the state, and make the tensor whose norm counts."""

    @abstractmethod
    def finish(
        self, parameter: Array, measured: Array, state: State, lr: float, t: int, ratio: float
    ) -> None:
        """Second part: change the parameter in place, by what was measured."""

    @abstractmethod
    def ratio(self, weight_norm: float, measured_norm: float) -> float:
        """Trust ratio of a tensor, from two norms above 0."""

    def ratio_of(self, weight_squares: float, measured_squares: float) -> float:
        """Trust ratio from sums of squares over the whole tensor; 1 where it has none."""
        adapts = self.always_adapt or self.weight_decay
        if not (adapts and weight_squares and measured_squares):
            return 1.0
        return self.ratio(sqrt(weight_squares), sqrt(measured_squares))

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        measured = self.measured(parameter, gradient, state, t)
        ratio = self.ratio_of(squares(parameter), squares(measured))
        self.finish(parameter, measured, state, lr, t, ratio)


def squares(tensor: Array) -> float:
    """Sum of the squares of all elements."""
    return float(np.vdot(tensor, tensor))
