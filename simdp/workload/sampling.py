"""Samplers, batches and packing: the samples that each rank trains on, step by step."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, PrivateAttr, Strict, model_validator

from simdp.arrays import Array, Bools, Floats, Ints
from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.rng import stream
from simdp.spec import Bool, Float, Int, Spec, problem
from simdp.workload.compute import Input
from simdp.workload.datasets.base import Dataset, most_taken
from simdp.workload.losses import Loss
from simdp.workload.models.base import Model

# Order of the samples -----------------------------------------------------------------------------

MAX_MEGABATCH = 50
MIN_MEGABATCHES = 4
"""Most steps sorted by length together, and least number of such groups in an
epoch, if it is long enough (transformers: LengthGroupedSampler)."""


class Permutation(Spec):
    """An epoch's order from an npz file."""

    path: str
    """A file with one array: shape `(num_samples,)` for every epoch the same, or `(num_epochs,
    num_samples)`, a row per epoch."""


class TorchShuffle(Spec):
    """Order of the samples in a script that shuffles with torch.

    ``distributed_sampler`` is randperm of the seed plus the epoch. The others have one generator,
    which continues from epoch to epoch. A loader's iterator draws a 64-bit number from it for its
    workers; a sampler then draws the order, and one unused randperm, from its own generator, or
    else only a seed from the global one. It is assumed that nothing else draws from that: a script
    also draws its first weights from it, unless it is seeded after them.

    References
    ----------
    torch.utils.data: distributed.py, sampler.py, dataloader.py.
    """

    torch: Literal[
        "distributed_sampler", "random_sampler", "data_loader", "data_loader_global_seed"
    ]
    """``DistributedSampler(shuffle=True, seed=seed)``; ``RandomSampler(generator=g)``;
    ``DataLoader(shuffle=True, generator=g)``; ``DataLoader(shuffle=True)`` after
    ``torch.manual_seed(seed)``."""
    seed: Annotated[int, Strict()] = Field(0, ge=-(2**63), lt=2**63)
    """Of the sampler or the generator, not the scenario's."""
    set_epoch: Bool = True
    """Of a distributed sampler: False for a script that never calls ``set_epoch``, so that every
    epoch has the order of the first."""

    @model_validator(mode="after")
    def _only_one_is_told_the_epoch(self) -> Self:
        if not self.set_epoch and self.torch != "distributed_sampler":
            raise problem(
                f"set_epoch is of a distributed_sampler, but torch is {self.torch}; leave it out."
            )
        return self

    def order(self, num_samples: int, epoch: int) -> Ints:
        """Order of an epoch's samples, shape `(num_samples,)`."""
        from simdp.rng import TorchGenerator  # rarely needed

        if self.torch == "distributed_sampler":
            return TorchGenerator(self.seed + epoch * self.set_epoch).randperm(num_samples)
        generator, loader = TorchGenerator(self.seed), self.torch != "random_sampler"
        if self.torch == "data_loader_global_seed":
            generator.skip(4 * epoch + 2)
            return TorchGenerator(generator.random64()).randperm(num_samples)
        in_vain = num_samples - 1
        generator.skip(epoch * (num_samples - 1 + in_vain) + 2 * loader * (epoch + 1))
        return generator.randperm(num_samples)


Shuffle = Bool | Permutation | TorchShuffle
"""Whether each epoch has a random order, or a specification of the order."""


def epoch_order(
    shuffle: bool | Permutation | TorchShuffle,
    num_samples: int,
    epoch: int,
    seed: int,
    base: Path,
) -> Ints:
    """Order of an epoch's samples, shape `(num_samples,)`."""
    if isinstance(shuffle, Permutation):
        return read_permutation(base / shuffle.path, num_samples, epoch)
    if isinstance(shuffle, TorchShuffle):
        return shuffle.order(num_samples, epoch)
    if shuffle:
        return stream(seed, "shuffle", epoch).permutation(num_samples)
    return np.arange(num_samples)


def without_indices(num_samples: int) -> Ints:
    """An order of samples that are alike, which takes no memory: each is sample 0."""
    return np.broadcast_to(np.int64(0), num_samples)


def grouped_by_length(order: Ints, lengths: Ints, samples_per_step: int) -> Ints:
    """Group samples of similar length, so that a step's ranks have equal work.

    The order is cut into megabatches of up to 50 steps, fewer if an epoch would have less than four
    of them, and each is sorted from long to short. Samples of equal length keep their order. This
    is the rule of Hugging Face's ``group_by_length`` (transformers, trainer_pt_utils.py,
    get_length_grouped_indices), but the longest sample of all is not moved to the front.

    ``lengths`` are those of all samples, ``samples_per_step`` counts all ranks.
    """
    megabatch = megabatch_steps(len(order), samples_per_step) * samples_per_step
    pieces = [order[begin : begin + megabatch] for begin in range(0, len(order), megabatch)]
    return np.concatenate([piece[np.argsort(-lengths[piece], kind="stable")] for piece in pieces])


def megabatch_steps(num_samples: int, samples_per_step: int) -> int:
    """Number of steps that `grouped_by_length` sorts together."""
    return max(1, min(num_samples // (samples_per_step * MIN_MEGABATCHES), MAX_MEGABATCH))


def read_permutation(path: Path, num_samples: int, epoch: int) -> Ints:
    """Read an epoch's order from a file; after its last epoch it repeats from the first.

    Raises ScenarioError if the file does not hold one array of permutations of the dataset.
    """
    stored = list(read_npz(path).values())
    rows = np.atleast_2d(stored[0]) if len(stored) == 1 else np.empty((0, 0))
    right = rows.ndim == 2 and rows.shape[1] == num_samples and len(rows) > 0
    if not right or (np.sort(rows, axis=1) != np.arange(num_samples)).any():
        raise ScenarioError(
            [
                f"{path}: is no order of the dataset; store one array of shape ({num_samples},) "
                f"or (epochs, {num_samples}), each row a permutation of 0 ... {num_samples - 1}."
            ]
        )
    order: Ints = rows[epoch % len(rows)].astype(np.int64)
    return order


class Packs(NamedTuple):
    """Samples joined into packs."""

    pieces: Ints
    """Numbers of tokens that attend to each other, pack by pack; shape `(num_pieces,)`."""
    first: Ints
    """Index of each pack's first piece; shape `(num_packs,)`."""

    @property
    def tokens(self) -> Ints:
        """Tokens of each pack, shape `(num_packs,)`."""
        return np.add.reduceat(self.pieces, self.first)


class Packing(Spec):
    """Joins samples into packs, once, before the first epoch; then packs are distributed.

    The lengths are those drawn from seed 0, so that the number of packs does not depend on the
    scenario's seed, which draws their order.

    References
    ----------
    TRL's ``pack_dataset``, trl/data_utils.py; Ding et al., "Fewer truncations improve language
    modeling", arXiv 2404.10830.
    """

    to: Int | None = Field(None, ge=1, le=10**8)
    """Most tokens of a pack; by default the model's maximum. Longer samples are cut."""
    strategy: Literal["bfd", "wrapped"] = "bfd"
    """Best fit decreasing: a sample goes into the fullest pack that has room for it, and attends
    only to itself, as in a flash kernel for variable lengths. Wrapped: samples are concatenated and
    cut wherever a pack is full; all tokens of a pack attend to each other, and none are lost."""

    def most(self, model: Model) -> int:
        """Most tokens of a pack."""
        return self.to or most_taken(model)

    def packs(self, lengths: Ints, most: int) -> Packs:
        """Join samples of these lengths into packs of at most ``most`` tokens."""
        return _packs(self.strategy, np.ascontiguousarray(lengths).tobytes(), most)


@lru_cache(maxsize=4)
def _packs(strategy: str, lengths: bytes, most: int) -> Packs:
    """As `Packing.packs`, cached."""
    samples = np.frombuffer(lengths, dtype=np.int64)
    if strategy == "wrapped":
        whole, rest = divmod(int(samples.sum()), most)
        pieces = np.array([most] * whole + [rest] * (rest > 0))
        return Packs(pieces, np.arange(len(pieces)))
    packs = best_fit_decreasing(np.minimum(samples, most), most)
    sizes = np.array([len(pack) for pack in packs])
    return Packs(np.array([length for pack in packs for length in pack]), sizes.cumsum() - sizes)


def best_fit_decreasing(lengths: Ints, most: int) -> list[list[int]]:
    """Lengths in each pack: the longest first, each into the pack with the least room for it."""
    packs, rooms = list[list[int]](), list[int]()  # rooms left in some pack, ascending
    having: dict[int, list[int]] = {}
    for length in sorted(lengths.tolist(), reverse=True):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            room, number = most, len(packs)
            packs.append([])
        else:
            room = rooms[place]
            number = having[room].pop()
            if not having[room]:
                del rooms[place], having[room]
        packs[number].append(length)
        left = room - length
        if left and left not in having:
            having[left] = []
            insort(rooms, left)
        if left:
            having[left].append(number)
    return packs


Role = Literal["counted", "silent", "late", "absent"]
"""Role of a rank in a step: its gradient counts; it adds zeros but works in full; it adds zeros and
stops when the slowest counted rank has finished; it is absent."""


@dataclass(frozen=True)
class Participants:
    """Role of every rank in a step; at least one counts."""

    roles: tuple[Role, ...]

    @classmethod
    def without(cls, world_size: int, role: Role, ranks: Sequence[int]) -> Participants:
        """Give some ranks another role; all others count."""
        there = set(ranks)
        return cls(tuple(role if r in there else "counted" for r in range(world_size)))

    @cached_property
    def counted(self) -> Bools:
        """Whether each rank's gradient counts, shape `(world_size,)`."""
        return np.array([role == "counted" for role in self.roles])

    @cached_property
    def late(self) -> Bools:
        """Whether each rank stops its work early, shape `(world_size,)`."""
        return np.array([role == "late" for role in self.roles])

    @cached_property
    def there(self) -> Bools:
        """Whether each rank computes and communicates, shape `(world_size,)`."""
        return np.array([role != "absent" for role in self.roles])

    @property
    def num_counted(self) -> int:
        """Number of ranks that count."""
        return int(self.counted.sum())

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that take part."""
        return tuple(np.flatnonzero(self.there).tolist())

    def seconds(self, whole: Floats) -> Floats:
        """Time that each rank works, of the full work's times, shape `(..., world_size)` [s]."""
        if self.late.any():
            slowest = whole[..., self.counted].max(axis=-1, keepdims=True)
            whole = np.where(self.late, np.minimum(whole, slowest), whole)
        return whole * self.there


# Batches ------------------------------------------------------------------------------------------

Incomplete = Literal["step", "micro-batch"] | None
"""Unit that is dropped at the end of an epoch if it is incomplete."""


def distributed_sampler(order: Ints, world_size: int, drop_last: bool) -> Ints:
    """Distribute an epoch's order over the ranks as torch's DistributedSampler does.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        The epoch's order of the samples.
    world_size : int
        Number of ranks, W.
    drop_last : bool
        Cut the tail that does not fill every rank, instead of padding from the head of the order.

    Returns
    -------
    ndarray, shape `(world_size, samples_per_rank)`
        Rank r takes positions r, r + W, r + 2 W, ...
    """
    n = len(order)
    if drop_last and n % world_size:
        per_rank = -(-(n - world_size) // world_size)
    else:
        per_rank = -(-n // world_size)
    total = max(per_rank, 0) * world_size
    if order.strides == (0,):  # of `without_indices`, which must not be copied
        return np.broadcast_to(order[:1], (world_size, max(per_rank, 0)))
    return np.resize(order, total).reshape(-1, world_size).T  # resize repeats from the head


@dataclass(frozen=True, eq=False)
class SampleParts(Sequence[Ints]):
    """Each rank's part of an order: ``parts[r]`` are the sample indices of rank r."""

    order: Ints
    """Sample indices; shape `(num_samples,)`."""
    begins: Ints
    """Begin and length of each rank's part of the order; shape `(world_size,)`."""
    sizes: Ints
    """Begin and length of each rank's part of the order; shape `(world_size,)`."""

    @classmethod
    def even(cls, order: Ints, world_size: int) -> SampleParts:
        """Cut an order into parts of equal length."""
        size = len(order) // world_size
        return cls(order, size * np.arange(world_size), np.full(world_size, size))

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, rank: Any) -> Any:
        begin = self.begins[rank]
        return self.order[begin : begin + self.sizes[rank]]

    def cut(self, begin: Ints | int, length: Ints | int) -> SampleParts:
        """A piece of each part, from a position in it; shorter where the part ends."""
        begin = np.minimum(begin, self.sizes)
        return SampleParts(self.order, self.begins + begin, np.minimum(length, self.sizes - begin))

    def only(self, wanted: Bools) -> SampleParts:
        """The parts of some ranks; the others are empty."""
        return SampleParts(self.order, self.begins, np.where(wanted, self.sizes, 0))

    def largest(self, values: Ints) -> Ints:
        """Largest value of each part's samples, shape `(world_size,)`; 0 for empty parts."""
        return self._reduced(values, np.maximum)

    def totals(self, values: Array) -> Array:
        """Sum of the values of each part's samples, shape `(world_size,)`."""
        return self._reduced(values, np.add)

    def _reduced(self, values: Array, how: np.ufunc) -> Array:
        reduced = np.zeros(len(self), dtype=values.dtype)
        there = np.flatnonzero(self.sizes)
        sizes = self.sizes[there]
        first = np.cumsum(sizes) - sizes
        place = np.repeat(self.begins[there] - first, sizes) + np.arange(sizes.sum())
        if len(there):
            reduced[there] = how.reduceat(values[self.order[place]], first)
        return reduced


def uneven_sampler(order: Ints, samples_per_rank: list[int]) -> SampleParts:
    """Distribute an epoch's order in contiguous parts of given sizes, one per rank."""
    sizes = np.array(samples_per_rank)
    return SampleParts(order, np.cumsum(sizes) - sizes, sizes)


def chunk_sizes(num_samples: int, parts: int) -> list[int]:
    """Sizes of torch.chunk's pieces, at most ``parts``: 30 over 8 is 4,4,4,4,4,4,4,2."""
    if num_samples == 0:
        return []
    size = -(-num_samples // parts)
    return [min(size, num_samples - begin) for begin in range(0, num_samples, size)]


class Start(NamedTuple):
    """Position at which a run continues: epoch from 0, samples of its order used, steps done."""

    epoch: int = 0
    num_samples: int = 0
    num_steps: int = 0

    def upcoming(self, num_samples: int, least: int) -> Start:
        """The same, or the start of the next epoch if less than ``least`` is left of this one."""
        if self.num_samples and num_samples - self.num_samples < least:
            return Start(self.epoch + 1, 0, self.num_steps)
        return self


START = Start()
"""The start of a run."""


@dataclass(frozen=True)
class StepBatches:
    """The samples of one optimizer step."""

    micro: list[SampleParts]
    """``micro[i][r]``: sample indices of rank r in micro-step i; possibly empty."""
    sizes: Ints
    """Their lengths; shape `(num_micro, world_size)`."""
    closes_epoch: bool = False
    """Whether this is the last step of an epoch, or of the run."""
    epoch: int = 0
    """Number of the epoch, from 0; always 0 in steps that represent others of their kind."""
    participants: Participants | None = None
    """Roles of the ranks; None if all count."""

    @classmethod
    def of(cls, micro: list[SampleParts]) -> StepBatches:
        """Count the samples of each rank in each micro-step."""
        return cls(micro, np.stack([parts.sizes for parts in micro]))

    def only(self, wanted: Bools) -> StepBatches:
        """The same step with samples only on some ranks."""
        micro = [parts.only(wanted) for parts in self.micro]
        return replace(self, micro=micro, sizes=np.where(wanted, self.sizes, 0))


def kinds_of(
    rest: Sequence[StepBatches], epoch: Sequence[StepBatches], num_steps: int
) -> list[StepBatches]:
    """Steps that differ in the ranks' numbers of samples or in closing an epoch, in order.

    ``rest`` are the steps left of the first epoch, ``each`` those of every later one; the run may
    end within an epoch.
    """
    kinds: dict[tuple[bytes, bool], StepBatches] = {}
    for number, batches in enumerate(rest if rest is not epoch else ()):
        closes = number == len(rest) - 1
        kinds[batches.sizes.tobytes(), closes] = replace(batches, closes_epoch=closes)
    last = (num_steps - len(rest) - 1) % max(len(epoch), 1)
    for number, batches in enumerate(epoch):
        for closes in sorted({number == len(epoch) - 1, *[True] * (number == last)}):
            key = (batches.sizes.tobytes(), closes)
            kinds.setdefault(key, replace(batches, closes_epoch=closes))
    return list(kinds.values())


def steps_from_microbatches(
    per_rank: Ints | SampleParts,
    microbatch: int,
    accumulate: int | list[int],
    drops: Incomplete | bool = None,
) -> Iterator[StepBatches]:
    """Cut each rank's samples of an epoch into micro-batches and these into steps.

    Parameters
    ----------
    per_rank : ndarray, shape `(world_size, samples_per_rank)`, or SampleParts
        Samples of each rank. A rank with fewer has no samples in the last steps.
    microbatch : int
        Samples per rank and micro-step.
    accumulate : int or list of int
        Micro-steps per step, or their sizes.
    drops : {"step", "micro-batch"}, bool or None
        Unit that is dropped at the end of the epoch if it is incomplete; True is a step.
    """
    sizes = accumulate if isinstance(accumulate, list) else [microbatch] * accumulate
    step = sum(sizes)
    if not isinstance(per_rank, SampleParts):
        per_rank = SampleParts.even(per_rank.reshape(-1), len(per_rank))
    begins = np.cumsum(sizes) - sizes
    for begin in range(0, int(per_rank.sizes.max()), step):
        parts = per_rank.cut(begin, step)
        if drops in ("step", True):
            parts = parts.only(parts.sizes == step)
        micro = [parts.cut(int(b), size) for b, size in zip(begins, sizes, strict=True)]
        if drops == "micro-batch":
            full = [part.sizes == size for part, size in zip(micro, sizes, strict=True)]
            micro = [part.only(there) for part, there in zip(micro, full, strict=True)]
        micro = [parts for parts in micro if parts.sizes.any()]
        if not micro:
            return
        yield StepBatches.of(micro)


def steps_from_global_batches(
    order: Ints,
    global_batch: int,
    world_size: int,
    accumulate: int | list[int],
    drop_last: bool,
    sizes: Callable[[int, int], Ints] | None = None,
) -> Iterator[StepBatches]:
    """Cut an epoch's order into global batches, each into contiguous torch.chunk pieces per rank.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        The epoch's order of the samples.
    global_batch : int
        Samples of all ranks per step.
    world_size : int
        Number of ranks.
    accumulate : int or list of int
        Number of micro-steps, into which torch.chunk cuts each rank's piece, or their sizes.
    drop_last : bool
        Leave out an incomplete batch at the end of the epoch.
    sizes : callable, optional
        Returns the samples of each rank, instead of torch.chunk, for a batch's number in the epoch
        and its number of samples.
    """
    for number, begin in enumerate(range(0, len(order), global_batch)):
        batch = order[begin : begin + global_batch]
        if len(batch) < global_batch and drop_last:
            return
        shard = -(-len(batch) // world_size)
        whole = np.full(world_size, len(batch))
        shards = SampleParts(batch, np.zeros_like(whole), whole).cut(
            shard * np.arange(world_size), shard
        )
        if sizes is not None:
            per_rank = sizes(number, len(batch))
            shards = SampleParts(batch, np.cumsum(per_rank) - per_rank, per_rank)
        if isinstance(accumulate, list):
            ends = np.cumsum(accumulate)
            micro = [
                shards.cut(int(end) - size, size)
                for end, size in zip(ends, accumulate, strict=True)
            ]
        else:
            piece = -(-shards.sizes // accumulate)  # as torch.chunk cuts each shard again
            micro = [shards.cut(i * piece, piece) for i in range(accumulate)]
        yield StepBatches.of([parts for parts in micro if parts.sizes.any()])


Share = Annotated[Float, Field(gt=0, le=1e9)]


class Rebalance(Spec):
    """Divides a global batch by the ranks' speeds.

    Each rank gets whole samples by its share: rounded down, then the largest remainders get one
    more. Losses must then be weighted by samples (``weight_by_shard``), so that the gradient is
    that of the whole batch, independent of the division.
    """

    every: Int | None = Field(None, ge=1, le=10**9)
    """Measure the ranks' samples per second of compute over this many steps, which set the division
    of the next ones. The first steps are divided by torch.chunk."""
    shares: Annotated[list[Share], Field(min_length=1)] | None = None
    """Instead, fixed proportions of the ranks."""

    _measured: tuple[tuple[float, ...], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _says_how(self) -> Rebalance:
        if (self.every is None) == (self.shares is None):
            raise problem(
                "give either every, a number of steps, to go by measured speeds, or shares, one "
                "number per rank."
            )
        return self

    @property
    def is_open(self) -> bool:
        """Whether speeds are not measured yet."""
        return self.every is not None and not self._measured

    def measured(self, shares: Sequence[Sequence[float]]) -> Self:
        """The same with the shares measured in each period of ``every`` steps."""
        rebalance = self.model_copy()
        rebalance._measured = tuple(tuple(of_rank) for of_rank in shares)
        return rebalance

    def each(self) -> list[Rebalance | None]:
        """The successive divisions, each with fixed shares; None for equal pieces."""
        known = dict.fromkeys(self._measured if self.shares is None else [tuple(self.shares)])
        even: list[Rebalance | None] = [None] if self.shares is None else []
        return even + [Rebalance(shares=list(shares)) for shares in known]

    def sizes(self, step: int, num_samples: int, world_size: int) -> Ints:
        """Samples of each rank, shape `(world_size,)`, in a step counted from 0."""
        shares = self._at(step)
        if shares is None:
            pieces = chunk_sizes(num_samples, world_size)
            return np.array(pieces + [0] * (world_size - len(pieces)))
        return by_shares(num_samples, shares)

    def _at(self, step: int) -> Sequence[float] | None:
        if self.every is None:
            return self.shares
        period = min(step // self.every, len(self._measured))
        return self._measured[period - 1] if period else None


def by_shares(num_samples: int, shares: Sequence[float]) -> Ints:
    """Distribute whole samples by shares: the largest remainders get the samples left."""
    exact = np.array(shares) / np.sum(shares) * num_samples
    sizes: Ints = np.floor(exact * (1 + 1e-12)).astype(np.int64)
    most = np.argsort(sizes - exact, kind="stable")[: num_samples - int(sizes.sum())]
    sizes[most] += 1
    return sizes


STEPS_WITHOUT_DATA = 2
"""Default length of a run without epochs: a warm-up step and a steady one."""


class DropLast(Spec):
    """Samples dropped at the end of an epoch, by two arguments of a script."""

    sampler: Bool = False
    """``DistributedSampler(drop_last=...)``: whether samples that do not fill every rank are
    dropped; false repeats samples of the head of the order instead."""
    loader: Bool = False
    """``DataLoader(drop_last=...)``: whether a rank's last micro-batch is dropped if it is
    incomplete. The rest of a step is a step of fewer micro-steps."""


class BatchSchedule(Spec):
    """Batches of a `Workload`, from its keys and its dataset."""

    if TYPE_CHECKING:  # keys of the workload
        model: Model
        dataset: Dataset
        loss: Loss
        microbatch: int | None
        global_batch: int | None
        grad_accum: int | list[int]
        samples_per_rank: list[int] | None
        rebalance: Rebalance | None
        group_by_length: bool
        packing: Packing | None
        shuffle: bool | Permutation | TorchShuffle
        drop_last: bool | DropLast
        input: Input | None
        epochs: int | None
        steps: int | None

    def samples_per_step(self, world_size: int) -> int:
        """Samples of all ranks in a full step."""
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.grad_accum, list):
            return sum(self.grad_accum) * world_size
        return (self.microbatch or 0) * self.grad_accum * world_size

    def least_left(self, world_size: int) -> int:
        """Number of samples below which the rest of an epoch is dropped."""
        drops = self.drop_last
        if not isinstance(drops, DropLast):
            return self.samples_per_step(world_size) if drops else 1
        sizes = self.grad_accum
        full = sizes[0] if isinstance(sizes, list) else self.microbatch or 0
        least = full if drops.loader else 1
        return least * world_size if drops.sampler else (least - 1) * world_size + 1

    def steps_of_epoch(self, order: Ints, world_size: int, first: int = 0) -> Iterator[StepBatches]:
        """Distribute an epoch's order over steps, from number ``first``, micro-steps and ranks."""
        accumulate, rule, drops = self.grad_accum, self.rebalance, self.drop_last
        if self.global_batch is not None:

            def by_speed(step: int, num_samples: int) -> Ints:
                assert rule is not None
                return rule.sizes(first + step, num_samples, world_size)

            sizes = None if rule is None else by_speed
            return steps_from_global_batches(
                order, self.global_batch, world_size, accumulate, bool(drops), sizes
            )
        if self.samples_per_rank is not None:
            per_rank: Ints | SampleParts = uneven_sampler(order, self.samples_per_rank)
        else:
            cuts = drops.sampler if isinstance(drops, DropLast) else drops
            per_rank = distributed_sampler(order, world_size, cuts)
        if isinstance(drops, DropLast):
            incomplete: Incomplete = "micro-batch" if drops.loader else None
        else:
            incomplete = "step" if drops else None
        return steps_from_microbatches(per_rank, self.microbatch or 0, accumulate, incomplete)

    def batches(
        self,
        world_size: int,
        seed: int,
        base: Path,
        start: Start = START,
        has_indices: bool = True,
    ) -> Iterator[StepBatches]:
        """Each rank's samples, step by step, for the run's steps or epochs.

        Parameters
        ----------
        world_size : int
            Number of ranks.
        seed : int
            Of the scenario; it draws each epoch's order if ``shuffle`` is true.
        base : Path
            Folder of relative paths.
        start : Start
            Position to continue from: the rest of that epoch's order is distributed as by torch's
            elastic sampler.
        has_indices : bool
            False where only numbers of samples matter: each is then sample 0, so that no order of
            the dataset is held.
        """
        if not self.dataset.has_samples:
            yield from islice(self._full_steps(world_size), start.num_steps, None)
            return
        num_samples = self.num_samples(base)
        lengths = self.lengths(seed, base) if self.group_by_length else {}
        epoch, used, done = start.upcoming(num_samples, self.least_left(world_size))
        while self.steps is not None or epoch < (self.epochs or 1):
            order = without_indices(num_samples)
            if has_indices or isinstance(self.shuffle, Permutation):  # a file is always checked
                order = epoch_order(self.shuffle, num_samples, epoch, seed, base)
            if lengths:
                longest = np.maximum.reduce(list(lengths.values()))
                order = grouped_by_length(order, longest, self.samples_per_step(world_size))
            waiting = None
            for batches in self.steps_of_epoch(order[used:], world_size, done):
                if waiting is not None:
                    yield waiting
                waiting, done = replace(batches, epoch=epoch), done + 1
                if done == self.steps:
                    break
            assert waiting is not None, "an epoch without a step; the scenario's checks refuse it"
            yield replace(waiting, closes_epoch=True)
            if done == self.steps:
                return
            epoch, used = epoch + 1, 0

    def _full_steps(self, world_size: int) -> Iterator[StepBatches]:
        """Steps without a dataset: each is full, with arbitrary indices."""
        (full,) = self._one_without_data(world_size)
        num_steps = self.steps or self._steps_without_data
        for step in range(num_steps):
            if self.rebalance is not None:
                (full,) = self._one_without_data(world_size, step)
            yield replace(full, closes_epoch=step == num_steps - 1)

    def _one_without_data(self, world_size: int, step: int = 0) -> Iterator[StepBatches]:
        zeros = np.broadcast_to(np.int64(0), self.samples_per_step(world_size))
        if self.global_batch is not None:
            return self.steps_of_epoch(zeros, world_size, step)
        parts = SampleParts.even(zeros, world_size)
        return steps_from_microbatches(parts, self.microbatch or 0, self.grad_accum, False)

    @property
    def _steps_without_data(self) -> int:
        """Default number of steps: enough for all workers, which start together, to take a turn."""
        return max(STEPS_WITHOUT_DATA, 1 + (self.input.workers if self.input else 0))

    def num_samples(self, base: Path) -> int:
        """Samples of an epoch, or packs; 0 without a dataset."""
        packs = self.packs(base)
        return self.dataset.length(base) if packs is None else len(packs.first)

    def lengths(self, seed: int, base: Path) -> dict[str, Ints]:
        """Length of every sample, or pack, without padding, by input; empty without padding."""
        packs = self.packs(base)
        if packs is not None:
            return {"x": packs.tokens}
        return self.dataset.lengths_of(self.model, self.loss, seed, base)

    def tokens_per_sample(self, seed: int, base: Path) -> float | None:
        """Mean tokens of a sample, or pack, without padding; None if the model takes none."""
        first = next(iter(self.model.graph.inputs), None)  # none where only times are known
        if first is None or self.model.num_tokens(first) is None:
            return None
        lengths, shape = self.lengths(seed, base).get(first), self.model.input_shapes()[first]
        return float(lengths.mean()) if lengths is not None else float((shape or (1,))[0])

    def packs(self, base: Path) -> Packs | None:
        """The packs of the dataset's samples, or None without packing."""
        if self.packing is None:
            return None
        lengths = self.dataset.drawn_lengths(self.model, 0, base)
        if lengths is None:  # the scenario's checks refuse this
            return None
        return self.packing.packs(lengths, self.packing.most(self.model))

    def kinds_of_steps(
        self, world_size: int, num_samples: int, start: Start = START
    ) -> tuple[list[StepBatches], int]:
        """Kinds of steps, which differ in more than indices of samples, and the number of steps.

        ``num_samples`` is that of the dataset, if any; the others as in `batches`. The first step's
        kind comes first.
        """
        if self.rebalance is not None and self.rebalance.every is not None:
            one_by_one = [
                self.model_copy(update={"rebalance": rule}).kinds_of_steps(
                    world_size, num_samples, start
                )
                for rule in self.rebalance.each()
            ]
            return [kind for kinds, _ in one_by_one for kind in kinds], one_by_one[0][1]
        if not self.dataset.has_samples:
            num_steps = self.steps or self._steps_without_data
            (full,) = self._one_without_data(world_size)
            closing = replace(full, closes_epoch=True)
            return ([full, closing] if num_steps > 1 else [closing]), num_steps

        def epoch(num_samples: int) -> list[StepBatches]:
            order = without_indices(num_samples)
            return list(islice(self.steps_of_epoch(order, world_size), self.steps))

        start = start.upcoming(num_samples, self.least_left(world_size))
        rest = epoch(num_samples - start.num_samples)
        full_epoch = epoch(num_samples) if start.num_samples else rest
        epochs = (self.epochs or 1) - start.epoch - 1
        num_steps = self.steps or start.num_steps + len(rest) + epochs * len(full_epoch)
        return kinds_of(rest, full_epoch, num_steps - start.num_steps), num_steps

    def num_epochs(self, world_size: int, base: Path) -> int:
        """Number of epochs that a run begins; one without a dataset."""
        if self.steps is None or not self.dataset.has_samples:
            return self.epochs or 1
        order = without_indices(self.num_samples(base))
        return -(-self.steps // max(sum(1 for _ in self.steps_of_epoch(order, world_size)), 1))

    def num_steps(self, world_size: int, base: Path, start: Start = START) -> int:
        """Number of steps of a run, including those before the start."""
        if self.steps is not None:
            return self.steps
        return self.kinds_of_steps(world_size, self.num_samples(base), start)[1]
