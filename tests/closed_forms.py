"""Alpha-beta formulas: how long collectives take over equal, uncontended links.

Alpha is the latency of a transfer over its whole route [s], beta the inverse bandwidth [s/byte], S
the buffer [bytes], n the number of ranks. Every function returns seconds, 0 for one rank, and
raises ValueError for counts below 1. At the end, first-order formulas of checkpoints.
"""

from __future__ import annotations

from simdp.collectives.tree import depth
from simdp.job.recovery import young


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


# Ranks that exchange in pairs, all in one node ---------------------------------------------------


def _num_aside(world_size: int) -> int:
    """How many ranks there are beyond the largest power of two."""
    return world_size - (1 << depth(world_size))


def recursive_doubling_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of a recursive doubling all_reduce or barrier.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`.

    Returns
    -------
    float
        ``(floor(log2 n) + 2 [n is no power of two]) (alpha + beta S)`` [s].

    References
    ----------
    Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    check_world_size(world_size)
    rounds = depth(world_size) + 2 * (_num_aside(world_size) > 0)
    return rounds * (alpha + beta * nbytes)


def recursive_doubling_all_gather_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of a recursive doubling all_gather.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`.

    Returns
    -------
    float
        ``log2 n alpha + beta S (n - 1) / n`` [s] where n is a power of two. Else, with p the power
        of two below n, the n - p ranks that stand aside send a piece at first and get the buffer at
        last, and in round k the first 2^k places send what they and those aside have:
        ``(log2 p + 2) alpha + beta S (1 + (1 + sum over k of 2^k + min(2^k, n - p)) / n)``.
    """
    check_world_size(world_size)
    aside, pieces, rounds = _num_aside(world_size), 0, depth(world_size)
    for k in range(rounds):
        pieces += 2**k + min(2**k, aside)
    if aside:
        pieces, rounds = pieces + 1 + world_size, rounds + 2
    return rounds * alpha + beta * nbytes * pieces / world_size


def halving_doubling_reduce_scatter_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of recursive halving, the way of `recursive_doubling_all_gather_time` back [s]."""
    return recursive_doubling_all_gather_time(nbytes, world_size, alpha, beta)


def halving_doubling_all_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of an all_reduce by recursive halving and doubling.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`.

    Returns
    -------
    float
        ``2 log2 p alpha + 2 beta S (p - 1) / p`` [s] with p the largest power of two up to n, and
        ``2 (alpha + beta S)`` more where n is another number.

    References
    ----------
    Rabenseifner, ICCS 2004.
    """
    once = halving_doubling_reduce_time(nbytes, world_size, alpha, beta)
    return once + (alpha + beta * nbytes) * (_num_aside(world_size) > 0)


def halving_doubling_reduce_time(
    nbytes: float, world_size: int, alpha: float, beta: float
) -> float:
    """Time of halving and a binomial gather, or of a binomial scatter and doubling.

    Parameters
    ----------
    nbytes, world_size, alpha, beta
        As in `ring_all_reduce_time`.

    Returns
    -------
    float
        As `halving_doubling_all_reduce_time`, but ``alpha + beta S`` more where n is no power of
        two, since the ranks that stand aside either send or receive [s].
    """
    check_world_size(world_size)
    aside, levels = _num_aside(world_size), depth(world_size)
    time = 2 * (levels * alpha + beta * nbytes * (1 - 0.5**levels))
    return time + (alpha + beta * nbytes) * (aside > 0)


def binomial_reduce_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of a binomial reduce or broadcast: ``ceil(log2 n) (alpha + beta S)`` [s]."""
    check_world_size(world_size)
    return (world_size - 1).bit_length() * (alpha + beta * nbytes)


def direct_all_reduce_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of a direct all_reduce over links between all pairs: ``2 (alpha + beta S / n)`` [s]."""
    return 2 * direct_reduce_scatter_time(nbytes, world_size, alpha, beta)


def direct_reduce_scatter_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of a direct reduce_scatter, all_gather or all_to_all: ``alpha + beta S / n`` [s]."""
    check_world_size(world_size)
    return (alpha + beta * nbytes / world_size) * (world_size > 1)


def pairwise_all_to_all_time(nbytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Time of n - 1 exchanges: ``(n - 1) (alpha + beta S / n)`` [s]."""
    check_world_size(world_size)
    return (world_size - 1) * (alpha + beta * nbytes / world_size)


# Levels, and switches that add: a route ends there, so that alpha is that of one link ------------


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
        As in `ring_all_reduce_time`; ``alpha`` of one link.
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


def daly_first_order(write: float, mttf: float) -> float:
    """Interval ``sqrt(2 w M) - w`` [s], 0 at least.

    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006.
    """
    return max(young(write, mttf) - write, 0.0)


def expected_ettr(interval: float, write: float, mttf: float, restart: float) -> float:
    """Effective over scheduled training time, to first order in ``interval / mttf``.

    ``(1 - (R + t / 2) / M) / (1 + w / t)``. Kokolis et al., "Revisiting reliability in large-scale
    machine learning research clusters", HPCA 2025, equation 1.
    """
    return (1 - (restart + interval / 2) / mttf) / (1 + write / interval)
