"""Shards: the pieces of parameters and gradients that each rank has, and what is made of them.

What a rank does not keep whole is not there: gathered parameters are arrays of their own, filled
with nan and thrown away when they are freed, so that a gather that is missing cannot pass unseen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Array
from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.buffers import FlatBuffers
from simdp.engine.replicas import Replicas
from simdp.steps.bucket import Bucket
from simdp.steps.partition import Partition
from simdp.workload.precision.rounding import numpy_dtype, rounded

Arrays = dict[str, Array]


class Shards:
    """Every rank's pieces, beside what its replica still has.

    Parameters
    ----------
    replicas : Replicas
        With whole parameters, the same on every rank.
    partition : Partition
        How they are dealt.
    """

    def __init__(self, replicas: Replicas, partition: Partition) -> None:
        self.replicas, self.partition = replicas, partition
        self.trainer = replicas.trainer
        n, self._dtype = replicas.world_size, np.dtype(replicas.scenario.workload.dtype)
        self._gradients: list[Arrays] = [{} for _ in range(n)]
        self._gathered: dict[int, FlatBuffers] = {}
        self._learned = set(replicas.graph.ready_order)
        self.shown: str | None = self.trainer.stored  # in which dtype the weights are told
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
        """Ranks whose pieces make up the whole."""
        found: list[list[int]] = self.partition.ranks.tolist()
        return found

    def take_gradients(self) -> list[Arrays]:
        """Of each rank what its optimizer needs: its pieces, or all of them; then forget them."""
        if self.partition.owners is not None:
            return self.replicas.gradients
        found, self._gradients = self._gradients, [{} for _ in self._gradients]
        return found

    def gather(self, unit: int, plan: Plan) -> None:
        """Put a unit's weights together on every rank."""
        partition, stored = self.partition, self.trainer.stored
        buffers = self._buffers(unit, stored)
        for rank, place in enumerate(self._place):
            flat = buffers.flat[rank]
            flat.fill(np.nan)
            length = partition.piece_elements(unit)
            mine = flat[place * length : (place + 1) * length]
            mine[...] = 0  # what is padded
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
        """Copy a unit out of its buffer; a flat one is there as soon as it is gathered."""

    def free(self, unit: int, parts: int = 0) -> None:
        """Throw a unit's weights away, but for the pieces."""
        assert not parts, "flat units are kept by all who share them"
        for flat in self._gathered.pop(unit).flat:
            flat.fill(np.nan)
        for name in self.partition.units[unit]:
            for weights in self.replicas.weights:
                weights.pop(name).fill(np.nan)

    def bucket(self, bucket: Bucket) -> FlatBuffers:
        """Flat buffers for a unit's gradients, 0 where none will be written."""
        assert bucket.unit is not None, "it holds a unit"
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

        Parameters
        ----------
        unit : int
            Which.
        buffers : FlatBuffers
            Whole gradients; their content is lost.
        plan : Plan
            A reduce_scatter in each group.
        divisor : float
            What the sums are divided by, of units in rows.

        Returns
        -------
        bool
            Whether that is all, so that each rank has added its piece to those that it has; where
            there are several groups, `reduce_across` follows.
        """
        assert divisor == 1.0, "flat gradients are divided before they are summed"
        payload.run(plan, buffers.flat)
        is_all = len(self.partition.ranks) == 1
        if is_all:
            self._keep(unit, self._own_pieces(unit, buffers))
        return is_all

    def reduce_across(self, unit: int, buffers: FlatBuffers, plan: Plan) -> None:
        """Sum pieces over the ranks that have the same one, by an all_reduce of theirs."""
        pieces = self._own_pieces(unit, buffers)
        payload.run(plan, pieces)
        self._keep(unit, pieces)

    def reduce_together(self, units: Sequence[int], filled: FlatBuffers, plan: Plan) -> None:
        """Sum the gradients of several units in one reduce_scatter.

        Parameters
        ----------
        units : sequence of int
            Which.
        filled : FlatBuffers
            Whole gradients, by name.
        plan : Plan
            A reduce_scatter of all ranks.
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
        """Add what every rank's pieces have of sums that all ranks have, and forget the rest."""
        for name in names:
            views = buffers.views(name)
            for rank, place in enumerate(self._place):
                self.replicas.gradients[rank].pop(name, None)
                piece = self.partition.pieces[place].get(name)
                if piece is None or name not in self._learned:
                    continue
                found = views[rank].reshape(-1)[piece].astype(self._dtype)
                mine = self._gradients[rank]
                mine[name] = mine[name] + found if name in mine else found

    def _own_pieces(self, unit: int, buffers: FlatBuffers) -> list[Array]:
        length = self.partition.piece_elements(unit)
        return [
            flat[place * length : (place + 1) * length]
            for flat, place in zip(buffers.flat, self._place, strict=True)
        ]

    def _keep(self, unit: int, pieces: list[Array]) -> None:
        """Add each rank's piece to those that it has, and forget the whole gradients."""
        cut = self.partition.cut(unit)
        for rank, (piece, place) in enumerate(zip(pieces, self._place, strict=True)):
            mine = self._gradients[rank]
            for name, _, inside_piece in cut[place]:
                found = piece[inside_piece].astype(self._dtype)
                if name not in self._learned:
                    continue
                if name in mine:
                    mine[name] += found
                else:
                    mine[name] = found
            for name in self.partition.units[unit]:
                self.replicas.gradients[rank].pop(name, None)

    def whole_weights(self) -> list[Arrays]:
        """All of every rank's weights; ranks that make them up together share the arrays."""
        if self.partition.kept.weights:
            return self.replicas.weights
        found: list[Arrays] = [{} for _ in self._place]
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
                found[rank] = whole
        return found
