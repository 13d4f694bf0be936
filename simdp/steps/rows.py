"""Rows: a partition that cuts every parameter by itself, along its first dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod

from simdp.arrays import Ints
from simdp.steps.partition import Kept, Partition, Pieces
from simdp.workload.layers import Parameter

Cut = list[list[tuple[str, slice, slice]]]
"""For each place the names, and where a piece lies in each, taken as flat, and in what travels."""


class Rows(Partition):
    """How parameters are dealt to ranks, each cut by itself into pieces of equal size.

    The rank at place r has the r-th piece; the last ones may be short, or have nothing. What is
    missing travels as padding, and takes room where pieces lie, but is neither kept nor updated.

    Parameters
    ----------
    parameters, units, ranks
        As of `Partition`; nothing is kept whole.
    lengths : mapping of str to int
        Elements of each piece of a parameter, with padding.
    after_forward : Rows, optional
        How units are dealt between forward and backward, where that is not the same.

    References
    ----------
    torch, distributed/fsdp/_fully_shard/_fsdp_param.py: torch.chunk along dimension 0.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        units: Sequence[Sequence[str]],
        ranks: Ints,
        lengths: Mapping[str, int],
        after_forward: Rows | None = None,
    ) -> None:
        super().__init__(parameters, units, ranks, Kept(weights=False, gradients=False))
        self.lengths, self.after_forward = dict(lengths), after_forward

    def piece_elements(self, unit: int) -> int:
        return self.elements_of(self.units[unit])

    def elements_of(self, names: Sequence[str]) -> int:
        """Elements of a piece of some parameters, with padding."""
        return sum(self.lengths[name] for name in names)

    def cut(self, unit: int) -> Cut:
        return self.cut_of(self.units[unit])

    def cut_of(self, names: Sequence[str]) -> Cut:
        """Cut some parameters of a unit that travel together."""
        found: Cut = [[] for _ in range(self.num_places)]
        begin = 0
        for name in names:
            length, size = self.lengths[name], self.sizes[name]
            for place in range(-(-size // length) if length else 0):
                start, stop = place * length, min((place + 1) * length, size)
                inside = slice(begin, begin + stop - start)
                found[place].append((name, slice(start, stop), inside))
            begin += length
        return found

    @cached_property
    def pieces(self) -> list[Pieces]:
        found: list[Pieces] = [{} for _ in range(self.num_places)]
        for place, of_place in enumerate(self.cut_of(tuple(self.sizes))):
            found[place] = {name: mine for name, mine, _ in of_place}
        return found

    @cached_property
    def owned(self) -> list[dict[str, int]]:
        edges = {0, self.num_places}
        for name, size in self.sizes.items():
            whole = size // max(self.lengths[name], 1)
            edges |= {whole, whole + 1}
        found: list[dict[str, int]] = []
        for first, stop in pairwise(sorted(e for e in edges if e <= self.num_places)):
            found += [self._at_place(first)] * (stop - first)
        return found

    def _at_place(self, place: int) -> dict[str, int]:
        here = {
            name: min(size - place * self.lengths[name], self.lengths[name])
            for name, size in self.sizes.items()
        }
        return {name: elements for name, elements in here.items() if elements > 0}


def by_rows(
    parameters: Sequence[Parameter],
    units: Sequence[Sequence[str]],
    ranks: Ints,
    after_forward: int = 0,
) -> Rows:
    """Deal every parameter's rows as torch's ``fully_shard`` does.

    Parameters
    ----------
    parameters, units, ranks
        As of `Rows`.
    after_forward : int
        Ranks that keep units together between forward and backward, where these are fewer than
        those that share them: neighbours, each with an equal part of the padded elements.
    """
    places = int(ranks.shape[1])
    rows = {p.name: -(-(p.shape[0] if p.shape else 1) // places) for p in parameters}
    lengths = {p.name: rows[p.name] * prod(p.shape[1:]) for p in parameters}
    if not after_forward:
        return Rows(parameters, units, ranks, lengths)
    neighbours = ranks.reshape(-1, after_forward)
    parts = {name: length * places // after_forward for name, length in lengths.items()}
    return Rows(parameters, units, ranks, lengths, Rows(parameters, units, neighbours, parts))
