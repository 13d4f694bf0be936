"""Alpha-beta formulas of the algorithms in which ranks exchange in pairs, as in `closed_forms`.

Equal links between all pairs of ranks, all in one node; alpha is the latency of a transfer over its
whole route [s], beta the inverse bandwidth [s/byte], S the buffer [bytes], n the number of ranks.
Every function returns seconds, 0 for one rank, and raises ValueError for a world_size below 1.
"""

from __future__ import annotations

from simdp.collectives.closed_forms.rings_and_trees import check_world_size
from simdp.collectives.tree import depth


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
