"""Sharded parameters: flat shards, rows, and scattered pieces.

Gathered parameters are arrays of their own, filled with nan and dropped when they are freed, so
that a missing gather is detected. A buffer holds rank by rank, for each rank its rows of all
parameters; these are copied in before a collective, and out before compute.

`Scattered` is the counterpart of `simdp.engine.replicas` for strategies with one process, where one
loss may cover all ranks' outputs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.payload import FlatBuffers
from simdp.engine.replicas import Replicas, alone
from simdp.engine.threads import each_rank
from simdp.steps.partition import Bucket, Partition, RowPartition
from simdp.workload.execution import Kept
from simdp.workload.layers.base import Pass
from simdp.workload.precision import cast, numpy_dtype, rounded

Arrays = dict[str, Array]


class Shards:
    """Every rank's pieces, besides the whole tensors of its replica.

    ``replicas`` begin with whole parameters, the same on every rank.
    """

    def __init__(self, replicas: Replicas, partition: Partition) -> None:
        self.replicas, self.partition = replicas, partition
        self.trainer = replicas.trainer
        n, self._dtype = replicas.world_size, np.dtype(replicas.scenario.workload.dtype)
        self._gradients: list[Arrays] = [{} for _ in range(n)]
        self._gathered: dict[int, FlatBuffers] = {}
        self._learned = set(replicas.graph.ready_order)
        self.shown: str | None = self.trainer.stored  # dtype of `whole_weights`
        self._place = np.zeros(n, dtype=np.int64)
        self._place[partition.ranks] = np.arange(partition.num_places)
        whole = partition.owners is not None  # then every rank has all gradients
        groups = [[rank] for rank in range(n)] if whole else partition.ranks.tolist()
        pieces = [partition.pieces[place] for place in self._place]
        self.trainer.shard(pieces, groups, partition.kept.weights)
        if not partition.kept.weights:
            for weights in replicas.weights:
                weights.clear()
        if not partition.kept.gradients:
            replicas.forget_room()

    @property
    def groups(self) -> list[list[int]]:
        """Groups of ranks that have all pieces together."""
        groups: list[list[int]] = self.partition.ranks.tolist()
        return groups

    def take_gradients(self) -> list[Arrays]:
        """Return and drop each rank's gradients for its optimizer: its pieces, or all of them."""
        if self.partition.owners is not None:
            return self.replicas.gradients
        gradients, self._gradients = self._gradients, [{} for _ in self._gradients]
        return gradients

    def gather(self, unit: int, plan: Plan) -> None:
        """Gather a unit's weights on every rank."""
        partition, stored = self.partition, self.trainer.stored
        buffers = self._buffers(unit, stored)
        for rank, place in enumerate(self._place):
            flat = buffers.flat[rank]
            flat.fill(np.nan)
            length = partition.piece_elements(unit)
            mine = flat[place * length : (place + 1) * length]
            mine[...] = 0  # padding
            for name, _, inside in partition.cut(unit)[place]:
                mine[inside] = rounded(self.trainer.pieces(rank)[name], stored)
        payload.run(plan, buffers.flat)
        for name in partition.units[unit]:
            for weights, view in zip(self.replicas.weights, buffers.views(name), strict=True):
                if partition.kept.weights:
                    weights[name][...] = view
                else:
                    weights[name] = view.astype(self._dtype, copy=False)
        if not partition.kept.weights:
            self._gathered[unit] = buffers

    def unshard(self, unit: int) -> None:
        """Copy a unit out of its buffer; flat units need no copy."""

    def free(self, unit: int, parts: int = 0) -> None:
        """Drop a unit's weights, except the pieces."""
        assert not parts, "flat units are kept by all ranks that share them"
        for flat in self._gathered.pop(unit).flat:
            flat.fill(np.nan)
        for name in self.partition.units[unit]:
            for weights in self.replicas.weights:
                weights.pop(name).fill(np.nan)

    def bucket(self, bucket: Bucket) -> FlatBuffers:
        """Flat buffers for a unit's gradients, filled with 0."""
        assert bucket.unit is not None, "the bucket holds a unit"
        buffers = self._buffers(bucket.unit, bucket.dtype)
        for flat in buffers.flat:
            flat.fill(0)
        return buffers

    def _buffers(self, unit: int, dtype: str) -> FlatBuffers:
        shapes = {name: self.replicas.shapes[name] for name in self.partition.units[unit]}
        n, places = self.replicas.world_size, self.partition.num_places
        return FlatBuffers(shapes, n, numpy_dtype(dtype), multiple=places)

    def reduce(self, unit: int, buffers: FlatBuffers, plan: Plan, divisor: float = 1.0) -> bool:
        """Sum a unit's gradients piece by piece, in each group of ranks that have all pieces.

        ``buffers`` have the whole gradients, which are overwritten; the plan is a reduce_scatter in
        each group; ``divisor`` is that of the sums, for units in rows. Returns whether the sums are
        complete and added to each rank's pieces; with several groups, `reduce_across` follows.
        """
        assert divisor == 1.0, "flat gradients are divided before they are summed"
        payload.run(plan, buffers.flat)
        is_all = len(self.partition.ranks) == 1
        if is_all:
            self._keep(unit, self._own_pieces(unit, buffers))
        return is_all

    def reduce_across(self, unit: int, buffers: FlatBuffers, plan: Plan) -> None:
        """Sum pieces over the ranks that have the same one, by their all_reduce."""
        pieces = self._own_pieces(unit, buffers)
        payload.run(plan, pieces)
        self._keep(unit, pieces)

    def reduce_together(self, units: Sequence[int], filled: FlatBuffers, plan: Plan) -> None:
        """Sum the gradients of several units in one reduce_scatter of all ranks.

        ``filled`` has the whole gradients, by name.
        """
        places, dtype = self.partition.num_places, filled.flat[0].dtype
        lengths = [self.partition.piece_elements(unit) for unit in units]
        flat = [np.zeros((places, sum(lengths)), dtype) for _ in self._place]
        begin = 0
        for unit, length in zip(units, lengths, strict=True):
            for place, of_place in enumerate(self.partition.cut(unit)):
                for name, in_tensor, in_piece in of_place:
                    views = filled.views(name)
                    for rank, own in enumerate(flat):
                        row = own[place, begin : begin + length]
                        row[in_piece] = views[rank].reshape(-1)[in_tensor]
            begin += length
        payload.run(plan, [own.reshape(-1) for own in flat])
        begin = 0
        for unit, length in zip(units, lengths, strict=True):
            mine = [
                own[p, begin : begin + length] for own, p in zip(flat, self._place, strict=True)
            ]
            self._keep(unit, mine)
            begin += length

    def keep_sums(self, names: Sequence[str], buffers: FlatBuffers) -> None:
        """Add each rank's piece of complete sums to its pieces, and drop the rest."""
        for name in names:
            views = buffers.views(name)
            for rank, place in enumerate(self._place):
                self.replicas.gradients[rank].pop(name, None)
                piece = self.partition.pieces[place].get(name)
                if piece is None or name not in self._learned:
                    continue
                part = views[rank].reshape(-1)[piece].astype(self._dtype)
                mine = self._gradients[rank]
                mine[name] = mine[name] + part if name in mine else part

    def _own_pieces(self, unit: int, buffers: FlatBuffers) -> list[Array]:
        length = self.partition.piece_elements(unit)
        return [
            flat[place * length : (place + 1) * length]
            for flat, place in zip(buffers.flat, self._place, strict=True)
        ]

    def _keep(self, unit: int, pieces: list[Array]) -> None:
        """Add each rank's piece to its pieces, and drop the whole gradients."""
        cut = self.partition.cut(unit)
        for rank, (piece, place) in enumerate(zip(pieces, self._place, strict=True)):
            mine = self._gradients[rank]
            for name, _, inside_piece in cut[place]:
                part = piece[inside_piece].astype(self._dtype)
                if name not in self._learned:
                    continue
                if name in mine:
                    mine[name] += part
                else:
                    mine[name] = part
            for name in self.partition.units[unit]:
                self.replicas.gradients[rank].pop(name, None)

    def whole_weights(self) -> list[Arrays]:
        """Whole weights of every rank; ranks of a group share the arrays."""
        if self.partition.kept.weights:
            return self.replicas.weights
        weights: list[Arrays] = [{} for _ in self._place]
        for ranks in self.partition.ranks.tolist():
            whole: Arrays = {}
            for name, shape in self.replicas.shapes.items():
                flat = np.empty(self.partition.sizes[name], self._dtype)
                for rank in ranks:
                    place = self.partition.pieces[self._place[rank]].get(name)
                    if place is not None:
                        flat[place] = rounded(self.trainer.pieces(rank)[name], self.shown)
                whole[name] = flat.reshape(shape)
            for rank in ranks:
                weights[rank] = whole
        return weights


class RowShards(Shards):
    """Every rank's rows, besides the whole tensors of its replica."""

    def __init__(self, replicas: Replicas, partition: RowPartition) -> None:
        super().__init__(replicas, partition)
        self._rows = partition
        if replicas.scenario.strategy.dtypes.parameters is not None:
            self.shown = None  # the pieces themselves, in 32 bits
        self._arrived: dict[int, tuple[RowPartition, list[Array]]] = {}
        self._parts: dict[int, list[Arrays]] = {}  # of units that a few ranks keep together
        self._summed: dict[int, tuple[list[Array], float]] = {}

    def gather(self, unit: int, plan: Plan) -> None:
        """Send every rank's rows of a unit, or its part of one that a few ranks keep together."""
        stored, kept = self.trainer.stored, self._parts.pop(unit, None)
        dealt = self._rows if kept is None else self._rows.after_forward
        assert dealt is not None, "parts have been dealt"
        length, cut = dealt.piece_elements(unit), dealt.cut(unit)
        sent = [
            np.full(length * dealt.num_places, np.nan, numpy_dtype(stored)) for _ in self._place
        ]
        for rank, place in enumerate(_places(dealt)):
            mine = sent[rank][place * length : (place + 1) * length]
            mine[...] = 0  # padding
            own = self.trainer.pieces(rank) if kept is None else kept[rank]
            for name, _, inside in cut[place]:
                mine[inside] = rounded(own[name], stored)
        payload.run(plan, sent)
        self._arrived[unit] = dealt, sent

    def unshard(self, unit: int) -> None:
        """Copy a gathered unit into every rank's parameters."""
        dealt, sent = self._arrived.pop(unit)
        length, cut = dealt.piece_elements(unit), dealt.cut(unit)
        for weights, flat in zip(self.replicas.weights, sent, strict=True):
            for name in dealt.units[unit]:
                weights[name] = np.empty(self.replicas.shapes[name], self._dtype)
            for place, of_place in enumerate(cut):
                piece = flat[place * length : (place + 1) * length]
                for name, there, inside in of_place:
                    weights[name].reshape(-1)[there] = piece[inside]

    def free(self, unit: int, parts: int = 0) -> None:
        """Drop a unit's weights, except the rows, and the parts that a few ranks keep."""
        if self._arrived.pop(unit, None) is not None:  # it was not used
            return
        if parts:
            assert self._rows.after_forward is not None, "parts have been dealt"
            dealt = self._rows.after_forward
            cut = dealt.cut(unit)
            self._parts[unit] = [
                {name: weights[name].reshape(-1)[there].copy() for name, there, _ in cut[place]}
                for weights, place in zip(self.replicas.weights, _places(dealt), strict=True)
            ]
        for name in self._rows.units[unit]:
            for weights in self.replicas.weights:
                weights.pop(name).fill(np.nan)

    def bucket(self, bucket: Bucket) -> FlatBuffers:
        shapes = {name: self.replicas.shapes[name] for name in bucket.names}
        buffers = FlatBuffers(shapes, self.replicas.world_size, numpy_dtype(bucket.dtype))
        for flat in buffers.flat:
            flat.fill(0)
        return buffers

    def reduce(self, unit: int, buffers: FlatBuffers, plan: Plan, divisor: float = 1.0) -> bool:
        names, places = buffers.names(), self._rows.num_places
        cut, length = self._rows.cut_of(names), self._rows.elements_of(names)
        sent = [np.zeros(length * places, flat.dtype) for flat in buffers.flat]
        for name in names:
            for flat, whole in zip(sent, buffers.views(name), strict=True):
                for place, of_place in enumerate(cut):
                    for _, there, inside in (
                        piece_of_unit for piece_of_unit in of_place if piece_of_unit[0] == name
                    ):
                        flat[place * length :][inside] = whole.reshape(-1)[there]
        payload.run(plan, sent)
        pieces = [
            flat[place * length : (place + 1) * length]
            for flat, place in zip(sent, self._place, strict=True)
        ]
        if len(self._rows.ranks) > 1:
            earlier, _ = self._summed.pop(unit, ([], divisor))
            for piece, before in zip(pieces, earlier, strict=False):
                piece += before  # sums of earlier micro-steps, not yet reduced across groups
            self._summed[unit] = pieces, divisor
            self._forget(unit)
            return False
        self._take(unit, names, pieces, divisor)
        return True

    def reduce_across(self, unit: int, buffers: FlatBuffers, plan: Plan) -> None:
        pieces, divisor = self._summed.pop(unit)
        payload.run(plan, pieces)
        self._take(unit, buffers.names(), pieces, divisor)

    def _take(self, unit: int, names: list[str], pieces: list[Array], divisor: float) -> None:
        """Add each rank's mean of gradients to its pieces, and drop the whole ones."""
        cut = self._rows.cut_of(names)
        for rank, (piece, place) in enumerate(zip(pieces, self._place, strict=True)):
            if divisor != 1.0:
                np.divide(piece, piece.dtype.type(divisor), out=piece)
            mine = self._gradients[rank]
            for name, _, inside in cut[place]:
                part = piece[inside].astype(self._dtype)
                if name in mine:
                    mine[name] += part
                else:
                    mine[name] = part
        self._forget(unit)

    def _forget(self, unit: int) -> None:
        """Drop a unit's whole gradients."""
        for gradients in self.replicas.gradients:
            for name in self._rows.units[unit]:
                gradients.pop(name, None)


def _places(dealt: RowPartition) -> Ints:
    """The place of every rank, shape `(world_size,)`."""
    places = np.zeros(dealt.ranks.size, dtype=np.int64)
    places[dealt.ranks] = np.arange(dealt.num_places)
    return places


class ShardedForward(NamedTuple):
    """Outputs of a replica's forward, and the input of its backward."""

    run: Pass
    kept: Kept
    outputs: list[Array]


class Scattered:
    """A micro-batch scattered over the replicas; rank 0 gets the gradients."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas, self.samples = replicas, replicas.samples
        workload = replicas.scenario.workload
        self.loss, self.dtype = workload.loss, np.dtype(workload.dtype)
        self._num_elements = sum(parameter.num_elements for parameter in replicas.graph.parameters)
        self._parts: Sequence[Array] = ()
        self._whole = np.zeros(0, dtype=np.int64)
        self._begun: list[ShardedForward | None] = []
        self._slopes: list[list[Array] | None] = []
        self._total: dict[str, Array] = {}
        self._sums: dict[str, Array] = {}

    # Forward ------------------------------------------------------------------------------------

    def forward(self, parts: Sequence[Array], keeps: bool) -> None:
        """Run the model of every rank with samples; ``keeps``: backward follows."""
        n = self.replicas.world_size
        self._parts = [parts[rank] for rank in range(n)]
        self._whole = np.concatenate(self._parts)
        among = self._whole if self.samples.together else None

        def run(rank: int) -> ShardedForward | None:
            part = self._parts[rank]
            return alone(self._forward_of(rank, part, among, keeps)) if len(part) else None

        self._begun = each_rank(run, n, self._num_elements)
        self._slopes = [None] * n

    def _forward_of(
        self, rank: int, part: Array, among: Array | None, keeps: bool
    ) -> Generator[Any, Any, ShardedForward]:
        replicas = self.replicas
        run = Pass(
            parameters=replicas.weights[rank],
            buffers=replicas.buffers[rank],
            samples=part,
            seed=replicas.scenario.seed,
            step=replicas.step,
        )
        inputs = self.samples.inputs(part, among)
        outputs, kept = yield from replicas.executor.forward(run, inputs, keeps)
        return ShardedForward(run, kept, outputs)

    def outputs(self) -> list[Array]:
        """The model's outputs on the ranks with samples, in their order."""
        return [begun.outputs[0] for begun in self._begun if begun is not None]

    # Losses -------------------------------------------------------------------------------------

    def count(self) -> float:
        """Number of items that a loss of the whole micro-batch averages."""
        return self.loss.count(self.samples.target(self._whole))

    def loss_of_all(self, share: float) -> float:
        """The loss of all outputs together; nan without items.

        ``share`` is a factor on the loss, for the gradients only.
        """
        target = self.samples.target(self._whole)
        if not self.loss.count(target):
            return np.nan
        there = [begun for begun in self._begun if begun is not None]
        together = [
            np.concatenate(outputs) for outputs in zip(*(b.outputs for b in there), strict=True)
        ]
        loss, slopes = self._loss(together, target, share)
        ends = np.cumsum([len(part) for part in self._parts])[:-1]
        for rank, begun in enumerate(self._begun):
            if begun is not None:
                self._slopes[rank] = [np.split(slope, ends)[rank] for slope in slopes]
        return loss

    def loss_of_each(self, share: float) -> Floats:
        """The loss of each rank's outputs, shape `(world_size,)`; nan without items.

        ``share`` is a factor on the mean of the losses, for the gradients only.
        """
        among, count = self._whole, sum(begun is not None for begun in self._begun)
        losses = np.full(len(self._begun), np.nan)
        for rank, begun in enumerate(self._begun):
            if begun is None:
                continue
            target = self.samples.target(self._parts[rank], among)
            if self.loss.count(target):
                losses[rank], slopes = self._loss(begun.outputs, target, share / count)
                self._slopes[rank] = slopes
        return losses

    def _loss(
        self, outputs: Sequence[Array], target: Array, factor: float
    ) -> tuple[float, list[Array]]:
        """The loss, and the gradients of the outputs with rank 0's loss scale."""
        total, slopes = 0.0, []
        for output, (_, weight) in zip(outputs, self.replicas.graph.outputs, strict=True):
            loss, slope = self.loss.value_and_grad(output, target)
            total += weight * loss
            scale = weight * factor * self.replicas.trainer.loss_scale(0)
            if scale != 1.0:
                slope *= self.dtype.type(scale)
            slopes.append(slope)
        return total, slopes

    # Backward -----------------------------------------------------------------------------------

    def backward(self) -> None:
        """Compute every replica's gradients; those of the step so far are kept aside."""
        self._total = self.replicas.gradients[0]

        def run(rank: int) -> dict[str, Array]:
            begun, slopes = self._begun[rank], self._slopes[rank]
            if begun is None:
                return {}
            if slopes is not None:
                alone(self.replicas.executor.backward(begun.run, begun.kept, slopes))
            gradients = begun.run.gradients
            for name, shape in self.replicas.shapes.items():
                if name not in gradients:  # zeros, as in torch's backward of Broadcast
                    gradients[name] = np.zeros(shape, self.dtype)
            return gradients

        self.replicas.gradients = each_rank(run, self.replicas.world_size, self._num_elements)
        self._begun = []

    def reduce(self, names: Sequence[str], plan: Plan) -> None:
        """Sum gradients over the ranks of a plan, on its root, in one flat buffer."""
        replicas = self.replicas
        precision, dtype = replicas.scenario.workload.precision, self.dtype.name
        shapes = {name: replicas.shapes[name] for name in names}
        sent = numpy_dtype(precision.gradient_dtype(dtype))
        buffers = FlatBuffers(shapes, replicas.world_size, sent)
        for name in names:
            for view, own in zip(buffers.views(name), replicas.gradients, strict=True):
                view[...] = cast(own[name], sent) if name in own else 0
        payload.run(plan, buffers.flat)
        for name in names:
            self._sums[name] = buffers.views(name)[plan.root].astype(self.dtype, copy=False)

    def take_sums(self) -> None:
        """Add the sums to rank 0's gradients of the step; drop the others'.

        Zeros of frozen parameters are dropped, as by autograd.
        """
        frozen = self.replicas.graph.frozen
        for name, gradient in self._sums.items():
            if name in frozen:
                continue
            if name in self._total:
                self._total[name] += gradient
            else:
                self._total[name] = gradient
        others: list[dict[str, Array]] = [{} for _ in range(self.replicas.world_size - 1)]
        self.replicas.gradients = [self._total, *others]
        self._sums = {}
