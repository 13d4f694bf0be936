"""The static proof of a plan: every contribution is counted exactly once, nothing is missing.

Rank r contributes the token r. The ledger keeps, for every rank and chunk, the set of tokens that
its copy holds, and plays the rounds on these sets: a copy replaces a set, a reduction unites two
sets that must not have a token in common. No data, no time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simdp.collectives.base import Plan, Round
from simdp.errors import PlanError

Bits = NDArray[np.uint64]


def prove(plan: Plan) -> None:
    """Prove that a plan does what its collective promises.

    Parameters
    ----------
    plan : Plan
        Of any size; memory is `world_size * num_chunks * world_size` bits.

    Raises
    ------
    PlanError
        Naming the round, rank and chunk where a contribution is sent before it is there, counted
        twice, or missing at the end.
    """
    held = _initial(plan)
    for number, transfers in enumerate(plan.rounds()):
        _apply(plan, held, number, transfers)
    _check_final(plan, held)


def _tokens(plan: Plan, ranks: list[int]) -> Bits:
    words = np.zeros((plan.world_size + 63) // 64, dtype=np.uint64)
    for rank in ranks:
        words[rank // 64] |= np.uint64(1 << (rank % 64))
    return words


def _initial(plan: Plan) -> Bits:
    n, chunks = plan.world_size, plan.num_chunks
    held = np.zeros((n, chunks, (n + 63) // 64), dtype=np.uint64)
    for rank in range(n):
        token = _tokens(plan, [rank])
        match plan.collective:
            case "broadcast" | "scatter":
                if rank == plan.root:
                    held[rank] = token
            case "all_gather" | "gather":
                held[rank, rank] = token
            case _:
                held[rank] = token
    return held


def _apply(plan: Plan, held: Bits, number: int, transfers: Round) -> None:
    src, dst, chunk = transfers.src, transfers.dst, transfers.chunk
    reduce = np.broadcast_to(transfers.reduce, src.shape)
    outside = (
        (np.minimum(src, dst) < 0)
        | (np.maximum(src, dst) >= plan.world_size)
        | (src == dst)
        | (chunk < 0)
        | (chunk >= plan.num_chunks)
    )
    for i in np.flatnonzero(outside):
        raise PlanError(
            f"{plan.collective}: round {number} sends chunk {chunk[i]} from rank {src[i]} to rank "
            f"{dst[i]}, outside {plan.world_size} ranks and {plan.num_chunks} chunks."
        )
    sent = held[src, chunk].copy()  # all transfers of a round read what was there before it
    for i in np.flatnonzero(~sent.any(axis=1)):
        raise PlanError(
            f"{plan.collective}: in round {number} rank {src[i]} sends chunk {chunk[i]} to rank "
            f"{dst[i]} before it holds any of it."
        )
    target = dst * plan.num_chunks + chunk
    alone = np.unique(target).size == target.size
    groups = [np.arange(len(src))] if alone else [np.array([i]) for i in range(len(src))]
    for group in groups:
        to, what, adds = dst[group], chunk[group], reduce[group]
        doubled = (held[to, what] & sent[group]).any(axis=1) & adds
        for i in np.flatnonzero(doubled):
            raise PlanError(
                f"{plan.collective}: in round {number} rank {to[i]} adds to chunk {what[i]} a "
                "contribution that it holds already; it would be counted twice."
            )
        held[to, what] = np.where(adds[:, None], held[to, what] | sent[group], sent[group])


def _check_final(plan: Plan, held: Bits) -> None:
    n = plan.world_size
    everyone = _tokens(plan, list(range(n)))
    for rank in range(n):
        match plan.collective:
            case "reduce_scatter":
                chunks, wanted = [rank], [everyone]
            case "scatter":
                chunks, wanted = [rank], [_tokens(plan, [plan.root])]
            case "broadcast":
                chunks, wanted = list(range(plan.num_chunks)), [_tokens(plan, [plan.root])]
            case "all_gather":
                chunks = list(range(n))
                wanted = [_tokens(plan, [c]) for c in chunks]
            case "gather":
                chunks = list(range(n)) if rank == plan.root else []
                wanted = [_tokens(plan, [c]) for c in chunks] or [everyone]
            case "reduce":
                chunks = list(range(plan.num_chunks)) if rank == plan.root else []
                wanted = [everyone]
            case _:
                chunks, wanted = list(range(plan.num_chunks)), [everyone]
        due = np.broadcast_to(np.stack(wanted), held[rank, chunks].shape)
        for i in np.flatnonzero((held[rank, chunks] != due).any(axis=1)):
            missing = int(np.bitwise_count(due[i] & ~held[rank, chunks[i]]).sum())
            raise PlanError(
                f"{plan.collective}: rank {rank} ends without what it should have of chunk "
                f"{chunks[i]}: {missing} of {int(np.bitwise_count(due[i]).sum())} contributions "
                "are missing."
            )
