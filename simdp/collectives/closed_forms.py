"""Alpha-beta formulas: the oracle of the tests and the dashed line of the plots.

Equal, uncontended links; alpha is the latency of a transfer over its whole route [s], beta the
inverse bandwidth [s/byte], S the buffer [bytes], n the number of ranks. Every function returns
seconds, 0 for one rank, and raises ValueError for a world_size below 1.
"""

from __future__ import annotations

from simdp.collectives.tree import depth


def _check(world_size: int) -> None:
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1, got {world_size}")


def ring_all_reduce_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of a ring all_reduce.

    Parameters
    ----------
    nbytes : float
        Buffer on each rank, S [bytes].
    world_size : int
        Number of ranks, n.
    alpha, beta : float
        Latency of a transfer [s]; inverse bandwidth [s/byte].

    Returns
    -------
    float
        ``2 (n - 1) (alpha + beta S / n)`` [s].

    References
    ----------
    Patarasuk and Yuan, JPDC 69(2), 2009.
    """
    _check(world_size)
    return 2 * (world_size - 1) * (alpha + beta * nbytes / world_size)


def ring_reduce_scatter_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of a ring reduce_scatter or all_gather: ``(n - 1) (alpha + beta S / n)`` [s]."""
    _check(world_size)
    return (world_size - 1) * (alpha + beta * nbytes / world_size)


def ring_broadcast_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of a pipelined chain: ``(n - 2 + C) (alpha + beta S / C)`` with C chunks [s]."""
    _check(world_size)
    return (world_size - 2 + num_chunks) * (alpha + beta * nbytes / num_chunks) * (world_size > 1)


def tree_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of a pipelined binary tree, up and down, on links of its own for every edge.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`.
    num_chunks : int
        Chunks in the pipeline, C.

    Returns
    -------
    float
        ``(2 floor(log2 n) - 1 + C) (alpha + beta S / C)`` [s].
    """
    _check(world_size)
    rounds = 2 * depth(world_size) - 1 + num_chunks
    return rounds * (alpha + beta * nbytes / num_chunks) * (world_size > 1)


def tree_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of one way of the tree: ``(floor(log2 n) - 1 + C) (alpha + beta S / C)`` [s]."""
    _check(world_size)
    rounds = depth(world_size) - 1 + num_chunks
    return rounds * (alpha + beta * nbytes / num_chunks) * (world_size > 1)


def naive_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, sharing: bool
) -> float:
    """Time of everyone to rank 0 and back.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`; ``alpha`` counts every link of the route.
    sharing : bool
        Whether rank 0 has one port for all (a switch) or a link to each (a full mesh).

    Returns
    -------
    float
        ``2 (alpha + beta S k)`` with k = n - 1 if sharing, else 1 [s].
    """
    _check(world_size)
    flows = world_size - 1 if sharing else 1
    return 2 * (alpha + beta * nbytes * flows) * (world_size > 1)
