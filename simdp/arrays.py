"""Type names for NumPy arrays by dtype, their product, and values grouped by key."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

K = TypeVar("K")
V = TypeVar("V")

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def product(*factors: ArrayLike) -> Array:
    """Multiply matrices from left to right, as ``@`` does, without warnings.

    BLAS may set the processor's flags at finite numbers: OpenBLAS 0.3.31 on Skylake-X once reported
    an invalid value in a product of 5 x 1. Infinities and NaN of real overflow stay in the result.
    """
    with np.errstate(all="ignore"):
        return np.asarray(reduce(np.matmul, factors))


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Collect the values of each key, both in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
