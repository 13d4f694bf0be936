"""Parameter and Buffer: a layer's named tensors, with torch's names, shapes and first values."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Initial:
    """How a tensor is filled before training; see `uniform`, `normal` and `constant`."""

    kind: Literal["constant", "normal", "uniform"]
    size: float

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Fill an array, float64."""
        if self.kind == "constant":
            return np.full(shape, self.size)
        if self.kind == "normal":
            return self.size * random.standard_normal(shape)
        return random.uniform(-self.size, self.size, shape)


def uniform(bound: float) -> Initial:
    """Uniform between -bound and bound."""
    return Initial("uniform", bound)


def normal(std: float) -> Initial:
    """Normal around 0."""
    return Initial("normal", std)


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
