"""Exchanges between ranks whose places differ in one bit, for any number of ranks.

Only a power of two of ranks, the core, takes part in them. Where there are more, every second one
of the first ranks stands aside: the rank before it speaks for it, as in MPICH. A part of the buffer
that a rank holds is always one range of chunks, so that it travels as one transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import Round


class Core(NamedTuple):
    """Who takes part in the exchanges.

    Attributes
    ----------
    ranks : ndarray, int64, shape `(p,)`
        The rank at each place; p is the largest power of two that is not above the number of ranks.
    starts : ndarray, int64, shape `(p + 1,)`
        Where the chunks of each place begin, if every rank has one: its own, and that of the rank
        that it speaks for.
    helpers, aside : ndarray, int64, shape `(world_size - p,)`
        The ranks that speak for others, and those others.
    """

    ranks: Ints
    starts: Ints
    helpers: Ints
    aside: Ints


def core_of(world_size: int) -> Core:
    """Choose who takes part among ``world_size`` ranks."""
    num_places = 1 << (world_size.bit_length() - 1)
    num_aside = world_size - num_places
    helpers = 2 * np.arange(num_aside)
    ranks = np.concatenate([helpers, np.arange(2 * num_aside, world_size)])
    return Core(ranks, np.append(ranks, world_size), helpers, helpers + 1)


def upwards(num_places: int) -> list[int]:
    """Distances of the exchanges, from the nearest place to the farthest: 1, 2, ..., p / 2."""
    return [1 << bit for bit in range(num_places.bit_length() - 1)]


def downwards(num_places: int) -> list[int]:
    """Distances from the farthest place to the nearest: p / 2, ..., 2, 1."""
    return upwards(num_places)[::-1]


def _lows(num_places: int, distances: list[int]) -> list[Ints]:
    """Where each place's range begins, before the first halving and after each one."""
    place, size = np.arange(num_places), num_places
    lows = [np.zeros(num_places, dtype=np.int64)]
    for distance in distances:
        size //= 2
        lows.append(lows[-1] + size * (place & distance > 0))
    return lows


def _send(
    ranks: Ints, starts: Ints, src: Ints, dst: Ints, low: Ints, size: int, reduce: bool
) -> Round:
    """Places ``src`` send the chunks of ``size`` places from ``low`` on."""
    count = starts[low + size] - starts[low]
    return Round(ranks[src], ranks[dst], starts[low], reduce, num_chunks=count)


def halve(ranks: Ints, starts: Ints, distances: list[int]) -> Iterator[Round]:
    """Reduce-scatter: each place keeps half of its range and gives the other to its partner.

    Parameters
    ----------
    ranks, starts
        As in `Core`.
    distances : list of int
        Which bit tells the partners of each round apart; every one of `upwards` once.

    Yields
    ------
    Round
        After the last one every place has the sum of its own chunks; with the distances
        `downwards` these are its chunks in `starts`.
    """
    place, lows = np.arange(len(ranks)), _lows(len(ranks), distances)
    for step, distance in enumerate(distances):
        partner, size = place ^ distance, len(ranks) >> (step + 1)
        yield _send(ranks, starts, place, partner, lows[step + 1][partner], size, True)


def double(
    ranks: Ints, starts: Ints, distances: list[int], handed_out: bool = False
) -> Iterator[Round]:
    """All-gather, the way of `halve` back: partners give each other all that they have.

    After `hand_out` a place gets nothing back that it has handed out and still has.
    """
    place, lows = np.arange(len(ranks)), _lows(len(ranks), distances)
    for step in range(len(distances) - 1, -1, -1):
        distance, size = distances[step], len(ranks) >> (step + 1)
        src = place[(place ^ distance) % (2 * distance) > 0] if handed_out else place
        yield _send(ranks, starts, src, src ^ distance, lows[step + 1][src], size, False)


def hand_out(ranks: Ints, starts: Ints, distances: list[int]) -> Iterator[Round]:
    """Scatter from place 0 along a binomial tree, with the distances `downwards`."""
    lows = _lows(len(ranks), distances)
    for step, distance in enumerate(distances):
        giver = np.arange(0, len(ranks), 2 * distance)
        taker, size = giver + distance, len(ranks) >> (step + 1)
        yield _send(ranks, starts, giver, taker, lows[step + 1][taker], size, False)


def collect(ranks: Ints, starts: Ints, distances: list[int]) -> Iterator[Round]:
    """Gather at place 0, the way of `hand_out` back."""
    lows = _lows(len(ranks), distances)
    for step in range(len(distances) - 1, -1, -1):
        giver = np.arange(distances[step], len(ranks), 2 * distances[step])
        taker, size = giver - distances[step], len(ranks) >> (step + 1)
        yield _send(ranks, starts, giver, taker, lows[step + 1][giver], size, False)
