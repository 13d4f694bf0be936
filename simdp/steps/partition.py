"""Ownership of parameters: shards, rows and buckets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.workload.layers.base import Buffer, Parameter

Pieces = dict[str, slice]
"""Positions of pieces in flattened parameters, by name."""


class ReplicatedPart(NamedTuple):
    """Tensors that every rank keeps whole, besides its own pieces."""

    weights: bool
    gradients: bool


class Partition:
    """Distribution of parameters over ranks.

    Whole tensors have owners; or each unit, its tensors joined, is cut into equal pieces: the rank
    at place r has the r-th. The last one is padded.

    Parameters
    ----------
    parameters : sequence of Parameter
        In torch's order of registration.
    units : sequence of sequence of str
        Names of parameters that are gathered and scattered together.
    ranks : ndarray, shape `(num_groups, group size)`, int64
        Each group has all pieces; ranks in one column have the same one.
    kept : ReplicatedPart
        Tensors that every rank keeps whole.
    owners : mapping of str to int, optional
        Place of each whole tensor; default: units are cut into pieces.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        units: Sequence[Sequence[str]],
        ranks: Ints,
        kept: ReplicatedPart,
        owners: Mapping[str, int] | None = None,
    ) -> None:
        self.units = [tuple(names) for names in units]
        self.ranks, self.kept, self.owners = ranks, kept, owners
        self.sizes = {parameter.name: parameter.num_elements for parameter in parameters}
        self.unit_of = {name: number for number, names in enumerate(units) for name in names}

    @property
    def num_places(self) -> int:
        """Number of pieces of every unit."""
        return int(self.ranks.shape[1])

    def unit_elements(self, unit: int) -> int:
        """Elements of a unit, without padding."""
        return self._unit_elements[unit]

    @cached_property
    def _unit_elements(self) -> list[int]:
        return [sum(self.sizes[name] for name in names) for names in self.units]

    def piece_elements(self, unit: int) -> int:
        """Elements of each piece of a unit, with padding."""
        return -(-self.unit_elements(unit) // self.num_places)

    @cached_property
    def pieces(self) -> list[Pieces]:
        """Pieces at each place."""
        if self.owners is not None:
            return [{name: slice(0, size) for name, size in mine.items()} for mine in self.owned]
        pieces: list[Pieces] = [{} for _ in range(self.num_places)]
        for unit in range(len(self.units)):
            for place, of_unit in enumerate(self.cut(unit)):
                pieces[place] |= {name: mine for name, mine, _ in of_unit}
        return pieces

    def cut(self, unit: int) -> list[list[tuple[str, slice, slice]]]:
        """Cut a unit: for each place the names, with slices of the tensor and of the piece."""
        length = self.piece_elements(unit)
        pieces: list[list[tuple[str, slice, slice]]] = [[] for _ in range(self.num_places)]
        begin = 0
        for name in self.units[unit]:
            end = begin + self.sizes[name]
            first, last = begin // max(length, 1), (end - 1) // max(length, 1)
            for place in range(first, last + 1) if end > begin else ():
                start, stop = max(begin, place * length), min(end, (place + 1) * length)
                inside = slice(start - place * length, stop - place * length)
                pieces[place].append((name, slice(start - begin, stop - begin), inside))
            begin = end
        return pieces

    @cached_property
    def owned(self) -> list[dict[str, int]]:
        """Elements of each parameter at each place, without padding.

        Neighbours with equal pieces share one mapping, so that a count over 16,384 places is
        computed once per mapping.
        """
        if self.owners is not None:
            owned: list[dict[str, int]] = [{} for _ in range(self.num_places)]
            for name, size in self.sizes.items():
                owned[self.owners[name]][name] = size
            return owned
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
        sizes: dict[str, int] = {}
        for unit, starts in enumerate(begins):
            length = self.piece_elements(unit)
            low, high = place * length, (place + 1) * length
            for i in range(max(bisect_right(starts, low) - 1, 0), len(starts) - 1):
                if starts[i] >= high:
                    break
                size = min(starts[i + 1], high) - max(starts[i], low)
                if size > 0:
                    sizes[self.units[unit][i]] = size
        return sizes

    def by_rank(self, of_places: Sequence[float]) -> Floats:
        """Map values of places to ranks, shape `(world_size,)`."""
        by_rank = np.empty(self.ranks.size)
        by_rank[self.ranks] = np.asarray(of_places, dtype=float)
        return by_rank


def least_loaded(groups: Sequence[Sequence[Parameter]], world_size: int) -> dict[str, int]:
    """Assign whole tensors to ranks as torch's ZeroRedundancyOptimizer does.

    In each group of parameters, the largest first (ties: in order), each to the rank with the
    fewest elements (ties: the lowest).

    Returns
    -------
    dict of str to int
        The owner of each parameter; those of a rank in order of assignment.

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


Cut = list[list[tuple[str, slice, slice]]]
"""For each place the names, with slices of the flattened tensor and of the place's piece."""


class RowPartition(Partition):
    """Distribution of parameters over ranks, each cut separately into pieces of equal size.

    The rank at place r has the r-th piece; the last ones may be short or empty. Buffers and memory
    of pieces include padding, which is neither kept nor updated.

    Parameters
    ----------
    parameters, units, ranks
        As of `Partition`; nothing is kept whole.
    lengths : mapping of str to int
        Elements of each piece of a parameter, with padding.
    after_forward : RowPartition, optional
        Distribution of units between forward and backward, if it differs.

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
        after_forward: RowPartition | None = None,
    ) -> None:
        super().__init__(parameters, units, ranks, ReplicatedPart(weights=False, gradients=False))
        self.lengths, self.after_forward = dict(lengths), after_forward

    def piece_elements(self, unit: int) -> int:
        return self.elements_of(self.units[unit])

    def elements_of(self, names: Sequence[str]) -> int:
        """Elements of a piece of some parameters, with padding."""
        return sum(self.lengths[name] for name in names)

    def cut(self, unit: int) -> Cut:
        return self.cut_of(self.units[unit])

    def cut_of(self, names: Sequence[str]) -> Cut:
        """Cut some parameters of a unit that share a buffer."""
        pieces: Cut = [[] for _ in range(self.num_places)]
        begin = 0
        for name in names:
            length, size = self.lengths[name], self.sizes[name]
            for place in range(-(-size // length) if length else 0):
                start, stop = place * length, min((place + 1) * length, size)
                inside = slice(begin, begin + stop - start)
                pieces[place].append((name, slice(start, stop), inside))
            begin += length
        return pieces

    @cached_property
    def pieces(self) -> list[Pieces]:
        pieces: list[Pieces] = [{} for _ in range(self.num_places)]
        for place, of_place in enumerate(self.cut_of(tuple(self.sizes))):
            pieces[place] = {name: mine for name, mine, _ in of_place}
        return pieces

    @cached_property
    def owned(self) -> list[dict[str, int]]:
        edges = {0, self.num_places}
        for name, size in self.sizes.items():
            whole = size // max(self.lengths[name], 1)
            edges |= {whole, whole + 1}
        owned: list[dict[str, int]] = []
        for first, stop in pairwise(sorted(e for e in edges if e <= self.num_places)):
            owned += [self._at_place(first)] * (stop - first)
        return owned

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
) -> RowPartition:
    """Distribute every parameter's rows as torch's ``fully_shard`` does.

    Parameters
    ----------
    parameters, units, ranks
        As of `RowPartition`.
    after_forward : int
        Number of neighbours that keep units together between forward and backward, each with an
        equal part of the padded elements; 0: all ranks that share them.
    """
    places = int(ranks.shape[1])
    rows = {p.name: -(-(p.shape[0] if p.shape else 1) // places) for p in parameters}
    lengths = {p.name: rows[p.name] * prod(p.shape[1:]) for p in parameters}
    if not after_forward:
        return RowPartition(parameters, units, ranks, lengths)
    neighbours = ranks.reshape(-1, after_forward)
    parts = {name: length * places // after_forward for name, length in lengths.items()}
    return RowPartition(
        parameters, units, ranks, lengths, RowPartition(parameters, units, neighbours, parts)
    )


# Bucket -------------------------------------------------------------------------------------------

Group = str | tuple[int, ...] | None
"""Participants: the process groups of a name, some ranks, or all ranks."""


class Bucket(NamedTuple):
    """Gradients in one flat buffer on every rank, sent together."""

    names: tuple[str, ...]
    """Of the parameters in it, in order."""
    num_elements: int
    """Of all of them."""
    dtype: str
    """Of the buffer."""
    nbytes: float
    """Size of the gradients in it [bytes]."""
    room: float = 0.0
    """Permanent memory of the buffer besides the gradients [bytes]."""
    is_view: bool = False
    """Whether gradients are views of it."""
    is_compressed: bool = False
    """Whether gradients are cast to another dtype in it."""
    unit: int | None = None
    """The unit of the strategy's partition with these gradients."""
    of: str = ""
    """Distinguishes buckets of the same parameters: a factor of matrices, or uncompressed
    tensors."""


class Factor(NamedTuple):
    """A gradient as a matrix, sent as the product of two thin ones with ``rank`` columns."""

    name: str
    rows: int
    columns: int
    rank: int


class Factoring(NamedTuple):
    """PowerSGD of a bucket: matrices M become P = M Q and Q, the other tensors are uncompressed."""

    bucket: Bucket
    """The whole; the uncompressed tensors; the left and the right factors of all matrices."""
    rest: Bucket
    """The whole; the uncompressed tensors; the left and the right factors of all matrices."""
    p: Bucket
    """The whole; the uncompressed tensors; the left and the right factors of all matrices."""
    q: Bucket
    """The whole; the uncompressed tensors; the left and the right factors of all matrices."""
    factors: tuple[Factor, ...]
    """The factored gradients."""
    error_feedback: bool
    """As in `simdp.strategies.comm_hooks.compression.PowerSGD`."""
    warm_start: bool
    """As in `simdp.strategies.comm_hooks.compression.PowerSGD`."""
    epsilon: float
    """As in `simdp.strategies.comm_hooks.compression.PowerSGD`."""
    batched: bool
    """As in `simdp.strategies.comm_hooks.compression.PowerSGD`."""
    label: str
    random_seed: int = 0
    """As in `simdp.strategies.comm_hooks.compression.PowerSGD`."""
    is_square: bool = False
    """Whether the whole bucket is one matrix, padded with zeros to a square."""


class Selection(NamedTuple):
    """Top-k of a bucket: entries of largest magnitude, with their indices.

    An entry has ``entry_nbytes`` with its index; values are divided by ``divisor``; with error
    feedback the unsent part of the last step is added first.
    """

    bucket: Bucket
    num_entries: int
    entry_nbytes: int
    divisor: float
    error_feedback: bool
    label: str


# BucketRules --------------------------------------------------------------------------------------

MiB = 2**20

FIRST_BUCKET_NBYTES = 1 * MiB
"""Limit of the first bucket when no cap is given (torch: kDefaultFirstBucketBytes)."""

BUCKET_CAP_NBYTES = 25 * MiB
"""Limit of the other buckets when no cap is given (torch: bucket_cap_mb)."""


REBUILT_SINCE = (1, 6)
"""First torch that rebuilds buckets in the order in which gradients became ready (pull 35137)."""

ONE_AT_FIRST_SINCE = (1, 12)
"""First torch with one bucket of all gradients in the first iteration (pull request 72843)."""

EQUAL_CAPS_SINCE = (2, 5)
"""First torch in which a given cap also applies to the first bucket (pull request 121640)."""


class BucketRules(NamedTuple):
    """Bucket assignment of a version of torch.

    ``rebuilds``: from the second iteration on, buckets follow the order in which gradients became
    ready; ``one_at_first``: the first iteration has one bucket; ``equal_caps``: a given cap also
    applies to the first bucket.
    """

    rebuilds: bool = True
    one_at_first: bool = True
    equal_caps: bool = True


def rules(version: str | None) -> BucketRules:
    """Rules of a version of torch, such as ``"1.4"`` or ``"2.1.0"``; None: the newest."""
    if version is None:
        return BucketRules()
    major, minor = map(int, version.split(".")[:2])
    here = (major, minor)
    return BucketRules(here >= REBUILT_SINCE, here >= ONE_AT_FIRST_SINCE, here >= EQUAL_CAPS_SINCE)


def limits(bucket_cap: float | None, equal_caps: bool = True) -> list[float]:
    """Limits of the first bucket, the second, ...; the last one applies to all later ones."""
    if bucket_cap is None:
        return [FIRST_BUCKET_NBYTES, BUCKET_CAP_NBYTES]
    return [bucket_cap] if equal_caps else [FIRST_BUCKET_NBYTES, bucket_cap]


def assign(
    parameters: Sequence[Parameter | Buffer], itemsize: int, caps: Sequence[float]
) -> list[list[str]]:
    """Sort tensors into buckets by torch's rule.

    A tensor is added to the open bucket, which closes once it reaches its limit: a bucket can
    exceed its limit by nearly one tensor, and no tensor is split.

    Parameters
    ----------
    parameters : sequence of Parameter or Buffer
        In the order of assignment.
    itemsize : int
        Bytes per element.
    caps : sequence of float
        From `limits` [bytes].

    Returns
    -------
    list of list of str
        The names in each bucket.

    References
    ----------
    torch, reducer.cpp, compute_bucket_assignment_by_size.
    """
    buckets: list[list[str]] = []
    open_names: list[str] = []
    held = 0
    for parameter in parameters:
        open_names.append(parameter.name)
        held += parameter.num_elements * itemsize
        if held >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(open_names)
            open_names, held = [], 0
    if open_names:
        buckets.append(open_names)
    return buckets
