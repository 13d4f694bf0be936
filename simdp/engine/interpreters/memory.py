"""Interprets operations as allocations: memory per rank over time.

Only the setup and the first steps are observed: all later steps equal the last of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.interpreters.footprints import (
    Amount,
    Footprint,
    OuterFootprint,
    footprint_of,
)
from simdp.engine.interpreters.records import Shapes
from simdp.results.memory import MEMORY_PARTS
from simdp.results.trace import SETUP
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.facts import Facts
from simdp.steps.ops import (
    AllGather,
    Concern,
    Free,
    GatherTogether,
    Handlers,
    Open,
    Release,
    Unshard,
)
from simdp.steps.partition import Bucket, Group, Partition, RowPartition
from simdp.steps.program import Program
from simdp.strategies.memory import sample_nbytes
from simdp.workload.lifetimes import Lifetimes, Stage, Tensor, lifetimes, recomputed
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import StepBatches

# TensorMemory -------------------------------------------------------------------------------------


class TensorMemory:
    """Counts bytes of tensors, once for equal micro-batches."""

    def __init__(self, footprint: Footprint) -> None:
        self._footprint = footprint
        self._known: dict[tuple[tuple[Tensor, ...], int | bytes], list[tuple[str, Amount]]] = {}

    def by_part(self, tensors: tuple[Tensor, ...], sizes: Ints) -> list[tuple[str, Amount]]:
        """Bytes of tensors by part, for each rank's number of samples."""
        if not tensors:
            return []
        key = (tensors, _key_of_sizes(sizes))  # equal blocks have equal tensors
        if key not in self._known:
            amounts = list[tuple[str, Amount]]()
            for part in dict.fromkeys(tensor.part for tensor in tensors):
                mine = [tensor for tensor in tensors if tensor.part == part]
                amounts.append((part, for_each(sizes, partial(self.room_of, mine))))
            self._known[key] = amounts
        return self._known[key]

    def room_of(self, tensors: Sequence[Tensor], num_samples: int) -> float:
        """Bytes of tensors on a rank with a number of samples."""
        if not num_samples:
            return 0.0
        return self._footprint.room(num_samples * t.per_sample + t.fixed for t in tensors)


def _key_of_sizes(sizes: Ints) -> int | bytes:
    """A small key of the ranks' numbers of samples."""
    are_equal = bool((sizes == sizes[0]).all())
    return int(sizes[0]) if are_equal else sha256(sizes.tobytes()).digest()


def for_each(sizes: Ints, count: Callable[[int], float]) -> Amount:
    """Apply a count to every rank's samples; one number if all ranks have the same."""
    if (sizes == sizes[0]).all():
        return count(int(sizes[0]))
    different, which = np.unique(sizes, return_inverse=True)
    return np.array([count(int(n)) for n in different])[which]


Taken = Iterator[tuple[str, Amount]]
"""Parts of memory and the bytes allocated of each; negative if freed."""


class UnitMemory:
    """Follows buffers and parameters of units.

    The parameters of a flat unit are views of its buffer; rows are copied out of it.
    """

    def __init__(self, facts: Facts, partition: Partition | None, footprint: Footprint) -> None:
        self._facts, self._dealt, self._footprint = facts, partition, footprint
        self._rows = partition if isinstance(partition, RowPartition) else None
        self._held: dict[int, list[float]] = {}
        self._parts: dict[int, float] = {}
        self._own: set[str] = set()

    @property
    def in_rows(self) -> bool:
        """Whether every parameter is sharded separately, by rows."""
        return self._rows is not None

    def open(self, op: Open) -> Taken:
        """Allocate the buffer of a unit's gradients."""
        yield "buckets", self._of_bucket(op.bucket)

    def release(self, op: Release) -> Taken:
        """Free the buffer of a unit's gradients."""
        yield "buckets", -self._of_bucket(op.bucket)

    def _of_bucket(self, bucket: Bucket) -> float:
        """Bytes of a unit's whole gradients, besides the kept pieces.

        Sums in another dtype than the weights' are converted, and occupy memory of their own.
        """
        if bucket.is_view or bucket.unit is None:
            return 0.0
        if self._rows is None:
            itemsize = numpy_dtype(bucket.dtype).itemsize
            return self._footprint.room([self._elements(bucket.unit) * itemsize])
        own = bucket.dtype == self._facts.workload.dtype
        sums = [] if own else [bucket.nbytes / self._rows.num_places]
        return self._footprint.room([bucket.nbytes, *sums])

    def _elements(self, unit: int) -> int:
        assert self._dealt is not None, "there are units"
        return self._dealt.piece_elements(unit) * self._dealt.num_places

    def all_gather(self, op: AllGather) -> Taken:
        """Allocate the buffer of a unit's parameters."""
        if op.unit is not None and self._dealt is not None and not self._dealt.kept.weights:
            nbytes = self._elements(op.unit) * self._facts.weight_itemsize
            self._held[op.unit] = [self._footprint.room([nbytes])]
            yield "gathered", self._held[op.unit][0]

    def gather_together(self, op: GatherTogether) -> Taken:
        """Allocate the buffers of several units' parameters."""
        for unit in op.units:
            nbytes = self._elements(unit) * self._facts.weight_itemsize
            self._held[unit] = [self._footprint.room([nbytes])]
            yield "gathered", self._held[unit][0]

    def unshard(self, op: Unshard) -> Taken:
        """Allocate parameters, and free the parts from which they were gathered."""
        sizes = (self._facts.sizes[name] for name in self._of(op.unit))
        nbytes = self._footprint.room(size * self._facts.weight_itemsize for size in sizes)
        self._held[op.unit].append(nbytes)
        yield "gathered", nbytes - self._parts.pop(op.unit, 0.0)

    def copied_out(self, op: Unshard) -> Taken:
        """Free the gathered buffer."""
        yield "gathered", -self._held[op.unit].pop(0)

    def free(self, op: Free) -> Taken:
        """Free all memory of a unit, except the part that is kept."""
        yield "gathered", -sum(self._held.pop(op.unit))
        if op.parts:
            nbytes = self._elements(op.unit) * self._facts.weight_itemsize / op.parts
            self._parts[op.unit] = self._footprint.room([nbytes])
            yield "gathered", self._parts[op.unit]

    def _of(self, unit: int) -> Iterable[str]:
        assert self._dealt is not None, "there are units"
        return self._dealt.units[unit]

    def summed(self, bucket: Bucket) -> Taken:
        """Free a unit's whole gradients, which are in their buffer; allocate the owners' rows."""
        for name in bucket.names:
            itemsize = self._facts.itemsize
            yield "gradients", -self._footprint.room([self._facts.sizes[name] * itemsize])
            if name not in self._own:
                self._own.add(name)
                yield "gradients", self._footprint.gradient(name)

    def forget_gradients(self) -> Taken:
        """Free the owners' rows after an update."""
        for name in self._facts.ready_order:
            if name in self._own:
                yield "gradients", -self._footprint.gradient(name)
        self._own.clear()


PLACES = {part: place for place, part in enumerate(MEMORY_PARTS)}


class MemoryLedger:
    """Running totals of every part of every rank's memory, and the breakdown of its peak.

    Ranks with equal histories share a column, so that a thousand equal ranks cost as much as one.
    Equal changes of all ranks are counted once, and added to the columns when ranks differ again.
    """

    def __init__(self, world_size: int) -> None:
        self._column = np.zeros(world_size, dtype=np.int64)
        self._now = np.zeros((len(MEMORY_PARTS), 1))
        self._total, self._peak = np.zeros(1), np.zeros(1)
        self._at_peak = np.zeros((len(MEMORY_PARTS), 1))
        self._begin_alike()

    def _begin_alike(self) -> None:
        self._alike, self._sum = [0.0] * len(MEMORY_PARTS), 0.0
        self._most, self._at_most = 0.0, self._alike.copy()

    @property
    def now(self) -> Floats:
        """Current memory of each rank by part [bytes], shape `(len(MEMORY_PARTS), world_size)`."""
        self._settle()
        return self._now[:, self._column]

    @property
    def peak(self) -> Floats:
        """Peak memory of each rank [bytes], shape `(world_size,)`."""
        self._settle()
        return self._peak[self._column]

    @property
    def at_peak(self) -> Floats:
        """Memory at the peak by part [bytes], shape `(len(MEMORY_PARTS), world_size)`."""
        self._settle()
        return self._at_peak[:, self._column]

    def hold(self, part: str, nbytes: float | Floats) -> None:
        """Allocate bytes of a part on every rank, or free them if negative."""
        if isinstance(nbytes, np.ndarray):
            if (nbytes != nbytes[0]).any():
                self._hold_by_column(PLACES[part], nbytes)
                return
            nbytes = nbytes.item(0)
        self._hold_alike(PLACES[part], nbytes)

    def _hold_alike(self, place: int, nbytes: float) -> None:
        self._alike[place] += nbytes
        self._sum += nbytes
        if self._sum > self._most:
            self._most, self._at_most = self._sum, self._alike.copy()

    def _hold_by_column(self, place: int, nbytes: Floats) -> None:
        self._settle()
        columns = self._by_column(nbytes)
        self._now[place] += columns
        self._total += columns
        self._note(self._total, self._now)

    def _settle(self) -> None:
        """Add the equal changes of all ranks to the columns."""
        self._note(self._total + self._most, self._now + np.array(self._at_most)[:, None])
        self._now += np.array(self._alike)[:, None]
        self._total += self._sum
        self._begin_alike()

    def _note(self, total: Floats, now: Floats) -> None:
        """Raise the peaks to the given totals."""
        higher = total > self._peak
        np.copyto(self._peak, total, where=higher)
        np.copyto(self._at_peak, now, where=higher)

    def _by_column(self, nbytes: Floats) -> Floats:
        """One number per column; split columns of ranks that differ from now on."""
        pairs = np.stack([self._column, nbytes])
        (columns, column), self._column = np.unique(pairs, axis=1, return_inverse=True)
        self._column = self._column.reshape(-1)
        old = columns.astype(np.int64)
        self._now, self._at_peak = self._now[:, old], self._at_peak[:, old]
        self._total, self._peak = self._total[old], self._peak[old]
        return np.asarray(column, dtype=float)


OBSERVED_STEPS = 2


class MemoryInterpreter:
    """Memory of every rank, operation by operation, in the first `OBSERVED_STEPS`."""

    _before = Handlers[Callable[[Any, Any], Taken]](Concern.BEFORE)
    _after = Handlers[Callable[[Any, Any], Taken]](Concern.AFTER)

    def __init__(self, scenario: Scenario, program: Program, shapes: Shapes) -> None:
        self._scenario, self._program, self._facts = scenario, program, program.facts
        self._world_size, self._shapes = scenario.cluster.world_size, shapes
        self.ledger = MemoryLedger(self._world_size)
        self.footprint = footprint_of(scenario, program.facts, program.partition)
        self._units = UnitMemory(program.facts, program.partition, self.footprint)
        self._one_process = scenario.strategy.in_one_process
        self._is_root = np.arange(self._world_size) == 0
        self._step = SETUP
        self._batches = StepBatches([], np.zeros((0, self._world_size), dtype=np.int64))
        self._has_gradient: set[str] = set()
        self._has_state = self._has_loss_of_pieces = False
        self._temporaries: Amount = 0.0
        self._passing = 0.0
        self._left: Stage | None = None
        self._borrowed: dict[str, Amount] = {}
        self._tensors = TensorMemory(self.footprint)

    def begin(self, step: int, batches: StepBatches) -> None:
        """Begin a step with its batches."""
        self._step, self._batches = step, batches

    @property
    def is_observed(self) -> bool:
        """Whether memory is followed in the current step."""
        return self._step < OBSERVED_STEPS

    def before(self, op: ops.Op) -> Taken:
        """Changes of memory as an operation begins."""
        handler = self._before[type(op)]
        return iter(()) if handler is None else self._noted(handler(self, op))

    def after(self, op: ops.Op) -> Taken:
        """Changes of memory as an operation ends."""
        handler = self._after[type(op)]
        return iter(()) if handler is None else self._noted(handler(self, op))

    def follow(self, op: ops.Op) -> None:
        """Apply an operation of an observed step to the ledger only."""
        hold = self.ledger.hold
        for handlers in (self._before, self._after):
            handler = handlers[type(op)]
            for part, nbytes in () if handler is None else handler(self, op):
                if nbytes.any() if isinstance(nbytes, np.ndarray) else nbytes:
                    hold(part, nbytes)

    def _noted(self, changes: Taken) -> Taken:
        """Apply changes to the ledger, and yield them."""
        for part, nbytes in changes if self.is_observed else ():
            if nbytes.any() if isinstance(nbytes, np.ndarray) else nbytes:
                self.ledger.hold(part, nbytes)
                yield part, nbytes

    def model(self) -> Taken:
        """Memory before the setup."""
        return self._noted(self._model())

    def buckets(self) -> Taken:
        """Memory allocated at the end of the setup: buckets, and gradients that stay."""
        return self._noted(self._buckets())

    def state(self) -> None:
        """Begin with an existing optimizer state, as from the second step on."""
        self.ledger.hold("optimizer_state", self.footprint.state())
        self._has_state = True

    def _model(self) -> Taken:
        yield "parameters", self.footprint.parameters()
        yield "buffers", self.footprint.buffers()
        yield "optimizer_state", self.footprint.master()

    def _buckets(self) -> Taken:
        if not self._facts.is_inference:
            yield "buckets", self._room([self._program.bucket_room])
        if self._program.gradients_stay:
            yield "gradients", self._gradients(self._facts.ready_order)

    # Forward and backward ------------------------------------------------------------------------

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        workload = self._scenario.workload
        return lifetimes(workload, recomputed(workload), not self._facts.is_inference)

    @_after(ops.Batch)
    def _batch(self, op: ops.Batch) -> Taken:
        if op.root is None:
            nbytes = self._inputs(op.micro)
            if self._facts.is_inference:
                yield from self._borrow("inputs", nbytes)
            else:
                yield "inputs", nbytes
        self._has_loss_of_pieces = False

    def _stage(self, op: ops.Forward) -> Stage:
        return (self._lifetimes.again if op.again else self._lifetimes.forward)[op.call]

    @_before(ops.Forward)
    def _before_forward(self, op: ops.Forward) -> Taken:
        self._has_loss_of_pieces |= op.call == len(self._facts.graph.calls)
        return self._take(self._stage(op), op.micro)

    @_after(ops.Forward)
    def _after_forward(self, op: ops.Forward) -> Taken:
        if op.call in self._facts.exchanges:
            self._left = self._stage(op)
        else:
            yield from self._give(self._stage(op), op.micro)

    @_after(ops.Exchange)
    def _exchange(self, op: ops.Exchange) -> Taken:
        """Free the memory of a call of forward once it has the other ranks' numbers."""
        if self._left is not None:
            yield from self._give(self._left, op.micro)
        self._left = None

    @_before(ops.Backward)
    def _before_backward(self, op: ops.Backward) -> Taken:
        stage = self._lifetimes.backward[op.call]
        if op.call == len(self._facts.graph.calls):
            yield from self._take(stage if self._begins_at_loss else self._arriving, op.micro)
            return
        yield from self._take(stage, op.micro)
        if self._one_process:
            made = self._of_gradients(self._facts.graph.ready_at[op.call])
            there = (self._sizes(op.micro) > 0).astype(float)
            yield from self._borrow("gradients", made * there)
        else:
            yield from self._take_gradients(self._facts.graph.learned(op.call))

    @_after(ops.Backward)
    def _after_backward(self, op: ops.Backward) -> Taken:
        if op.call < len(self._facts.graph.calls):
            yield "temporary", -self._passing
            self._passing = 0.0
        elif not self._begins_at_loss:
            return
        yield from self._give(self._lifetimes.backward[op.call], op.micro)

    @property
    def _begins_at_loss(self) -> bool:
        """Whether every rank's backward begins at its own loss, not at a received gradient."""
        return not self._one_process or (self._has_loss_of_pieces and self._shapes.has_loss)

    @cached_property
    def _arriving(self) -> Stage:
        """Gradients of the model's outputs, without the memory of a loss."""
        taken, given = self._lifetimes.backward[-1]
        return Stage(tuple(t for t in taken if all(t is not gone for gone in given)), ())

    def _take_gradients(self, names: Sequence[str]) -> Taken:
        """Allocate the gradients of a call's backward.

        Gradients that exist already are added to, from temporary memory.
        """
        stay = self._program.gradients_stay
        there = set(self._facts.ready_order) if stay else self._has_gradient
        again = [name for name in names if name in there]
        fresh = [name for name in names if name not in there]
        self._has_gradient.update(fresh)
        whole = self._units.in_rows
        yield "gradients", self._of_gradients(fresh) if whole else self._gradients(fresh)
        self._passing = self._of_gradients(again)
        yield "temporary", self._passing

    @_after(ops.MicrobatchDone)
    def _done(self, op: ops.MicrobatchDone) -> Taken:
        if self._facts.is_inference:
            yield from self._let_go(op.micro)
            return
        yield from self._give(self._lifetimes.end, op.micro)
        if not self._one_process:
            yield "inputs", -self._inputs(op.micro)

    def _let_go(self, micro: int) -> Taken:
        """Free the remaining memory of inference after its outputs."""
        yield from self._take(self._lifetimes.forward[-1], micro)
        yield from self._give(self._lifetimes.forward[-1], micro)
        yield from self._give_back("outputs")
        yield from self._give_back("inputs")

    def _take(self, stage: Stage, micro: int) -> Taken:
        return iter(self._tensors.by_part(stage.taken, self._sizes(micro)))

    def _give(self, stage: Stage, micro: int) -> Taken:
        return (
            (part, -nbytes)
            for part, nbytes in self._tensors.by_part(stage.given, self._sizes(micro))
        )

    # Updates -------------------------------------------------------------------------------------

    @_before(ops.Update)
    def _before_update(self, op: ops.Update) -> Taken:
        if not self._has_state:
            yield "optimizer_state", self.footprint.state()
        self._has_state = True
        self._temporaries = self.footprint.temporaries()
        yield "temporary", self._temporaries

    @_after(ops.Update)
    def _after_update(self, op: ops.Update) -> Taken:
        yield "temporary", -self._temporaries
        if self._units.in_rows:
            yield from self._units.forget_gradients()
        elif not self._program.gradients_stay:
            mine = [name for name in self._facts.ready_order if name in self._has_gradient]
            yield "gradients", -self._gradients(mine)
        self._has_gradient.clear()

    def _outer(self, optimizer: Optimizer) -> OuterFootprint:
        return OuterFootprint(self._scenario, self._facts, optimizer)

    @_before(ops.StartOuter)
    def _start_outer(self, op: ops.StartOuter) -> Taken:
        kept = self._outer(op.optimizer)
        yield "optimizer_state", kept.weights() + kept.state()

    @_before(ops.OuterUpdate)
    def _before_outer(self, op: ops.OuterUpdate) -> Taken:
        kept = self._outer(op.optimizer)
        yield "temporary", kept.weights() + kept.temporaries()

    @_after(ops.OuterUpdate)
    def _after_outer(self, op: ops.OuterUpdate) -> Taken:
        return ((part, -nbytes) for part, nbytes in self._before_outer(op))

    # Communication -------------------------------------------------------------------------------

    @_after(ops.Hold)
    def _hold(self, op: ops.Hold) -> Taken:
        yield op.part, op.nbytes

    @_before(ops.Open)
    def _open(self, op: ops.Open) -> Taken:
        return self._units.open(op)

    @_before(ops.Release)
    def _release(self, op: ops.Release) -> Taken:
        return self._units.release(op)

    @_before(ops.AllGather)
    def _all_gather(self, op: ops.AllGather) -> Taken:
        return self._units.all_gather(op)

    @_before(ops.GatherTogether)
    def _gather_together(self, op: ops.GatherTogether) -> Taken:
        return self._units.gather_together(op)

    @_before(ops.Unshard)
    def _unshard(self, op: ops.Unshard) -> Taken:
        return self._units.unshard(op)

    @_after(ops.Unshard)
    def _copied_out(self, op: ops.Unshard) -> Taken:
        return self._units.copied_out(op)

    @_after(ops.Free)
    def _free(self, op: ops.Free) -> Taken:
        return self._units.free(op)

    @_after(ops.ReduceScatter)
    def _reduce_scatter(self, op: ops.ReduceScatter) -> Taken:
        if self._units.in_rows:
            self._has_gradient.difference_update(op.bucket.names)
            yield from self._units.summed(op.bucket)

    # One process ---------------------------------------------------------------------------------

    def _borrow(self, part: str, nbytes: Amount) -> Taken:
        """Allocate memory that `_give_back` frees for the whole part."""
        self._borrowed[part] = self._borrowed.get(part, np.zeros(self._world_size)) + nbytes
        yield part, nbytes

    def _give_back(self, part: str) -> Taken:
        if part in self._borrowed:
            yield part, -self._borrowed.pop(part)

    def _among(self, group: Group) -> Floats:
        there = np.zeros(self._world_size)
        assert isinstance(group, tuple), "a group of one process lists its devices"
        there[list(group)] = 1.0
        return there

    @_before(ops.CopyOut)
    def _copy_out(self, op: ops.CopyOut) -> Taken:
        others = self._among(op.group) * ~self._is_root
        yield from self._borrow("gathered", self._room([op.nbytes]) * others)

    @_before(ops.Scatter)
    def _scatter(self, op: ops.Scatter) -> Taken:
        sizes, per_sample = self._sizes(op.micro), self._shapes.nbytes_of(op.name, op.micro)
        pieces = np.where(self._is_root, sizes.sum(), sizes)
        nbytes = for_each(pieces, lambda n: self._room([n * per_sample]))
        yield from self._borrow("inputs", nbytes)

    @_before(ops.Gather)
    def _before_gather(self, op: ops.Gather) -> Taken:
        if not op.losses:
            yield from self._borrow("outputs", self._outputs_at(op.root, op.micro))

    @_after(ops.Gather)
    def _after_gather(self, op: ops.Gather) -> Taken:
        if self._facts.is_inference:
            yield from self._let_go(op.micro)

    def _outputs_at(self, root: int, micro: int) -> Floats:
        whole = self._sizes(micro).sum() * self._shapes.output_nbytes(micro)
        return self._at(root, self._room([whole]))

    @_before(ops.LossOfAll)
    def _loss_of_all(self, op: ops.LossOfAll) -> Taken:
        num_samples = int(self._sizes(op.micro).sum())
        if not self._scenario.workload.model.timed:
            whole = self._room([num_samples * self._shapes.nbytes_of("y", op.micro)])
            yield from self._borrow("inputs", self._at(op.root, whole))
        if self._shapes.has_loss:
            taken, given = self._lifetimes.forward[-1]
            stays = [
                allocation for allocation in taken if all(allocation is not gone for gone in given)
            ]
            kept = self._tensors.room_of(stays, num_samples)
            yield from self._borrow("outputs", self._at(op.root, kept))

    @_before(ops.HandBack)
    def _hand_back(self, op: ops.HandBack) -> Taken:
        if not op.losses and self._shapes.has_loss:
            yield from self._borrow("outputs", self._outputs_at(op.root, op.micro))

    @_after(ops.HandBack)
    def _give_back_outputs(self, op: ops.HandBack) -> Taken:
        return self._give_back("outputs")

    @_before(ops.Reduce)
    def _before_reduce(self, op: ops.Reduce) -> Taken:
        yield "buckets", self._flat_copies(op)

    def _flat_copies(self, op: ops.Reduce) -> Floats:
        there = self._among(op.group)
        nbytes: Floats = self._room([op.bucket.nbytes]) * there * (there.sum() > 1)
        return nbytes

    @_after(ops.Reduce)
    def _after_reduce(self, op: ops.Reduce) -> Taken:
        yield "buckets", -self._flat_copies(op)
        if self._among(op.group).sum() > 1:
            learned = [name for name in op.bucket.names if name in set(self._facts.ready_order)]
            yield from self._borrow("gradients", self._is_root * self._of_gradients(learned))

    @_after(ops.TakeSums)
    def _take_sums(self, op: ops.TakeSums) -> Taken:
        names = self._facts.ready_order
        self._has_gradient.update(names)
        stays = self._is_root * self._of_gradients(names) * (op.micro == 0)
        yield "gradients", stays - self._borrowed.pop("gradients")
        yield from self._give_back("gathered")
        yield from self._give_back("inputs")

    # Counting ------------------------------------------------------------------------------------

    def _sizes(self, micro: int) -> Ints:
        return np.asarray(self._batches.sizes[micro])

    def _room(self, nbytes: Iterable[float]) -> float:
        return self.footprint.room(nbytes)

    def _at(self, rank: int, nbytes: float) -> Floats:
        nbytes_of_ranks = np.zeros(self._world_size)
        nbytes_of_ranks[rank] = nbytes
        return nbytes_of_ranks

    def _inputs(self, micro: int) -> Amount:
        """Bytes of the samples of a micro-step with their targets."""
        per_sample = sample_nbytes(self._scenario.workload)
        return for_each(self._sizes(micro), lambda n: self._room(n * size for size in per_sample))

    def _gradients(self, names: Iterable[str]) -> Amount:
        return sum((self.footprint.gradient(name) for name in names), 0.0)

    def _of_gradients(self, names: Iterable[str]) -> float:
        return self._room(self._facts.sizes[name] * self._facts.itemsize for name in names)
