"""Costs: what operations cost, as work, collectives and waiting for the clocks to play."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.collectives import Plan as Transfers
from simdp.collectives.copies import copies_from, copies_to
from simdp.engine.compression.kernels import (
    Kernel,
    entrywise,
    orthonormal,
    product,
    seconds,
    selection,
)
from simdp.engine.compute import Times
from simdp.engine.compute.call_times import call_kernels
from simdp.engine.compute.columns import Columns
from simdp.engine.compute.roofline import Roofline
from simdp.engine.launcher import Launcher
from simdp.engine.ops import Feed, Meet, Stretch, Wait, Work
from simdp.engine.ops import Op as Played
from simdp.engine.pipeline import Pipeline
from simdp.engine.readers.footprints import Amount, Footprint
from simdp.engine.readers.records import Stepping
from simdp.engine.readers.shapes import Shapes
from simdp.engine.rehearsal import Piece, Rehearsals, Rehearsed, piece
from simdp.engine.samples import Samples
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.steps import ops
from simdp.steps.program import Plan, Program
from simdp.workload.sampling import StepBatches

Cost = Generator[Played, None, None]
"""What the clocks must play."""


WORK_ALONE = frozenset(
    {ops.Forward, ops.Backward, ops.Tail, ops.Copy, ops.Fill, ops.Take, ops.Split, ops.Join}
    | {ops.Select, ops.AddSelected, ops.Done, ops.Hold, ops.Scale, ops.Open, ops.Release, ops.Free}
)
"""Operations that cost work at most, the same whenever they come."""


class Costs:
    """What every operation costs on each rank.

    Parameters
    ----------
    scenario : Scenario
        One point.
    program : Program
        What it reads.
    slowdown : Slowdown
        The cluster's stragglers.
    launcher : Launcher
        Starts its collectives.
    times : Times
        How long compute takes.
    roofline : Roofline
        The devices.
    samples : Samples
        The data.
    footprint : Footprint
        What an update works on.
    shapes : Shapes
        Of the samples.

    Attributes
    ----------
    rehearsals : Rehearsals
        What is known of steps, of this run or of one that differs in its network.
    """

    def __init__(
        self,
        scenario: Scenario,
        program: Program,
        slowdown: Slowdown,
        launcher: Launcher,
        times: Times,
        roofline: Roofline,
        samples: Samples,
        footprint: Footprint,
        shapes: Shapes,
    ) -> None:
        workload, cluster = scenario.workload, scenario.cluster
        self._workload, self._facts, self._slowdown = workload, program.facts, slowdown
        self._launcher, self._times, self._roofline = launcher, times, roofline
        self._samples, self._footprint, self._shapes = samples, footprint, shapes
        self._one_process = scenario.strategy.one_process
        n = self._world_size = cluster.world_size
        self._num_calls = len(program.facts.graph.calls)
        self._overheads = cluster.overheads
        self._per_launch = np.full(n, cluster.overheads.launch)
        self._per_hook = np.full(n, cluster.overheads.hook)
        self._per_step = np.full(n, workload.host.step)
        self._pipeline, self._num_fed = None, 0
        if workload.input:
            # Batches of one process go to one device.
            sharers = 1 if program.scatters else cluster.local_size
            self._pipeline = Pipeline(workload.input, n, sharers)
        self.rehearsals = Rehearsals()
        self._step = SETUP
        self._batches = StepBatches([], np.zeros((0, n), dtype=np.int64))
        self._factors, self._owed = np.ones(n), np.zeros(n)
        self._tags: dict[int, int] = {}
        self._columns: dict[tuple[str, int], Columns] = {}
        self._has_loss_of_pieces = False
        self._of: dict[type[Any], Callable[[Any], Cost]] = {
            ops.Batch: self._batch,
            ops.Forward: self._forward,
            ops.Backward: self._backward,
            ops.Tail: self._tail,
            ops.Exchange: self._exchange,
            ops.Copy: self._copy,
            ops.Fill: self._fill,
            ops.Take: self._take,
            ops.AllReduce: self._all_reduce,
            ops.ReduceScatter: self._reduce_scatter,
            ops.AllGather: self._all_gather,
            ops.Broadcast: self._broadcast,
            ops.CopyOut: self._copy_out,
            ops.Average: self._average,
            ops.Wait: self._wait,
            ops.Meet: self._meet,
            ops.Split: self._split,
            ops.Join: self._join,
            ops.Select: self._select,
            ops.AddSelected: self._add_selected,
            ops.Scatter: self._scatter,
            ops.Gather: self._gather,
            ops.LossOfAll: self._loss_of_all,
            ops.HandBack: self._hand_back,
            ops.Reduce: self._reduce,
        }

    def begin(self, step: int, shown: int, batches: StepBatches) -> Cost:
        """Begin a step, with who trains on what; its collectives are numbered anew.

        The clocks are told ``shown`` as its number: steps before their first one are not theirs.
        """
        self._step, self._batches = shown, batches
        self._factors, self._owed = self._slowdown.factors(step), self._slowdown.lost(step)
        self._tags.clear()
        self._columns.clear()
        if self._workload.host.step:
            yield self._host("step", self._per_step)

    def read(self, op: ops.Op, stepping: Stepping | None) -> Cost:
        """What an operation costs; of an update it matters what that came to."""
        if stepping is not None:
            return self._update(stepping)
        cost = self._of.get(type(op))
        return iter(()) if cost is None else cost(op)  # type: ignore[return-value]

    def rehearsed(self, plan: Plan) -> Rehearsed:
        """A plan of the current step with its work in pieces, from before or read now."""
        known, micro = self.rehearsals, self._batches.micro
        shapes = [self._samples.shapes(parts) for parts in micro]
        key = (
            plan,
            self._batches.sizes.tobytes(),
            tuple((tuple(found), which.tobytes()) for found, which in shapes),
        )
        found = known.find(key)
        if found is None:
            found = self._rehearse(plan)
            known.keep(key, found)
        return found

    def _rehearse(self, plan: Plan) -> Rehearsed:
        factors, owed = self._factors, self._owed
        self._factors, self._owed = np.ones(self._world_size), np.zeros(self._world_size)
        found: Rehearsed = []
        works: list[Work] = []
        for op in (*plan, None):
            cost = list(self.read(op, None)) if op is not None and type(op) in WORK_ALONE else None
            if cost is not None:
                works += cost  # type: ignore[arg-type]  # these are work alone
                continue
            if works:
                found.append(piece(works))
                works = []
            if op is not None:
                found.append(op)
        self._factors, self._owed = factors, owed
        return found

    def charged(self, part: Piece) -> Stretch:
        """What a piece of work takes in the current step."""
        stretch = part.charged(self._step, self._factors, self._owed)
        if part.first >= 0:
            self._owed = np.zeros(self._world_size)
        return stretch

    # Compute -------------------------------------------------------------------------------------

    def _seconds(self, activity: str, micro: int) -> Columns:
        if (activity, micro) not in self._columns:
            parts = self._batches.micro[micro]
            found = self._times.seconds(activity, parts.sizes, *self._samples.shapes(parts))
            self._columns[activity, micro] = found
        return self._columns[activity, micro]

    def _work(self, activity: str, number: int, times: Columns) -> Work:
        seconds = times.of(number) * self._factors
        if self._owed.any():  # pauses come with the first work of a step
            seconds, self._owed = seconds + self._owed, np.zeros(self._world_size)
        return Work(self._step, activity, self._times.names[number], seconds)

    def _host(self, name: str, seconds: Floats) -> Work:
        return Work(self._step, "host", name, seconds * self._factors)

    def _feed(self, samples: Floats) -> Cost:
        if self._pipeline:
            yield Feed(self._step, self._num_fed, samples, self._pipeline)
            self._num_fed += 1

    def _batch(self, op: ops.Batch) -> Cost:
        self._has_loss_of_pieces = False
        sizes = self._batches.sizes[op.micro].astype(float)
        if op.root is not None:
            sizes = (np.arange(self._world_size) == op.root) * float(sizes.sum())
        return self._feed(sizes)

    def _has_work(self, call: int) -> bool:
        return call < self._num_calls or self._shapes.has_loss

    def _forward(self, op: ops.Forward) -> Cost:
        if not self._has_work(op.call):
            return
        work = self._work("forward", op.call, self._seconds("forward", op.micro))
        if op.gil:
            there = self._batches.sizes[op.micro] > 0
            held_up = op.gil * max(int(there.sum()) - 1, 0) * self._roofline.launch * there
            seconds = work.seconds + self._num_launches[op.call] * held_up * self._factors
            work = work._replace(seconds=seconds)
        self._has_loss_of_pieces |= op.call == self._num_calls
        yield work

    @cached_property
    def _num_launches(self) -> list[int]:
        """Kernels that forward launches for each call, and for the loss."""
        if self._workload.model.timed:  # its times hold them
            return [0] * (self._num_calls + 1)
        shapes = self._workload.model.known_shapes()
        return [len(kernels) for kernels in call_kernels(self._workload, "forward", shapes)]

    def _backward(self, op: ops.Backward) -> Cost:
        begins = not self._one_process or self._has_loss_of_pieces
        if op.call < self._num_calls or (self._shapes.has_loss and begins):
            yield self._work("backward", op.call, self._seconds("backward", op.micro))

    def _tail(self, op: ops.Tail) -> Cost:
        yield self._work("backward", op.call, self._seconds("tail", op.micro))

    def _update(self, stepping: Stepping) -> Cost:
        scaled, moved, launches = self.rehearsals.update(self._per_update)
        if np.any(scaled):
            yield self._update_work("gradients", scaled, stepping.active)
        if np.any(moved) and stepping.taken.any():
            yield self._update_work("optimizer", moved, stepping.taken, launches)

    def _per_update(self) -> tuple[Amount, Amount, Amount]:
        """Bytes that scaling and the optimizer move, and kernels that the optimizer launches."""
        kept = self._footprint
        return kept.moved_by_scaling(), kept.moved_by_optimizer(), kept.launched_by_optimizer()

    def _update_work(
        self, name: str, nbytes: Amount, active: Floats, num_launches: Amount = 0.0
    ) -> Work:
        busy = self._roofline.moving(nbytes) + num_launches * self._roofline.launch
        return Work(self._step, "update", name, busy * active, float(np.max(nbytes)))

    def _copied(self, name: str, nbytes: float) -> Work:
        return Work(self._step, "copy", name, self._roofline.moving(2 * nbytes), 2 * nbytes)

    def _copy(self, op: ops.Copy) -> Cost:
        yield self._copied(op.name, op.nbytes)

    def _fill(self, op: ops.Fill) -> Cost:
        if self._overheads.hook:
            yield self._host("hook", self._per_hook)
        if op.is_copied:
            yield self._copied(op.name, self._facts.sizes[op.name] * self._facts.itemsize)

    def _take(self, op: ops.Take) -> Cost:
        if op.is_copied:
            nbytes = self._facts.num_elements(op.bucket.names) * self._facts.itemsize
            yield self._copied("gradients", float(nbytes))

    # Collectives ---------------------------------------------------------------------------------

    def _launch(
        self,
        tag: int | None,
        collective: str,
        label: str,
        nbytes: float,
        group: ops.Group = None,
        root: int = 0,
        **told: Any,
    ) -> Cost:
        plan = self._launcher.plan(collective, nbytes, root, group)
        if self._overheads.launch:
            yield self._host("launch", self._per_launch)
        launch = self._launcher.launch(self._step, plan, nbytes, label, group=group, **told)
        yield launch
        if tag is None:
            yield Wait((launch.call,))
        else:
            self._tags[tag] = launch.call

    def _exchange(self, op: ops.Exchange) -> Cost:
        label = f"{self._times.names[op.call]} statistics"
        return self._launch(None, op.collective, label, op.nbytes)

    def _all_reduce(self, op: ops.AllReduce) -> Cost:
        after = tuple(self._tags[tag] for tag in op.after)
        delay = self._delay(op.before)
        return self._launch(
            op.tag, "all_reduce", op.label, op.nbytes, op.group, wait=op.wait, after=after,
            delay=delay,
        )  # fmt: skip

    def _reduce_scatter(self, op: ops.ReduceScatter) -> Cost:
        return self._launch(op.tag, "reduce_scatter", op.label, op.bucket.nbytes, op.group)

    def _all_gather(self, op: ops.AllGather) -> Cost:
        return self._launch(op.tag, "all_gather", op.label, op.nbytes, op.group, wait=op.wait)

    def _broadcast(self, op: ops.Broadcast) -> Cost:
        return self._launch(op.tag, "broadcast", op.label, op.nbytes, op.group, op.root)

    def _copy_out(self, op: ops.CopyOut) -> Cost:
        return self._launch(op.tag, "broadcast", op.label, op.nbytes, op.group)

    def _average(self, op: ops.Average) -> Cost:
        return self._launch(op.tag, "all_reduce", op.label, op.nbytes)

    def _reduce(self, op: ops.Reduce) -> Cost:
        assert isinstance(op.group, tuple), "one process tells its devices by their numbers"
        if len(op.group) > 1:
            yield from self._launch(op.tag, "reduce", op.label, op.bucket.nbytes, op.group)

    def _wait(self, op: ops.Wait) -> Cost:
        calls = tuple(self._tags[tag] for tag in op.tags if tag in self._tags)
        if calls:
            yield Wait(calls)

    def _meet(self, op: ops.Meet) -> Cost:
        yield Meet(self._step)

    # Compression ---------------------------------------------------------------------------------

    def _kernel_seconds(self, kernels: Iterable[Kernel]) -> Floats:
        return seconds(kernels, self._roofline, self._facts.gradient_dtype)

    def _compress(self, name: str, kernels: Iterable[Kernel]) -> Work:
        return Work(self._step, "compress", name, self._kernel_seconds(kernels))

    def _delay(self, before: ops.Unpack | ops.Turn | None) -> float:
        """What a collective's stream is busy with before it begins, on the slowest device [s]."""
        if before is None:
            return 0.0
        taken, itemsize = before.factoring, self._facts.itemsize
        found = list[Kernel]()
        if isinstance(before, ops.Unpack):
            # They are divided, and copied back one by one.
            found.append(entrywise(taken.rest.nbytes, 4, 1 + len(taken.rest.names)))
        else:
            for batch, rows, columns, rank in _shapes(taken):
                found.append(orthonormal(rows, rank, itemsize, taken.epsilon, batch))
                found.append(product(columns, rows, rank, itemsize, batch))
        return float(self._kernel_seconds(found).max())

    def _split(self, op: ops.Split) -> Cost:
        """Up to the products P = M Q.

        The error is added (two buffers read, one written) and the sum copied; what travels as it is
        is copied into a buffer.
        """
        taken, itemsize = op.factoring, self._facts.itemsize
        found = []
        if taken.error_feedback:
            found.append(entrywise(taken.bucket.nbytes, 5, 2))
        if taken.rest.nbytes:
            found.append(entrywise(taken.rest.nbytes, 2))
        for batch, rows, columns, rank in _shapes(taken):
            if batch > 1:
                found.append(entrywise(float(batch * rows * columns * itemsize), 2))
            found.append(orthonormal(columns, rank, itemsize, taken.epsilon, batch))
            found.append(product(rows, columns, rank, itemsize, batch))
        yield self._compress(f"{taken.label} P", found)

    def _join(self, op: ops.Join) -> Cost:
        taken, itemsize = op.factoring, self._facts.itemsize
        found = list[Kernel]()
        if taken.q.nbytes:
            found.append(entrywise(taken.q.nbytes, 2))
        elif taken.rest.nbytes:  # no later all_reduce has waited until it was unpacked
            found.append(entrywise(taken.rest.nbytes, 4, 1 + len(taken.rest.names)))
        for batch, rows, columns, rank in _shapes(taken):
            found.append(product(rows, rank, columns, itemsize, batch))
            if batch > 1:
                found.append(entrywise(float(batch * rows * columns * itemsize), 2, batch))
        if taken.error_feedback:
            found.append(entrywise(taken.bucket.nbytes, 3))
        yield self._compress(f"{taken.label} P Q", found)

    def _select(self, op: ops.Select) -> Cost:
        asked, itemsize = op.selection, self._facts.itemsize
        nbytes, entry = asked.bucket.nbytes, asked.entry_nbytes
        kernels = selection(nbytes, itemsize, asked.num_entries, entry)
        if asked.error_feedback:  # it is added; what is chosen is then set to 0 in the sum
            chosen = float(asked.num_entries * entry)
            kernels = [entrywise(nbytes, 3), *kernels, entrywise(chosen, 1)]
        yield self._compress(f"{asked.label} top k", kernels)

    def _add_selected(self, op: ops.AddSelected) -> Cost:
        """The bucket is cleared; each rank's entries are read and added, by a kernel each."""
        asked, n = op.selection, self._world_size
        added = asked.num_entries * (float(asked.entry_nbytes) + 2.0 * self._facts.itemsize)
        each = Kernel(0.0, added * n, n)
        yield self._compress(f"{asked.label} sum", [entrywise(asked.bucket.nbytes, 1), each])

    # One process ---------------------------------------------------------------------------------

    def _copies(self, plan: Transfers, nbytes: float, label: str) -> Cost:
        """Copy between devices, and wait for it."""
        if plan.num_transfers:
            launch = self._launcher.copy(self._step, plan, nbytes, label)
            yield launch
            yield Wait((launch.call,))

    def _scatter(self, op: ops.Scatter) -> Cost:
        sizes = self._batches.sizes[op.micro]
        nbytes = float(sizes.sum() * self._shapes.nbytes_of(op.name, op.micro))
        return self._copies(copies_from(0, tuple(sizes.tolist())), nbytes, op.name)

    def _gathered(self, micro: int, losses: bool) -> tuple[tuple[int, ...], float]:
        """How much of what is gathered each rank has, and bytes of all [bytes]."""
        sizes = self._batches.sizes[micro]
        if losses:
            there = sizes > 0
            return tuple(there.astype(int).tolist()), float(there.sum() * self._workload.itemsize)
        nbytes = float(sizes.sum() * self._shapes.output_nbytes(micro))
        return tuple(sizes.tolist()), nbytes

    def _gather(self, op: ops.Gather) -> Cost:
        pieces, nbytes = self._gathered(op.micro, op.losses)
        label = "losses" if op.losses else "outputs"
        return self._copies(copies_to(op.root, pieces), nbytes, label)

    def _loss_of_all(self, op: ops.LossOfAll) -> Cost:
        if self._shapes.has_loss:
            yield self._loss_work("forward", op.micro, op.root)

    def _hand_back(self, op: ops.HandBack) -> Cost:
        if not op.losses and self._shapes.has_loss:
            yield self._loss_work("backward", op.micro, op.root)
        pieces, nbytes = self._gathered(op.micro, op.losses)
        yield from self._copies(copies_from(op.root, pieces), nbytes, "output gradients")

    def _loss_work(self, activity: str, micro: int, root: int) -> Work:
        """Let a rank work on the loss of the whole micro-batch."""
        parts = self._batches.micro[micro]
        found, which = self._samples.shapes(parts)
        is_root = np.arange(self._world_size) == root
        everything = is_root * int(parts.sizes.sum())
        alike = np.full_like(which, which[int(np.argmax(parts.sizes))])
        times = self._times.seconds(activity, everything, found, alike)
        return self._work(activity, self._num_calls, times)


def _shapes(taken: ops.Factoring) -> list[tuple[int, int, int, int]]:
    """How many matrices a kernel works on, their rows and columns, and the rank."""
    found: dict[tuple[int, int, int], int] = {}
    for factor in taken.factors:
        key = (factor.rows, factor.columns, factor.rank)
        found[key] = found.get(key, 0) + 1
    if taken.batched:
        return [(batch, *shape) for shape, batch in found.items()]
    return [(1, *shape) for shape, batch in found.items() for _ in range(batch)]
