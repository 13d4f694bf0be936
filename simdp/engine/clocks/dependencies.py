"""Dependencies: what every transfer of a part waits for, as lists that are walked per event."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from simdp.arrays import Ints
from simdp.collectives import Part
from simdp.collectives.base import Round, expand


class Dependencies:
    """The order that a plan imposes on the transfers of a part, numbered as they are listed.

    Transfers of one connection take turns. What a transfer needs is at a *place*: a chunk of its
    source, or, in plans that ranks take round by round, its two ranks themselves. What arrives at
    a place in one round leads to a *gate*, gates of later rounds open after those of earlier ones,
    and a transfer waits behind the last gates of its places before its own round. So the number of
    dependencies grows with the number of transfers, also where thousands of transfers meet.

    Parameters
    ----------
    part : Part
        Whose order.
    connection : mapping of (int, int, int) to int
        Numbers of connections by source, destination and channel.
    num_ranks : int
        Vertices from here on are switches, which need not enter.

    Attributes
    ----------
    src, dst, connection : list of int
        Of each transfer.
    count : list of int
        Chunks of each transfer.
    pending : list of int
        How many things each transfer waits for: its ranks to enter (if it is the first on its
        connection) or its predecessor there, and gates.
    next_on_connection : list of int
        The transfer that follows on the same connection, or -1.
    gates_into : list of tuple of int
        The gates that each transfer's arrival leads to.
    gate_pending, next_gate, behind_gate : lists
        Of each gate: what it waits for, the gate after it or -1, and the transfers behind it.
    first_of_rank : dict of int to list of int
        The transfers that wait for each rank to enter.
    touching : dict of int to int
        Of each rank that takes part: how many transfers it sends or receives.
    """

    def __init__(
        self, part: Part, connection: Mapping[tuple[int, int, int], int], num_ranks: int
    ) -> None:
        self.num_ranks = num_ranks
        self.src: list[int] = []
        self.dst: list[int] = []
        self.count: list[int] = []
        self.connection: list[int] = []
        self.pending: list[int] = []
        self.next_on_connection: list[int] = []
        self.gates_into: list[tuple[int, ...]] = []
        self.gate_pending: list[int] = []
        self.next_gate: list[int] = []
        self.behind_gate: list[list[int]] = []
        self.first_of_rank: dict[int, list[int]] = {}
        self.touching: dict[int, int] = {}
        last_on: dict[int, int] = {}
        gate_of: dict[int, int] = {}  # the last gate of each place
        for transfers in part.plan.rounds():
            first = len(self.src)
            leaves, lands = self._list(part, transfers, connection)
            for i, needed in enumerate(leaves, first):  # sees the gates of earlier rounds only
                self._take_turn(i, last_on)
                for place in needed:
                    gate = gate_of.get(place)
                    if gate is not None:
                        self.pending[i] += 1
                        self.behind_gate[gate].append(i)
            opened: dict[int, int] = {}
            for reached in lands:
                for place in reached:
                    if place not in opened:
                        opened[place] = self._new_gate(gate_of.get(place))
                    self.gate_pending[opened[place]] += 1
                self.gates_into.append(tuple([opened[place] for place in reached]))
            gate_of.update(opened)

    def _list(
        self, part: Part, transfers: Round, connection: Mapping[tuple[int, int, int], int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Number the transfers of a round in every group; say where they leave and land."""
        groups = len(part.members)
        src = part.members[:, transfers.src].reshape(-1).tolist()
        dst = part.members[:, transfers.dst].reshape(-1).tolist()
        self.src += src
        self.dst += dst
        counts = np.broadcast_to(transfers.num_chunks, transfers.src.shape)
        self.count += np.tile(counts, groups).tolist()
        channel = np.tile(np.broadcast_to(transfers.channel, counts.shape), groups).tolist()
        self.connection += [connection[ends] for ends in zip(src, dst, channel, strict=True)]
        self.pending += [0] * len(src)
        self.next_on_connection += [-1] * len(src)
        if part.plan.order == "rank":
            places = [list(pair) for pair in zip(src, dst, strict=True)]
            return places, places
        moves, slots = expand(transfers), part.plan.num_slots
        ends = np.cumsum(counts)
        leaves, lands = [], []
        for group in range(groups):
            base = group * part.plan.num_vertices
            leaves += _cut(((base + moves.src) * slots + moves.chunk).tolist(), ends)
            lands += _cut(((base + moves.dst) * slots + moves.to).tolist(), ends)
        return leaves, lands

    def _take_turn(self, i: int, last_on: dict[int, int]) -> None:
        ranks = [v for v in (self.src[i], self.dst[i]) if v < self.num_ranks]
        for rank in ranks:
            self.touching[rank] = self.touching.get(rank, 0) + 1
        before = last_on.get(self.connection[i])
        if before is None:
            for rank in ranks:
                self.first_of_rank.setdefault(rank, []).append(i)
                self.pending[i] += 1
        else:
            self.next_on_connection[before] = i
            self.pending[i] += 1
        last_on[self.connection[i]] = i

    def _new_gate(self, before: int | None) -> int:
        gate = len(self.gate_pending)
        self.gate_pending.append(0 if before is None else 1)
        self.next_gate.append(-1)
        self.behind_gate.append([])
        if before is not None:
            self.next_gate[before] = gate
        return gate


def _cut(values: list[int], ends: Ints) -> list[list[int]]:
    """Cut a list into pieces that end at some positions."""
    if len(ends) == len(values):
        return [[value] for value in values]
    return [values[begin:end] for begin, end in pairwise([0, *ends.tolist()])]
