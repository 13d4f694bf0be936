"""Slicing: the rounds of an algorithm for chunks that are cut into slices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simdp.collectives.plans.plan import Round


def _slice(transfers: Round, number: int, slices: int) -> Round:
    """What a round moves of one slice of every chunk."""
    chunk = transfers.chunk * slices + number
    to = None if transfers.to is None else transfers.to * slices + number
    return transfers._replace(chunk=chunk, to=to, stride=transfers.stride * slices)


def in_turn(rounds: Iterator[Round], slices: int) -> Iterator[Round]:
    """Every round slice by slice."""
    for transfers in rounds:
        for number in range(slices):
            yield _slice(transfers, number, slices)


def behind(rounds: Iterator[Round], slices: int) -> Iterator[Round]:
    """Every slice one round behind the slice before it."""
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
    """One round of all transfers of several, whose strides are equal."""
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
