"""Parameter and Buffer: a layer's named tensors, with torch's names, shapes and first values.

The bounds and deviations are computed as torch.nn.init computes them, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.workload.torch_generator import TorchGenerator


@dataclass(frozen=True)
class Initial:
    """How a tensor is filled before training; see `uniform`, `normal` and `constant`.

    Attributes
    ----------
    kind : {"constant", "normal", "uniform", "copy"}
        Which.
    size : float
        The constant, the standard deviation, or the bound on both sides of 0.
    zero_row : int or None
        A row that is 0 whatever is drawn.
    within : float or None
        Bound on both sides of 0 of a truncated normal: values beyond it are drawn again.
    of : str
        The parameter that is copied, as torch copies a whole module (copy.deepcopy).
    """

    kind: Literal["constant", "normal", "uniform", "copy"]
    size: float
    zero_row: int | None = None
    within: float | None = None
    of: str = ""

    def draw_as_torch(self, generator: TorchGenerator, shape: tuple[int, ...], dtype: str) -> Array:
        """Fill an array in a dtype with the numbers that torch draws for it."""
        if self.kind == "constant":
            return np.full(shape, self.size, dtype=dtype)
        if self.kind == "uniform":
            return generator.uniform(self.size, shape, dtype)
        found = generator.normal(self.size, shape, dtype)
        while self.within is not None and (beyond := np.abs(found) > self.within).any():
            found = np.where(beyond, generator.normal(self.size, shape, dtype), found)
        if self.zero_row is not None:
            found[self.zero_row] = 0
        return found

    def skip_as_torch(self, generator: TorchGenerator, shape: tuple[int, ...], dtype: str) -> None:
        """Leave a generator as `draw_as_torch` does, where the numbers are not wanted."""
        if self.kind == "uniform":
            generator.skip_uniform(prod(shape), dtype)
        elif self.kind == "normal" and self.within is None:
            generator.skip_normal(prod(shape), dtype)
        elif self.kind == "normal":  # how many are drawn again depends on the numbers
            self.draw_as_torch(generator, shape, dtype)

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Fill an array, float64, from a stream that torch does not have."""
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


def kaiming_uniform(fan: int, a: float = sqrt(5)) -> Initial:
    """torch.nn.init.kaiming_uniform_; by default as torch's linear and convolution layers do."""
    return uniform(sqrt(3.0) * (sqrt(2.0 / (1 + a**2)) / sqrt(fan)))


def xavier_uniform(fan_in: int, fan_out: int) -> Initial:
    """torch.nn.init.xavier_uniform_."""
    return uniform(sqrt(3.0) * sqrt(2.0 / float(fan_in + fan_out)))


def normal(std: float, zero_row: int | None = None) -> Initial:
    """Normal around 0, but for a row that is 0."""
    return Initial("normal", std, zero_row)


def kaiming_normal(fan: int) -> Initial:
    """torch.nn.init.kaiming_normal_ in front of a relu: variance ``2 / fan``."""
    return normal(sqrt(2.0) / sqrt(fan))


def trunc_normal(std: float, within: float = 2.0) -> Initial:
    """torch.nn.init.trunc_normal_ of torch 2.14, between -within and within, not times std."""
    return Initial("normal", std, within=within)


def copy_of(name: str) -> Initial:
    """The same values as another parameter's, which is drawn before."""
    return Initial("copy", 0.0, of=name)


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
