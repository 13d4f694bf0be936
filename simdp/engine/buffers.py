"""FlatBuffers: the contiguous buffers that travel, one per rank."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from simdp.arrays import Array


class FlatBuffers:
    """One contiguous buffer per rank that holds several tensors, one after the other.

    Parameters
    ----------
    shapes : dict of str to tuple
        Of the tensors, in order.
    world_size : int
        Number of ranks.
    dtype : numpy dtype
        Of the elements.
    multiple : int
        What the number of elements is filled up to a multiple of, with zeros.

    Attributes
    ----------
    flat : list of ndarray
        Of each rank.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        world_size: int,
        dtype: np.dtype[Any],
        multiple: int = 1,
    ) -> None:
        sizes = [prod(shape) for shape in shapes.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self.flat = [
            np.empty(-(-ends[-1] // multiple) * multiple, dtype) for _ in range(world_size)
        ]
        for flat in self.flat:
            flat[ends[-1] :] = 0
        self._places = {
            name: (slice(begin, end), shape)
            for (name, shape), begin, end in zip(shapes.items(), ends, ends[1:], strict=False)
        }

    def views(self, name: str) -> list[Array]:
        """One tensor's place in every rank's buffer, in the tensor's shape."""
        place, shape = self._places[name]
        return [flat[place].reshape(shape) for flat in self.flat]

    def names(self) -> list[str]:
        """The tensors, in order."""
        return list(self._places)
