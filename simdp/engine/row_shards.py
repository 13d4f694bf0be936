"""RowShards: each rank's rows of parameters and gradients, and what is made of them, as in FSDP2.

What travels lies rank by rank, each rank's rows of all parameters together; it is copied in and
out. What has not been copied out cannot be computed with.
"""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array, Ints
from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.buffers import FlatBuffers
from simdp.engine.replicas import Replicas
from simdp.engine.shards import Arrays, Shards
from simdp.steps.bucket import Bucket
from simdp.steps.rows import Rows
from simdp.workload.precision.rounding import numpy_dtype, rounded


class RowShards(Shards):
    """Every rank's rows, beside what its replica still has.

    Parameters
    ----------
    replicas : Replicas
        With whole parameters, the same on every rank.
    partition : Rows
        How they are dealt.
    """

    def __init__(self, replicas: Replicas, partition: Rows) -> None:
        super().__init__(replicas, partition)
        self._rows = partition
        if getattr(replicas.scenario.strategy, "param_dtype", None) is not None:
            self.shown = None  # the pieces themselves, which are of 32 bits
        self._arrived: dict[int, tuple[Rows, list[Array]]] = {}
        self._parts: dict[int, list[Arrays]] = {}  # of units that a few ranks keep together
        self._summed: dict[int, tuple[list[Array], float]] = {}

    def gather(self, unit: int, plan: Plan) -> None:
        """Send every rank's rows of a unit, or its part of what a few ranks keep together."""
        stored, kept = self.trainer.stored, self._parts.pop(unit, None)
        dealt = self._rows if kept is None else self._rows.after_forward
        assert dealt is not None, "parts have been dealt"
        length, cut = dealt.piece_elements(unit), dealt.cut(unit)
        sent = [
            np.full(length * dealt.num_places, np.nan, numpy_dtype(stored)) for _ in self._place
        ]
        for rank, place in enumerate(_places(dealt)):
            mine = sent[rank][place * length : (place + 1) * length]
            mine[...] = 0  # what is padded
            own = self.trainer.pieces(rank) if kept is None else kept[rank]
            for name, _, inside in cut[place]:
                mine[inside] = rounded(own[name], stored)
        payload.run(plan, sent)
        self._arrived[unit] = dealt, sent

    def unshard(self, unit: int) -> None:
        """Copy what has arrived of a unit out, into every rank's parameters."""
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
        """Throw a unit's weights away, but for the rows, and for parts that a few ranks keep."""
        if self._arrived.pop(unit, None) is not None:  # it was gathered for nothing
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
                    for _, there, inside in (one for one in of_place if one[0] == name):
                        flat[place * length :][inside] = whole.reshape(-1)[there]
        payload.run(plan, sent)
        pieces = [
            flat[place * length : (place + 1) * length]
            for flat, place in zip(sent, self._place, strict=True)
        ]
        if len(self._rows.ranks) > 1:
            earlier, _ = self._summed.pop(unit, ([], divisor))
            for piece, before in zip(pieces, earlier, strict=False):
                piece += before  # of micro-steps whose sums have not gone across
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
        """Add each rank's mean of gradients to those that it has, and forget the whole ones."""
        cut = self._rows.cut_of(names)
        for rank, (piece, place) in enumerate(zip(pieces, self._place, strict=True)):
            if divisor != 1.0:
                np.divide(piece, piece.dtype.type(divisor), out=piece)
            mine = self._gradients[rank]
            for name, _, inside in cut[place]:
                found = piece[inside].astype(self._dtype)
                if name in mine:
                    mine[name] += found
                else:
                    mine[name] = found
        self._forget(unit)

    def _forget(self, unit: int) -> None:
        """Forget a unit's whole gradients."""
        for gradients in self.replicas.gradients:
            for name in self._rows.units[unit]:
                gradients.pop(name, None)


def _places(dealt: Rows) -> Ints:
    """The place of every rank, shape `(world_size,)`."""
    found = np.zeros(dealt.ranks.size, dtype=np.int64)
    found[dealt.ranks] = np.arange(dealt.num_places)
    return found
