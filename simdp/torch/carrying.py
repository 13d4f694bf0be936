"""Carrying: what collectives leave in tensors, one function per collective, to gloo's bits.

Each is called once all ranks of a group have made the call, with what each place of it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simdp.engine.programs.calls import Given
from simdp.torch.adding import Reduction, reduce_into
from simdp.torch.buffers import Buffer

Exchange = Callable[[Sequence[Any]], None]


def _pieces(buffer: Buffer, n: int) -> list[Any]:
    return np.split(buffer.array, n)


def all_reduce(how: Reduction) -> Exchange:
    """Reduce on all ranks; several tensors of a rank as one, which they are for gloo."""

    def carry(given: Sequence[Given]) -> None:
        inputs = [Joined(each.inputs) for each in given]
        reduce_into("all_reduce", inputs, [each.array for each in inputs], how)
        for each in inputs:
            each.part()

    return carry


class Joined:
    """Several buffers as one.

    Parameters
    ----------
    buffers : sequence of Buffer
        One or more, of one dtype.
    """

    def __init__(self, buffers: Sequence[Any]) -> None:
        self._buffers, self.dtype = buffers, buffers[0].dtype
        arrays = [buffer.array for buffer in buffers]
        self.array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        self.size = self.array.size

    def part(self) -> None:
        """Give each buffer what is its."""
        if len(self._buffers) > 1:
            ends = np.cumsum([buffer.size for buffer in self._buffers])[:-1]
            for buffer, piece in zip(self._buffers, np.split(self.array, ends), strict=True):
                buffer.array[...] = piece


def reduce(how: Reduction, root: int) -> Exchange:
    """Reduce on one rank; the others keep what they have."""

    def carry(given: Sequence[Given]) -> None:
        inputs: list[Any] = [each.inputs[0] for each in given]
        reduce_into("reduce", inputs, [inputs[root].array], how, root)

    return carry


def reduce_scatter(how: Reduction) -> Exchange:
    """Reduce as an all_reduce does, of which every rank keeps its piece."""

    def carry(given: Sequence[Given]) -> None:
        inputs: list[Any] = [each.inputs[0] for each in given]
        whole = np.empty_like(inputs[0].array)
        reduce_into("all_reduce", inputs, [whole], how)
        for each, piece in zip(given, np.split(whole, len(given)), strict=True):
            _output(each).array[...] = piece

    return carry


def reduce_scatter_list(how: Reduction) -> Exchange:
    """Reduce a tensor of each list on each rank."""

    def carry(given: Sequence[Given]) -> None:
        found = []
        for place, each in enumerate(given):
            inputs: list[Any] = [other.inputs[place] for other in given]
            found.append(np.empty_like(_output(each).array))
            reduce_into("reduce", inputs, [found[-1]], how, place)
        for each, piece in zip(given, found, strict=True):
            _output(each).array[...] = piece

    return carry


def broadcast(root: int) -> Exchange:
    """Copy the root's."""

    def carry(given: Sequence[Given]) -> None:
        source: Any = given[root].inputs[0]
        for place, each in enumerate(given):
            if place != root:
                _output(each).array[...] = source.array

    return carry


def all_gather(given: Sequence[Given]) -> None:
    """Copy all ranks' to all of them, into one tensor or into one for each rank."""
    inputs: list[Any] = [each.inputs[0] for each in given]
    for each in given:
        outputs: Sequence[Any] = each.outputs
        targets = [output.array for output in outputs]
        if len(outputs) == 1 and outputs[0].size != inputs[0].size:
            targets = _pieces(outputs[0], len(given))
        for target, source in zip(targets, inputs, strict=True):
            if not np.shares_memory(target, source.array):
                target[...] = source.array


def gather(root: int) -> Exchange:
    """Copy all ranks' to the root."""

    def carry(given: Sequence[Given]) -> None:
        for output, each in zip(given[root].outputs, given, strict=True):
            target: Any = output
            source: Any = each.inputs[0]
            target.array[...] = source.array

    return carry


def scatter(root: int) -> Exchange:
    """Copy a piece of the root's to each rank."""

    def carry(given: Sequence[Given]) -> None:
        for each, piece in zip(given, given[root].inputs, strict=True):
            source: Any = piece
            _output(each).array[...] = source.array

    return carry


def all_to_all(given: Sequence[Given]) -> None:
    """Copy a piece of every rank's to each rank."""
    sent: list[list[Any]] = [[_array(piece).copy() for piece in each.inputs] for each in given]
    for place, each in enumerate(given):
        for output, pieces in zip(each.outputs, sent, strict=True):
            _array(output)[...] = pieces[place]


def _array(buffer: Any) -> Any:
    return buffer.array


def _output(given: Given) -> Any:
    return given.outputs[0]


def rows(tensor: Any, sizes: Sequence[int] | None, n: int) -> list[Any]:
    """Cut a tensor's rows as `all_to_all_single` does.

    Raises
    ------
    ValueError
        If they cannot be cut so.
    """
    count = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if count % n:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")
        sizes = [count // n] * n
    if len(sizes) != n or sum(sizes) != count:
        raise ValueError("Split sizes doesn't match total dim 0 size")
    ends = np.cumsum([0, *sizes]).tolist()
    return [tensor.detach()[begin:end] for begin, end in pairwise(ends)]
