"""Plans of a collective: rounds of transfers, chunks, slices, and the ledger that proves them.

A plan lists transfers, without data and without time. All interpreters read the same plan: the
event fabric, the vectorised fabric, the payload that moves real arrays, and the proof in `prove`.

The contract of a plan
----------------------
* A transfer moves one chunk, or several at equal distances, from ``src`` to ``dst``. Where
``reduce`` is true the receiver adds them to its own copies, else it replaces these. All transfers
of a round read the state before the round; reductions of a round apply in the listed order.
* In time, a transfer starts when both ranks have entered the collective, its inputs have arrived
(`Plan.order`), and the previous transfer from ``src`` to ``dst`` over the same channel is done.
Rounds are no barriers.
* Every chunk is charged as the exact fraction ``nbytes / num_chunks``; the payload splits whole
elements.
* A plan may consist of parts (`parts`): other plans, on groups of ranks, one after the other or at
the same time. A rank enters a part when it has left those before it. Slices of a composed plan
follow each other: a rank enters a stage with its next slice when it has left it with the previous
one.
* Vertices from ``world_size`` on are switches that add. They do not enter, and are empty at first.

In the ledger rank r contributes the token r. For every vertex and chunk it keeps the set of tokens
and the piece of the buffer, and applies the moves: a copy replaces; a reduction unites two disjoint
sets of the same piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Bools, Ints
from simdp.errors import PlanError


@dataclass(frozen=True)
class Layout:
    """Ranks in nodes of equal size, and the switches that can add.

    Rank r is the local rank ``r % local_size`` of node ``r // local_size``.
    """

    world_size: int
    """Number of ranks, n."""
    local_size: int = 0
    """Ranks per node; divides ``world_size``. 0 means one node."""
    inside: tuple[int, ...] = ()
    """Reduction tree inside a node: the parent of each local rank and then of each of the node's
    switches, numbered from ``local_size`` on; -1 for the last one. Empty if no switch inside a node
    can add."""
    across: tuple[int, ...] = ()
    """The same between nodes: the parent of every rank and then of each switch, numbered from
    ``world_size`` on. Empty if no switch between nodes can add."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"world_size must be >= 1, got {self.world_size}")
        if self.local_size < 0 or self.world_size % (self.local_size or self.world_size):
            raise ValueError(
                f"local_size must divide world_size {self.world_size}, got {self.local_size}"
            )

    @property
    def per_node(self) -> int:
        """Ranks per node."""
        return self.local_size or self.world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.per_node

    @property
    def num_inside(self) -> int:
        """Switches of one node that can add."""
        return max(len(self.inside) - self.per_node, 0)

    @property
    def num_across(self) -> int:
        """Switches between nodes that can add."""
        return max(len(self.across) - self.world_size, 0)

    @property
    def num_switches(self) -> int:
        """Switches that can add: those of node 0, 1, ..., then those between nodes.

        Their vertices are numbered from ``world_size`` on.
        """
        return self.num_nodes * self.num_inside + self.num_across

    @cached_property
    def node(self) -> Layout:
        """Layout of a single node."""
        return Layout(self.per_node, self.per_node, self.inside)

    def vertices_of_nodes(self) -> Ints:
        """Return ranks and switches of each node, shape `(num_nodes, per_node + num_inside)`."""
        nodes = np.arange(self.num_nodes)[:, None]
        ranks = nodes * self.per_node + np.arange(self.per_node)
        switches = self.world_size + nodes * self.num_inside + np.arange(self.num_inside)
        return np.concatenate([ranks, switches], axis=1)

    def rails(self) -> tuple[Ints, Layout]:
        """Return ranks with the same place in their nodes, and their layout.

        Returns
        -------
        (ndarray, Layout)
            Ranks and then the switches between nodes that add for them, shape `(per_node, num_nodes
            + switches of a rail)`; and the layout of every rail, with one rank to a node.

        Raises
        ------
        ValueError
            If switches add for some rails in another order than for others.
        """
        nodes, m = self.num_nodes, self.per_node
        ranks = np.arange(self.world_size).reshape(nodes, m).T
        if not self.across:
            return ranks, Layout(nodes, 1)
        trees = [self._rail_tree(rail) for rail in ranks.tolist()]
        if len({parents for _, parents in trees}) > 1:
            raise ValueError("the switches between nodes form another tree for every rail")
        first = nodes * self.num_inside  # the switches between nodes follow those inside
        switches = np.array([switch_ids for switch_ids, _ in trees], dtype=np.int64).reshape(m, -1)
        return np.concatenate([ranks, switches + first], axis=1), Layout(nodes, 1, (), trees[0][1])

    def _rail_tree(self, rail: list[int]) -> tuple[list[int], tuple[int, ...]]:
        """Return the switches above some ranks, in the order they are met, and the tree."""
        numbers: dict[int, int] = {}
        parents = [0] * len(rail)
        for number, rank in enumerate(rail):
            child, vertex = number, self.across[rank]
            while vertex >= 0:
                met = vertex in numbers
                parents[child] = numbers.setdefault(vertex, len(parents))
                if met:
                    break
                parents.append(-1)
                child, vertex = numbers[vertex], self.across[vertex]
        return list(numbers), tuple(parents)


def layout_of(layout: Layout | int) -> Layout:
    """Return the layout; a number of ranks means one node."""
    return layout if isinstance(layout, Layout) else Layout(layout)


# Plan ---------------------------------------------------------------------------------------------

Offsets = Callable[[int, int], Ints]

Order = Literal["chunk", "rank", "ring", "chain"]


class Round(NamedTuple):
    """Transfers that may happen at the same time, as arrays of equal length."""

    src: Ints  # vertices: ranks, and switches that add
    dst: Ints  # vertices: ranks, and switches that add
    chunk: Ints  # the chunk sent, or the first of several
    reduce: bool | Bools  # whether the receiver adds (True) or replaces (False)
    to: Ints | None = None  # destination chunk at the receiver; None: ``chunk``
    num_chunks: int | Ints = 1  # number of chunks sent
    stride: int = 1  # distance between the chunks of a transfer
    channel: int | Ints = 0  # connection from ``src`` to ``dst`` that the transfer uses


class Moves(NamedTuple):
    """Single chunks that move in one round, as arrays of equal length; fields as in `Round`."""

    src: Ints
    dst: Ints
    chunk: Ints
    to: Ints
    reduce: Bools


def expand(transfers: Round) -> Moves:
    """Return every chunk of every transfer of a round."""
    src, dst, chunk, reduce, to, count, stride, _ = transfers
    reduce = np.broadcast_to(reduce, src.shape)
    to = chunk if to is None else to
    if isinstance(count, int) and count == 1:
        return Moves(src, dst, chunk, to, reduce)
    counts = np.broadcast_to(count, src.shape)
    places = np.repeat(np.arange(len(src)), counts)
    ends = np.cumsum(counts)
    within = (np.arange(len(places)) - np.repeat(ends - counts, counts)) * stride
    return Moves(
        src[places], dst[places], chunk[places] + within, to[places] + within, reduce[places]
    )


@dataclass(frozen=True, eq=False)
class SubPlan:
    """A plan inside a plan, run by several groups of ranks in parallel."""

    plan: Plan  # without parts of its own
    # shape `(num_groups, plan.num_vertices)`: vertices of the whole at the places 0, 1, ... of each
    # group.
    members: Ints
    first: Ints  # shape `(num_groups,)`: each group's chunk 0, as a chunk of the whole
    step: int  # distance between the chunks of a group
    # shape `(chunks of the whole in one of the part,)`: their offsets from the first one
    spread: Ints
    after: tuple[int, ...]  # parts that a rank must have left before it enters this one

    def moves(self) -> Iterator[Moves]:
        """Yield moves round by round, as vertices and chunks of the whole."""
        for m in self.plan.moves():
            src, dst = self.members[:, m.src], self.members[:, m.dst]

            def place(chunk: Ints) -> Ints:
                places: Ints = self.first[:, None, None] + (chunk * self.step)[:, None]
                return (places + self.spread).reshape(-1)

            def each(values: NDArray[np.generic], like: Ints = src) -> NDArray[np.generic]:
                return np.repeat(np.broadcast_to(values, like.shape).reshape(-1), len(self.spread))

            yield Moves(
                each(src).astype(np.int64, copy=False),
                each(dst).astype(np.int64, copy=False),
                place(m.chunk),
                place(m.to),
                each(m.reduce).astype(np.bool_, copy=False),
            )


@dataclass(frozen=True, eq=False)
class Plan:
    """The transfers of one collective, round by round."""

    collective: str
    """Its collective, a key of `simdp.collectives.FAMILIES`."""
    world_size: int
    """Ranks."""
    num_chunks: int
    """Chunks of the buffer."""
    root: int
    """Root rank, if the collective has one."""
    rounds: Callable[[], Iterator[Round]]
    """Starts the rounds from the beginning; a plan of parts has none."""
    offsets: Offsets
    """``offsets(num_elements, itemsize)``: the begin of each chunk in a buffer, and the end of the
    last one, shape `(num_chunks + 1,)`."""
    order: Order = "chunk"
    """Dependencies of a transfer. ``chunk``: all earlier arrivals in the chunk at its source.
    ``rank``: every rank takes part in one round after the other, as with MPI's sendrecv; both ranks
    must have finished their transfers of earlier rounds. ``ring``: as ``chunk``, and every rank
    sends one chunk to the same rank in every round, the one that it received ``slices`` rounds ago.
    ``chain``: as ``chunk``, and every chunk goes from the first vertex of ``route`` to the last
    one, all in the same order."""
    slices: int = 1
    """Pieces of every chunk of a ring, which follow each other."""
    route: Ints | None = None
    """The vertices of a chain, or of a ring, in the order of the chunks' path. None without such an
    order, or if a ring's first round gives it."""
    num_scratch: int = 0
    """Temporary chunks of every rank beyond ``num_chunks``. The first ``num_chunks`` of them are
    the result of an all_to_all, which keeps its input."""
    num_switches: int = 0
    """Vertices beyond the ranks."""
    parts: tuple[SubPlan, ...] = ()
    """Its component plans, if composed."""

    @property
    def num_vertices(self) -> int:
        """Ranks and switches."""
        return self.world_size + self.num_switches

    @property
    def num_slots(self) -> int:
        """Chunks of a rank, with scratch."""
        return self.num_chunks + self.num_scratch

    @cached_property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return sum(1 for _ in self.rounds())

    @cached_property
    def everything(self) -> tuple[SubPlan, ...]:
        """The parts, or the plan itself as the only one."""
        zero = np.zeros(1, dtype=np.int64)
        return self.parts or (
            SubPlan(self, np.arange(self.num_vertices)[None, :], zero, 1, zero, ()),
        )

    def moves(self) -> Iterator[Moves]:
        """Yield moves round by round, part by part."""
        for part in self.parts:
            yield from part.moves()
        for transfers in self.rounds():
            yield expand(transfers)

    @cached_property
    def sends_per_rank(self) -> Ints:
        """Chunks sent by each rank, shape `(world_size,)`."""
        return self._per_vertex(np.ones(1, dtype=np.int64))[: self.world_size]

    @cached_property
    def num_transfers(self) -> int:
        """Transfers of the whole plan."""
        if self.parts:
            return sum(len(part.members) * part.plan.num_transfers for part in self.parts)
        if self.order == "ring":
            return self.num_rounds * self.world_size
        if self.order == "chain":
            return self.num_chunks * (self.world_size - 1)
        return sum(len(transfers.src) for transfers in self.rounds())

    def _per_vertex(self, scale: Ints) -> Ints:
        sends = np.zeros(self.num_vertices, dtype=np.int64)
        for part in self.parts:
            of_place = part.plan._per_vertex(scale) * len(part.spread)
            # NumPy 2.4 reads past the end of the repeated array here.
            np.add.at(sends, part.members, np.broadcast_to(of_place, part.members.shape))
        if self.order == "ring":
            return np.full(self.world_size, self.num_rounds, dtype=np.int64)
        if self.order == "chain":
            assert self.route is not None
            sends[self.route[:-1]] = self.num_chunks
            return sends
        for transfers in self.rounds():
            away = transfers.src != transfers.dst  # local copies are not sent
            np.add.at(sends, transfers.src, away * transfers.num_chunks)
        return sends


def even_offsets(num_chunks: int) -> Offsets:
    """Return offsets of chunks with numbers of elements that differ by at most one."""

    def offsets(num_elements: int, itemsize: int) -> Ints:
        return np.arange(num_chunks + 1, dtype=np.int64) * num_elements // num_chunks

    return offsets


# Parts --------------------------------------------------------------------------------------------

NO_SPREAD = np.zeros(1, dtype=np.int64)


class Assembly:
    """Collects the parts of a plan; parts of added plans are added one by one."""

    def __init__(self) -> None:
        self.parts: list[SubPlan] = []

    def add(
        self,
        plan: Plan,
        members: Ints,
        first: Ints,
        step: int = 1,
        spread: Ints = NO_SPREAD,
        after: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        """Add a plan for groups of ranks; arguments as in `SubPlan`.

        Returns
        -------
        tuple of int
            The last parts of the plan, for ``after`` of later parts.
        """
        begin = len(self.parts)
        for part in plan.everything:
            places = members[:, part.members].reshape(-1, part.members.shape[1])
            starts = (first[:, None] + part.first * step).reshape(-1)
            wide = (part.spread[:, None] * step + spread).reshape(-1)
            earlier = tuple(begin + number for number in part.after) or after
            self.parts.append(SubPlan(part.plan, places, starts, part.step * step, wide, earlier))
        inner = {number for part in plan.everything for number in part.after}
        return tuple(begin + i for i in range(len(plan.everything)) if i not in inner)


def in_slices(stages: list[SubPlan], slices: int) -> tuple[SubPlan, ...]:
    """Cut parts into slices that follow each other."""
    if slices == 1:
        return tuple(stages)
    count = len(stages)
    sub_plans = []
    # In the order in which they run if all take as long: stage s of slice k in turn s + k.
    turns = sorted((s + k, k, s) for s in range(count) for k in range(slices))
    place = {(s, k): number for number, (_, k, s) in enumerate(turns)}
    for _, k, s in turns:
        part = stages[s]
        after = [place[earlier, k] for earlier in part.after]
        if k:
            after.append(place[s, k - 1])
        first, step, spread = part.first * slices + k, part.step * slices, part.spread * slices
        sub_plans.append(SubPlan(part.plan, part.members, first, step, spread, tuple(after)))
    return tuple(sub_plans)


def in_groups(plan: Plan, groups: Ints, world_size: int | None = None) -> Plan:
    """Return the plan of several disjoint process groups that run the same plan at the same time.

    ``plan`` has no switches; ``groups``, shape `(num_groups, plan.world_size)`, are the ranks of
    each group; others of ``world_size`` ranks are idle.
    """
    assert not plan.num_switches
    parts = Assembly()
    parts.add(plan, groups, np.zeros(len(groups), dtype=np.int64))
    return Plan(
        collective=plan.collective,
        world_size=groups.size if world_size is None else world_size,
        num_chunks=plan.num_chunks,
        root=int(groups[0, plan.root]),
        rounds=lambda: iter(()),
        offsets=plan.offsets,
        num_scratch=plan.num_scratch,
        parts=tuple(parts.parts),
    )


# Slicing ------------------------------------------------------------------------------------------


def _slice(transfers: Round, number: int, slices: int) -> Round:
    """Return the transfers of a round for one slice of every chunk."""
    chunk = transfers.chunk * slices + number
    to = None if transfers.to is None else transfers.to * slices + number
    return transfers._replace(chunk=chunk, to=to, stride=transfers.stride * slices)


def in_turn(rounds: Iterator[Round], slices: int) -> Iterator[Round]:
    """Yield every round slice by slice."""
    for transfers in rounds:
        for number in range(slices):
            yield _slice(transfers, number, slices)


def behind(rounds: Iterator[Round], slices: int) -> Iterator[Round]:
    """Yield rounds in which every slice is one round behind the previous one."""
    under_way: list[tuple[int, Round]] = []
    ahead = iter(rounds)
    while True:
        under_way = [(number + 1, r) for number, r in under_way if number + 1 < slices]
        entering = next(ahead, None)
        if entering is not None:
            under_way.append((0, entering))
        if not under_way:
            return
        yield _join([_slice(transfers, number, slices) for number, transfers in under_way])


def _join(rounds: list[Round]) -> Round:
    """Merge rounds of equal strides into one."""
    if len(rounds) == 1:
        return rounds[0]
    strides = {
        r.stride for r in rounds if not (isinstance(r.num_chunks, int) and r.num_chunks == 1)
    }
    assert len(strides) <= 1, "rounds of one algorithm with different strides"
    return Round(
        np.concatenate([r.src for r in rounds]),
        np.concatenate([r.dst for r in rounds]),
        np.concatenate([r.chunk for r in rounds]),
        np.concatenate([np.broadcast_to(r.reduce, r.src.shape) for r in rounds]),
        np.concatenate([r.chunk if r.to is None else r.to for r in rounds]),
        np.concatenate([np.broadcast_to(r.num_chunks, r.src.shape) for r in rounds]),
        strides.pop() if strides else 1,
        np.concatenate([np.broadcast_to(r.channel, r.src.shape) for r in rounds]),
    )


# Ledger -------------------------------------------------------------------------------------------

Bits = NDArray[np.uint64]

NOTHING = -1
"""The piece of an empty chunk."""


def prove(plan: Plan) -> None:
    """Prove that a plan computes its collective.

    Memory is `num_vertices * num_slots * world_size` bits.

    Raises
    ------
    PlanError
        With the round, rank and chunk in which a contribution is sent before it arrives, counted
        twice, or missing at the end.
    """
    held, piece = _initial(plan)
    for number, moves in enumerate(plan.moves()):
        _apply(plan, held, piece, number, moves)
    for rank in range(plan.world_size):
        _check_final(plan, held[rank], piece[rank], rank)


def _token(plan: Plan, rank: int) -> Bits:
    words = np.zeros((plan.world_size + 63) // 64, dtype=np.uint64)
    words[rank // 64] = np.uint64(1 << (rank % 64))
    return words


def _tokens(plan: Plan) -> Bits:
    """Return one token per rank, shape `(world_size, words)`."""
    return np.stack([_token(plan, rank) for rank in range(plan.world_size)])


def _pieces(plan: Plan) -> Ints:
    """Return the owner of each chunk of the buffer."""
    return np.arange(plan.num_chunks) * plan.world_size // plan.num_chunks


def _initial(plan: Plan) -> tuple[Bits, Ints]:
    n, chunks, token = plan.world_size, plan.num_chunks, _tokens(plan)
    held = np.zeros((plan.num_vertices, plan.num_slots, token.shape[1]), dtype=np.uint64)
    piece = np.full((plan.num_vertices, plan.num_slots), NOTHING)
    there = np.ones((n, chunks), dtype=bool)
    if plan.collective in ("broadcast", "scatter"):
        there[np.arange(n) != plan.root] = False
    elif plan.collective in ("all_gather", "gather"):
        there = _pieces(plan) == np.arange(n)[:, None]
    ranks, slots = np.nonzero(there)
    held[ranks, slots], piece[ranks, slots] = token[ranks], slots
    if plan.collective == "all_to_all":  # a rank's piece for itself is in place
        ranks, slots = np.nonzero(_pieces(plan) == np.arange(n)[:, None])
        held[ranks, chunks + slots], piece[ranks, chunks + slots] = token[ranks], slots
    return held, piece


def _apply(plan: Plan, held: Bits, piece: Ints, number: int, moves: Moves) -> None:
    src, dst, chunk, to, reduce = moves
    _check_places(plan, number, moves)
    sent, sent_piece = held[src, chunk], piece[src, chunk]  # as they were before the round
    for i in np.flatnonzero(~sent.any(axis=1)):
        raise PlanError(
            f"{plan.collective}: in round {number} rank {src[i]} sends chunk {chunk[i]} to rank "
            f"{dst[i]} before it holds any of it."
        )
    target = dst * plan.num_slots + to
    alone = np.unique(target).size == target.size
    groups = [np.arange(len(src))] if alone else [np.array([i]) for i in range(len(src))]
    for group in groups:
        rank, slot, adds = dst[group], to[group], reduce[group]
        doubled = (held[rank, slot] & sent[group]).any(axis=1) & adds
        for i in np.flatnonzero(doubled):
            raise PlanError(
                f"{plan.collective}: in round {number} rank {rank[i]} adds to chunk {slot[i]} a "
                "contribution that it holds already; it would be counted twice."
            )
        mine = piece[rank, slot]
        mixed = adds & (mine != sent_piece[group]) & (mine != NOTHING)
        for i in np.flatnonzero(mixed):
            raise PlanError(
                f"{plan.collective}: in round {number} rank {rank[i]} adds piece "
                f"{sent_piece[group][i]} of the buffer to chunk {slot[i]}, which holds piece "
                f"{mine[i]}."
            )
        kept = np.where(adds[:, None], held[rank, slot], np.uint64(0))
        held[rank, slot], piece[rank, slot] = kept | sent[group], sent_piece[group]


def _check_places(plan: Plan, number: int, moves: Moves) -> None:
    src, dst, chunk, to, _ = moves
    outside = (
        (np.minimum(src, dst) < 0)
        | (np.maximum(src, dst) >= plan.num_vertices)
        | ((src == dst) & (chunk == to))
        | (np.minimum(chunk, to) < 0)
        | (np.maximum(chunk, to) >= plan.num_slots)
    )
    for i in np.flatnonzero(outside):
        raise PlanError(
            f"{plan.collective}: round {number} sends chunk {chunk[i]} from rank {src[i]} to rank "
            f"{dst[i]}, outside {plan.num_vertices} ranks and {plan.num_slots} chunks."
        )


def _check_final(plan: Plan, held: Bits, piece: Ints, rank: int) -> None:
    slots, tokens, pieces = _due(plan, rank)
    lacking = (held[slots] != tokens).any(axis=1)
    for i in np.flatnonzero(lacking):
        missing = int(np.bitwise_count(tokens[i] & ~held[slots[i]]).sum())
        count = int(np.bitwise_count(tokens[i]).sum())
        raise PlanError(
            f"{plan.collective}: rank {rank} ends with an incomplete chunk "
            f"{slots[i]}: {missing} of {count} contributions are missing."
        )
    for i in np.flatnonzero(piece[slots] != pieces):
        raise PlanError(
            f"{plan.collective}: rank {rank} ends with piece {piece[slots[i]]} of the buffer in "
            f"chunk {slots[i]}, where piece {pieces[i]} should be."
        )


def _due(plan: Plan, rank: int) -> tuple[Ints, Bits, Ints]:
    """Return a rank's final chunks, their tokens, and their pieces."""
    chunks, owner, token = np.arange(plan.num_chunks), _pieces(plan), _tokens(plan)
    everyone = np.bitwise_or.reduce(token, axis=0)
    collective, mine = plan.collective, chunks[owner == rank]
    if collective in ("reduce", "gather") and rank != plan.root:
        chunks = chunks[:0]
    if collective in ("reduce_scatter", "scatter"):
        chunks = mine
    if collective in ("all_gather", "gather"):
        return chunks, token[owner[chunks]], chunks
    if collective == "all_to_all":
        pieces = np.tile(mine, plan.world_size)  # the same piece of every rank's buffer
        return plan.num_chunks + chunks, token[owner], pieces
    source = token[plan.root] if collective in ("broadcast", "scatter") else everyone
    return chunks, np.broadcast_to(source, (len(chunks), len(source))), chunks
