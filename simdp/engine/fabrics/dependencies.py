"""Dependencies: what every transfer of a plan waits for, as lists that are walked per event."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simdp.collectives import Plan


class Dependencies:
    """The order that a plan imposes on its transfers, which are numbered as they are listed.

    Transfers of one connection take turns. A chunk may leave a rank when everything that came into
    it in earlier rounds has arrived: arrivals of one round at one rank and chunk lead to a *gate*,
    gates of later rounds open after those of earlier ones, and a transfer waits behind the last
    gate before its own round. So the number of dependencies grows with the number of transfers,
    also where thousands of transfers meet.

    Parameters
    ----------
    plan : Plan
        Whose order.
    connection : mapping of int to int
        Numbers of connections by ``src * world_size + dst``.

    Attributes
    ----------
    src, dst, chunk, connection : list of int
        Of each transfer.
    pending : list of int
        How many things each transfer waits for: its ranks to enter (if it is the first on its
        connection) or its predecessor there, and a gate if there is one.
    next_on_connection : list of int
        The transfer that follows on the same connection, or -1.
    gate_into : list of int
        The gate that each transfer's arrival leads to.
    gate_pending, next_gate, behind_gate : lists
        Of each gate: what it waits for, the gate after it or -1, and the transfers behind it.
    first_of_rank : list of list of int
        Of each rank: the transfers that wait for it to enter.
    touching : list of int
        Of each rank: how many transfers it sends or receives.
    """

    def __init__(self, plan: Plan, connection: Mapping[int, int]) -> None:
        n = plan.world_size
        rounds = list(plan.rounds())
        empty = np.empty(0, dtype=np.int64)
        self.src: list[int] = np.concatenate([empty, *(r.src for r in rounds)]).tolist()
        self.dst: list[int] = np.concatenate([empty, *(r.dst for r in rounds)]).tolist()
        self.chunk: list[int] = np.concatenate([empty, *(r.chunk for r in rounds)]).tolist()
        count = len(self.src)
        pairs = [src * n + dst for src, dst in zip(self.src, self.dst, strict=True)]
        self.connection = [connection[pair] for pair in pairs]
        self.pending = [0] * count
        self.next_on_connection = [-1] * count
        self.gate_into = [-1] * count
        self.gate_pending: list[int] = []
        self.next_gate: list[int] = []
        self.behind_gate: list[list[int]] = []
        self.first_of_rank: list[list[int]] = [[] for _ in range(n)]
        self.touching = [0] * n
        self._last_on: dict[int, int] = {}
        self._gate_of: dict[tuple[int, int], int] = {}  # the last gate of a rank and chunk
        begin = 0
        for r in rounds:
            self._add_round(range(begin, begin + len(r.src)), pairs)
            begin += len(r.src)
        del self._last_on, self._gate_of

    def _add_round(self, transfers: range, pairs: list[int]) -> None:
        for i in transfers:  # first what leaves: it sees the gates of earlier rounds only
            self._take_turn(i, pairs[i])
            gate = self._gate_of.get((self.src[i], self.chunk[i]))
            if gate is not None:
                self.pending[i] += 1
                self.behind_gate[gate].append(i)
        opened: dict[tuple[int, int], int] = {}
        for i in transfers:
            place = (self.dst[i], self.chunk[i])
            if place not in opened:
                opened[place] = self._new_gate(self._gate_of.get(place))
            self.gate_into[i] = opened[place]
            self.gate_pending[opened[place]] += 1
        self._gate_of.update(opened)

    def _take_turn(self, i: int, pair: int) -> None:
        src, dst = self.src[i], self.dst[i]
        self.touching[src] += 1
        self.touching[dst] += 1
        before = self._last_on.get(pair)
        if before is None:
            self.first_of_rank[src].append(i)
            self.first_of_rank[dst].append(i)
            self.pending[i] += 2
        else:
            self.next_on_connection[before] = i
            self.pending[i] += 1
        self._last_on[pair] = i

    def _new_gate(self, before: int | None) -> int:
        gate = len(self.gate_pending)
        self.gate_pending.append(0 if before is None else 1)
        self.next_gate.append(-1)
        self.behind_gate.append([])
        if before is not None:
            self.next_gate[before] = gate
        return gate
