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
from simdp.workload.layers import Buffer, Parameter

Pieces = dict[str, slice]
"""Where pieces lie in parameters that are taken as flat, by name."""


class ReplicatedPart(NamedTuple):
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
        kept: ReplicatedPart,
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


Cut = list[list[tuple[str, slice, slice]]]
"""For each place the names, and where a piece lies in each, taken as flat, and in what travels."""


class RowPartition(Partition):
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
) -> RowPartition:
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
        return RowPartition(parameters, units, ranks, lengths)
    neighbours = ranks.reshape(-1, after_forward)
    parts = {name: length * places // after_forward for name, length in lengths.items()}
    return RowPartition(
        parameters, units, ranks, lengths, RowPartition(parameters, units, neighbours, parts)
    )


# Bucket -------------------------------------------------------------------------------------------

Group = str | tuple[int, ...] | None
"""Who takes part: the process groups of a name, some ranks, or all together."""


class Bucket(NamedTuple):
    """Gradients that travel together, as one flat buffer on every rank.

    Attributes
    ----------
    names : tuple of str
        Of the parameters in it, in order.
    num_elements : int
        Of all of them.
    dtype : str
        Of the buffer.
    nbytes : float
        Size of the gradients in it [bytes].
    room : float
        What the buffer takes for good beside the gradients [bytes].
    is_view : bool
        Whether gradients live in it for good.
    is_compressed : bool
        Whether gradients are rounded to another dtype as they come in.
    unit : int or None
        The unit of the strategy's partition that it holds the gradients of.
    of : str
        What tells it from others of the same parameters: a factor of a matrix, or what is left.
    """

    names: tuple[str, ...]
    num_elements: int
    dtype: str
    nbytes: float
    room: float = 0.0
    is_view: bool = False
    is_compressed: bool = False
    unit: int | None = None
    of: str = ""


class Factor(NamedTuple):
    """A gradient seen as a matrix, which travels as the product of two thin ones.

    Attributes
    ----------
    name : str
        The parameter.
    rows, columns : int
        Of the matrix.
    rank : int
        Columns of both thin matrices.
    """

    name: str
    rows: int
    columns: int
    rank: int


class Factoring(NamedTuple):
    """How a bucket is taken apart: matrices M become P = M Q and Q, the others stay as they are.

    Attributes
    ----------
    bucket, rest, p, q : Bucket
        The whole; what travels as it is; the left and the right factors of all matrices.
    factors : tuple of Factor
        The gradients that become two factors each.
    error_feedback, warm_start, epsilon, batched
        As in `simdp.strategies.comm_hooks.compression.PowerSGD`.
    label : str
        The bucket's name in the trace.
    random_seed : int
        As there; of the first Q.
    is_square : bool
        Whether the only matrix is the whole bucket, filled up with zeros until it is square.
    """

    bucket: Bucket
    rest: Bucket
    p: Bucket
    q: Bucket
    factors: tuple[Factor, ...]
    error_feedback: bool
    warm_start: bool
    epsilon: float
    batched: bool
    label: str
    random_seed: int = 0
    is_square: bool = False


class Selection(NamedTuple):
    """The entries of a bucket that a rank sends: those of largest magnitude, with their places.

    Attributes
    ----------
    bucket : Bucket
        The whole.
    num_entries : int
        How many of it are sent.
    entry_nbytes : int
        Size of a value and its place [bytes].
    divisor : float
        What values are divided by before they are sent.
    error_feedback : bool
        Whether what was not sent the last time is added first.
    label : str
        The bucket's name in the trace.
    """

    bucket: Bucket
    num_entries: int
    entry_nbytes: int
    divisor: float
    error_feedback: bool
    label: str


# Buckets ------------------------------------------------------------------------------------------

MiB = 2**20

FIRST_BUCKET_NBYTES = 1 * MiB
"""Limit of the first bucket when no cap is given (torch: kDefaultFirstBucketBytes)."""

BUCKET_CAP_NBYTES = 25 * MiB
"""Limit of the other buckets when no cap is given (torch: bucket_cap_mb)."""


REBUILT_SINCE = (1, 6)
"""torch that rebuilds buckets in the order in which gradients became ready (pull request 35137)."""

ONE_AT_FIRST_SINCE = (1, 12)
"""torch whose first iteration has one bucket with everything (pull request 72843)."""

EQUAL_CAPS_SINCE = (2, 5)
"""torch whose first bucket has the same cap as the others where one is given (pull request
121640)."""


class BucketRules(NamedTuple):
    """How a version of torch sorts gradients.

    Attributes
    ----------
    rebuilds : bool
        Whether buckets follow the order in which gradients became ready, from the second
        iteration on.
    one_at_first : bool
        Whether the first iteration has one bucket with everything.
    equal_caps : bool
        Whether a cap that is given holds for the first bucket too.
    """

    rebuilds: bool = True
    one_at_first: bool = True
    equal_caps: bool = True


def rules(version: str | None) -> BucketRules:
    """What a version of torch does, such as ``"1.4"`` or ``"2.1.0"``; None is the newest."""
    if version is None:
        return BucketRules()
    major, minor = map(int, version.split(".")[:2])
    here = (major, minor)
    return BucketRules(here >= REBUILT_SINCE, here >= ONE_AT_FIRST_SINCE, here >= EQUAL_CAPS_SINCE)


def limits(bucket_cap: float | None, equal_caps: bool = True) -> list[float]:
    """Limits of the first bucket, the second, ...; the last one holds for all that follow."""
    if bucket_cap is None:
        return [FIRST_BUCKET_NBYTES, BUCKET_CAP_NBYTES]
    return [bucket_cap] if equal_caps else [FIRST_BUCKET_NBYTES, bucket_cap]


def assign(
    parameters: Sequence[Parameter | Buffer], itemsize: int, caps: Sequence[float]
) -> list[list[str]]:
    """Sort tensors into buckets by torch's rule.

    A tensor is added to the open bucket, which closes as soon as it holds its limit or more: a
    bucket can exceed its limit by nearly one tensor, and no tensor is split.

    Parameters
    ----------
    parameters : sequence of Parameter or Buffer
        In the order in which they are to be sorted.
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
