"""Parameter and Buffer: a layer's named tensors, with torch's names, shapes and first values."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from simdp.arrays import Array


@dataclass(frozen=True)
class Initial:
    """How a tensor is filled before training; see `uniform`, `normal` and `constant`.

    Attributes
    ----------
    kind : {"constant", "normal", "uniform"}
        Which.
    size : float
        The constant, the standard deviation, or the bound on both sides of 0.
    zero_row : int or None
        A row that is 0 whatever is drawn.
    """

    kind: Literal["constant", "normal", "uniform"]
    size: float
    zero_row: int | None = None

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Fill an array, float64."""
        if self.kind == "constant":
            found = np.full(shape, self.size)
        elif self.kind == "normal":
            found = self.size * random.standard_normal(shape)
        else:
            found = random.uniform(-self.size, self.size, shape)
        if self.zero_row is not None:
            found[self.zero_row] = 0
        return found


def uniform(bound: float) -> Initial:
    """Uniform between -bound and bound."""
    return Initial("uniform", bound)


def normal(std: float, zero_row: int | None = None) -> Initial:
    """Normal around 0, but for a row that is 0."""
    return Initial("normal", std, zero_row)


def constant(value: float) -> Initial:
    """The same value everywhere."""
    return Initial("constant", value)


class Parameter(NamedTuple):
    """A learned tensor: its torch name, its shape, and its values before training."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Buffer(NamedTuple):
    """A tensor that is kept but not learned, such as a running mean.

    Attributes
    ----------
    name : str
        Its torch name.
    shape : tuple of int
        Its shape.
    value : float
        What fills it before training.
    integer : bool
        int64 instead of the workload's dtype.
    """

    name: str
    shape: tuple[int, ...]
    value: float
    integer: bool = False

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)
