"""Alpha-beta formulas of algorithms that work on levels, or let switches add.

As in `simdp.collectives.closed_forms`: equal, uncontended links on each level, seconds, and
ValueError for counts below 1. A route through a switch that adds ends there, so that alpha is that
of one link.
"""

from __future__ import annotations

from simdp.collectives.closed_forms.rings_and_trees import (
    ring_all_reduce_time,
    ring_reduce_scatter_time,
)

Wire = tuple[float, float]
"""Latency of a transfer [s], and inverse bandwidth [s/byte]."""


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be >= 1, got {count}")


def hierarchical_all_reduce_time(
    nbytes: float, num_nodes: int, per_node: int, inside: Wire, across: Wire
) -> float:
    """Time of rings inside the nodes and on every rail.

    Parameters
    ----------
    nbytes : float
        Buffer on each rank, S [bytes].
    num_nodes, per_node : int
        Nodes N, and ranks in each, m.
    inside, across : (float, float)
        Alpha and beta of either level.

    Returns
    -------
    float
        ``2 (m - 1) (alpha_i + beta_i S / m) + 2 (N - 1) (alpha_a + beta_a S / (m N))`` [s].

    References
    ----------
    Cho et al., "BlueConnect", MLSys 2019.
    """
    _check(num_nodes=num_nodes, per_node=per_node)
    stages = 2 * ring_reduce_scatter_time(nbytes, per_node, *inside)
    return stages + ring_all_reduce_time(nbytes / per_node, num_nodes, *across)


def hierarchical_reduce_scatter_time(
    nbytes: float, num_nodes: int, per_node: int, inside: Wire, across: Wire
) -> float:
    """Time of a reduce_scatter or all_gather by rings on both levels: half of an all_reduce [s]."""
    return hierarchical_all_reduce_time(nbytes, num_nodes, per_node, inside, across) / 2


def hierarchical_all_to_all_time(
    nbytes: float, num_nodes: int, per_node: int, inside: Wire, across: Wire
) -> float:
    """Time of an exchange inside and one across, where every pair has links of its own.

    Returns
    -------
    float
        ``(alpha_i + beta_i S / m) [m > 1] + (alpha_a + beta_a S / N) [N > 1]`` [s].
    """
    _check(num_nodes=num_nodes, per_node=per_node)
    first = (inside[0] + inside[1] * nbytes / per_node) * (per_node > 1)
    return first + (across[0] + across[1] * nbytes / num_nodes) * (num_nodes > 1)


def torus2d_all_reduce_time(
    nbytes: float, rows: int, columns: int, alpha: float, beta: float, both_ways: bool = False
) -> float:
    """Time of rings along the rows and columns of a grid.

    Parameters
    ----------
    nbytes : float
        Buffer on each rank, S [bytes].
    rows, columns : int
        R and C; equal with ``both_ways``, where either half finds its links free.
    alpha, beta : float
        Latency of a transfer [s]; inverse bandwidth [s/byte].
    both_ways : bool
        Whether each order serves one half of the buffer.

    Returns
    -------
    float
        ``2 (C - 1) (alpha + beta S / C) + 2 (R - 1) (alpha + beta S / (C R))``, of S / 2 with
        ``both_ways`` [s].

    Raises
    ------
    ValueError
        If ``rows < 1`` or ``columns < 1``, or they differ with ``both_ways``.
    """
    if both_ways and rows != columns:
        raise ValueError(f"both_ways needs a square grid, got {rows} x {columns}")
    share = nbytes / 2 if both_ways else nbytes
    return hierarchical_all_reduce_time(share, rows, columns, (alpha, beta), (alpha, beta))


def nvls_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_cuts: int
) -> float:
    """Time of fetching sums from a switch and writing them back through it.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `simdp.collectives.closed_forms.ring_all_reduce_time`; ``alpha`` of one link.
    num_cuts : int
        Cuts of every rank's piece, k, that follow each other.

    Returns
    -------
    float
        With ``a = alpha + beta S / k`` for what everyone sends or gets, and
        ``b = alpha + beta S / (k n)`` for the own piece: ``2 (a + b)`` for one cut, else
        ``(k + 2) a + (k - 1) b`` [s]. For large k that is ``beta S (1 + 1/n)``.
    """
    _check(world_size=world_size, num_cuts=num_cuts)
    if world_size == 1:
        return 0.0
    whole = alpha + beta * nbytes / num_cuts
    own = alpha + beta * nbytes / (num_cuts * world_size)
    if num_cuts == 1:
        return 2 * (whole + own)
    return (num_cuts + 2) * whole + (num_cuts - 1) * own


def nvls_reduce_scatter_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_cuts: int
) -> float:
    """Time of fetching sums, or of writing pieces to everyone: ``k a + b``, as above [s]."""
    _check(world_size=world_size, num_cuts=num_cuts)
    whole = alpha + beta * nbytes / num_cuts
    own = alpha + beta * nbytes / (num_cuts * world_size)
    return (num_cuts * whole + own) * (world_size > 1)


def switch_tree_time(
    nbytes: float, num_hops: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of chunks that follow each other over the links of a tree of switches.

    Parameters
    ----------
    nbytes : float
        Buffer, S [bytes].
    num_hops : int
        Links on the longest way, h: up and down for an all_reduce, from the root to the farthest
        rank for a broadcast.
    alpha, beta : float
        Latency of a link [s]; inverse bandwidth [s/byte].
    num_chunks : int
        Chunks, C.

    Returns
    -------
    float
        ``(h - 1 + C) (alpha + beta S / C)`` [s].
    """
    _check(num_hops=num_hops, num_chunks=num_chunks)
    return (num_hops - 1 + num_chunks) * (alpha + beta * nbytes / num_chunks)
