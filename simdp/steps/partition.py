"""Partition: which rank keeps which part of the parameters, with their gradients and state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.workload.layers import Parameter

Pieces = dict[str, slice]
"""Where pieces lie in parameters that are taken as flat, by name."""


class Kept(NamedTuple):
    """What every rank keeps whole, beside its own pieces."""

    weights: bool
    gradients: bool


class Partition:
    """How parameters are dealt to ranks.

    Whole tensors go to owners; or each unit, its tensors one after the other, is cut into equal
    pieces, of which the rank at place r has the r-th. What is missing in the last one is padding.

    Parameters
    ----------
    parameters : sequence of Parameter
        In torch's order of registration.
    units : sequence of sequence of str
        Names of parameters that are gathered and scattered together.
    ranks : ndarray, shape `(num_groups, group size)`, int64
        Each group has all pieces; the ranks at one place of all groups have the same one.
    kept : Kept
        What is there on every rank.
    owners : mapping of str to int, optional
        The place at which a whole tensor is kept; left out, units are cut into pieces.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        units: Sequence[Sequence[str]],
        ranks: Ints,
        kept: Kept,
        owners: Mapping[str, int] | None = None,
    ) -> None:
        self.units = [tuple(names) for names in units]
        self.ranks, self.kept, self.owners = ranks, kept, owners
        self.sizes = {parameter.name: parameter.num_elements for parameter in parameters}
        self.unit_of = {name: number for number, names in enumerate(units) for name in names}

    @property
    def num_places(self) -> int:
        """Pieces that every unit is cut into."""
        return int(self.ranks.shape[1])

    def unit_elements(self, unit: int) -> int:
        """Elements of a unit, padding left out."""
        return self._unit_elements[unit]

    @cached_property
    def _unit_elements(self) -> list[int]:
        return [sum(self.sizes[name] for name in names) for names in self.units]

    def piece_elements(self, unit: int) -> int:
        """Elements of each piece of a unit, with padding."""
        return -(-self.unit_elements(unit) // self.num_places)

    @cached_property
    def pieces(self) -> list[Pieces]:
        """What is kept at each place."""
        if self.owners is not None:
            return [{name: slice(0, size) for name, size in mine.items()} for mine in self.owned]
        found: list[Pieces] = [{} for _ in range(self.num_places)]
        for unit in range(len(self.units)):
            for place, of_unit in enumerate(self.cut(unit)):
                found[place] |= {name: mine for name, mine, _ in of_unit}
        return found

    def cut(self, unit: int) -> list[list[tuple[str, slice, slice]]]:
        """Cut a unit: for each place the names, and where the piece lies in each, and in itself."""
        length = self.piece_elements(unit)
        found: list[list[tuple[str, slice, slice]]] = [[] for _ in range(self.num_places)]
        begin = 0
        for name in self.units[unit]:
            end = begin + self.sizes[name]
            first, last = begin // max(length, 1), (end - 1) // max(length, 1)
            for place in range(first, last + 1) if end > begin else ():
                start, stop = max(begin, place * length), min(end, (place + 1) * length)
                inside = slice(start - place * length, stop - place * length)
                found[place].append((name, slice(start - begin, stop - begin), inside))
            begin = end
        return found

    @cached_property
    def owned(self) -> list[dict[str, int]]:
        """Elements of each parameter at each place, padding left out.

        Neighbours that have the same share one mapping, so that who counts something for each of
        16,384 places may count it once for all that do.
        """
        if self.owners is not None:
            found: list[dict[str, int]] = [{} for _ in range(self.num_places)]
            for name, size in self.sizes.items():
                found[self.owners[name]][name] = size
            return found
        edges = {0, self.num_places}
        begins: list[list[int]] = []
        for unit, names in enumerate(self.units):
            length, begin = max(self.piece_elements(unit), 1), 0
            begins.append([0])
            for name in names:
                end = begin + self.sizes[name]
                for place in (begin // length, -(-end // length) - 1):
                    edges |= {place, place + 1}
                begin = end
                begins[-1].append(begin)
        kept: list[dict[str, int]] = []
        bounds = sorted(edge for edge in edges if 0 <= edge <= self.num_places)
        for first, stop in pairwise(bounds):
            kept += [self._at(first, begins)] * (stop - first)
        return kept

    def _at(self, place: int, begins: Sequence[Sequence[int]]) -> dict[str, int]:
        """Elements of each parameter at a place; ``begins`` of all tensors in their units."""
        found: dict[str, int] = {}
        for unit, starts in enumerate(begins):
            length = self.piece_elements(unit)
            low, high = place * length, (place + 1) * length
            for i in range(max(bisect_right(starts, low) - 1, 0), len(starts) - 1):
                if starts[i] >= high:
                    break
                size = min(starts[i + 1], high) - max(starts[i], low)
                if size > 0:
                    found[self.units[unit][i]] = size
        return found

    def by_rank(self, of_places: Sequence[float]) -> Floats:
        """Give every rank what belongs to its place, shape `(world_size,)`."""
        found = np.empty(self.ranks.size)
        found[self.ranks] = np.asarray(of_places, dtype=float)
        return found


def least_loaded(groups: Sequence[Sequence[Parameter]], world_size: int) -> dict[str, int]:
    """Deal whole tensors to ranks as torch's ZeroRedundancyOptimizer does.

    Of each group of parameters the largest first, those of equal size as they come, each to the
    rank that has least, the lowest of several.

    Returns
    -------
    dict of str to int
        The owner of each parameter; those of a rank in the order in which it got them.

    References
    ----------
    torch, zero_redundancy_optimizer.py, _partition_parameters.
    """
    totals, owners = [0] * world_size, dict[str, int]()
    for group in groups:
        for parameter in sorted(group, key=lambda p: p.num_elements, reverse=True):
            rank = totals.index(min(totals))
            owners[parameter.name] = rank
            totals[rank] += parameter.num_elements
    return owners
