"""The static proof of a plan: every contribution is counted exactly once, nothing is missing.

Rank r contributes the token r. The ledger keeps, for every vertex and chunk, the set of tokens that
its copy holds and which piece of the buffer it is a copy of, and plays the moves on them: a copy
replaces, a reduction unites two sets that must not have a token in common and must be of one piece.
No data, no time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Ints
from simdp.collectives.plans.plan import Moves, Plan
from simdp.errors import PlanError

Bits = NDArray[np.uint64]

NOTHING = -1
"""The piece that an empty chunk holds."""


def prove(plan: Plan) -> None:
    """Prove that a plan does what its collective promises.

    Parameters
    ----------
    plan : Plan
        Of any size; memory is `num_vertices * num_slots * world_size` bits.

    Raises
    ------
    PlanError
        Naming the round, rank and chunk where a contribution is sent before it is there, counted
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
    """One token of every rank, shape `(world_size, words)`."""
    return np.stack([_token(plan, rank) for rank in range(plan.world_size)])


def _pieces(plan: Plan) -> Ints:
    """Which rank's piece each chunk of the buffer is, where every rank has one."""
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
    if plan.collective == "all_to_all":  # what a rank sends to itself is at its place
        ranks, slots = np.nonzero(_pieces(plan) == np.arange(n)[:, None])
        held[ranks, chunks + slots], piece[ranks, chunks + slots] = token[ranks], slots
    return held, piece


def _apply(plan: Plan, held: Bits, piece: Ints, number: int, moves: Moves) -> None:
    src, dst, chunk, to, reduce = moves
    _check_places(plan, number, moves)
    sent, what = held[src, chunk], piece[src, chunk]  # as they were before the round
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
        mixed = adds & (mine != what[group]) & (mine != NOTHING)
        for i in np.flatnonzero(mixed):
            raise PlanError(
                f"{plan.collective}: in round {number} rank {rank[i]} adds piece "
                f"{what[group][i]} of the buffer to chunk {slot[i]}, which holds piece {mine[i]}."
            )
        kept = np.where(adds[:, None], held[rank, slot], np.uint64(0))
        held[rank, slot], piece[rank, slot] = kept | sent[group], what[group]


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
            f"{plan.collective}: rank {rank} ends without what it should have of chunk "
            f"{slots[i]}: {missing} of {count} contributions are missing."
        )
    for i in np.flatnonzero(piece[slots] != pieces):
        raise PlanError(
            f"{plan.collective}: rank {rank} ends with piece {piece[slots[i]]} of the buffer in "
            f"chunk {slots[i]}, where piece {pieces[i]} should be."
        )


def _due(plan: Plan, rank: int) -> tuple[Ints, Bits, Ints]:
    """Chunks that a rank must end with, the tokens in each, and the piece that each is."""
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
