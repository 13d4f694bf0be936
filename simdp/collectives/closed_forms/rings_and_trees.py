"""Alpha-beta formulas: the oracle of the tests and the dashed line of the plots.

Rings, trees and the naive way; `exchanges` has those in which ranks exchange in pairs.

Equal, uncontended links; alpha is the latency of a transfer over its whole route [s], beta the
inverse bandwidth [s/byte], S the buffer [bytes], n the number of ranks. Every function returns
seconds, 0 for one rank, and raises ValueError for a world_size below 1.
"""

from __future__ import annotations

from simdp.collectives.tree import depth


def check_world_size(world_size: int) -> None:
    """Refuse numbers of ranks that make no sense.

    Raises
    ------
    ValueError
        If ``world_size < 1``.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1, got {world_size}")


def _ways(world_size: int) -> int:
    """How many ways around a ring there are, and trees below a root: two ranks have only one."""
    return 1 if world_size <= 2 else 2


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
    check_world_size(world_size)
    return 2 * (world_size - 1) * (alpha + beta * nbytes / world_size)


def ring_reduce_scatter_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of a ring reduce_scatter or all_gather: ``(n - 1) (alpha + beta S / n)`` [s]."""
    check_world_size(world_size)
    return (world_size - 1) * (alpha + beta * nbytes / world_size)


def ring_broadcast_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of a pipelined chain: ``(n - 2 + C) (alpha + beta S / C)`` with C chunks [s]."""
    check_world_size(world_size)
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
    check_world_size(world_size)
    rounds = 2 * depth(world_size) - 1 + num_chunks
    return rounds * (alpha + beta * nbytes / num_chunks) * (world_size > 1)


def tree_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of one way of the tree: ``(floor(log2 n) - 1 + C) (alpha + beta S / C)`` [s]."""
    check_world_size(world_size)
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
    check_world_size(world_size)
    flows = world_size - 1 if sharing else 1
    return 2 * (alpha + beta * nbytes * flows) * (world_size > 1)


def double_binary_tree_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of a reduce or broadcast over two trees at once.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`; all ranks in one node.
    num_chunks : int
        Chunks of each tree, C.

    Returns
    -------
    float
        ``(ceil(log2 n) - 1 + C) (alpha + beta S / (2 C))`` [s]; two ranks have one tree only, which
        takes all of S.

    References
    ----------
    Sanders, Speck and Traeff, Parallel Computing 35(12), 2009.
    """
    check_world_size(world_size)
    rounds, share = (world_size - 1).bit_length() - 1 + num_chunks, nbytes / _ways(world_size)
    return rounds * (alpha + beta * share / num_chunks) * (world_size > 1)


def double_binary_tree_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of an all_reduce over two trees at once, each on links of its own.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`; all ranks in one node.
    num_chunks : int
        Chunks of each tree, C.

    Returns
    -------
    float
        ``(2 ceil(log2 n) - 1 + C) (alpha + beta S / (2 C))`` [s]. In a full mesh two ranks may be
        child and parent in one tree and parent and child in the other. The sums of one tree then
        meet the results of the other on their link: only one chunk (C = 1) takes exactly this time,
        many take up to twice as long.
    """
    check_world_size(world_size)
    rounds = 2 * (world_size - 1).bit_length() - 1 + num_chunks
    return rounds * (alpha + beta * nbytes / (2 * num_chunks)) * (world_size > 1)


def multi_ring_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float, channels: int
) -> float:
    """Time of rings at once on links of their own: ``2 (n - 1) (alpha + beta S / (n k))`` [s].

    k stands for ``channels``; the other arguments are those of `ring_all_reduce_time`.
    """
    return ring_all_reduce_time(nbytes / channels, world_size, alpha, beta)


def multi_ring_reduce_scatter_time(
    nbytes: float, world_size: int, alpha: float, beta: float, channels: int
) -> float:
    """Time of a reduce_scatter or all_gather: ``(n - 1) (alpha + beta S / (n k))`` [s]."""
    return ring_reduce_scatter_time(nbytes / channels, world_size, alpha, beta)


def bidirectional_ring_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of a ring each way: ``2 (n - 1) (alpha + beta S / (2 n))`` [s]; n = 2 has one way."""
    return ring_all_reduce_time(nbytes / _ways(world_size), world_size, alpha, beta)


def bidirectional_ring_reduce_scatter_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of a reduce_scatter or all_gather each way: ``(n - 1) (alpha + beta S / (2 n))`` [s]."""
    return ring_reduce_scatter_time(nbytes / _ways(world_size), world_size, alpha, beta)


def bidirectional_ring_broadcast_time(
    nbytes: float, world_size: int, alpha: float, beta: float, num_chunks: int
) -> float:
    """Time of a chain each way, C chunks in each: ``(n - 2 + C) (alpha + beta S / (2 C))`` [s]."""
    return ring_broadcast_time(nbytes / _ways(world_size), world_size, alpha, beta, num_chunks)
