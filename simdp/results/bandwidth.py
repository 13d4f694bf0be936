"""Bandwidths of collectives and the columns beside them, as nccl-tests defines them.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md and, for the counts and gather and scatter, src/*.cu.
"""

from __future__ import annotations

ITEMSIZE = {
    "int8": 1,
    "uint8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "half": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float": 4,
    "int64": 8,
    "uint64": 8,
    "double": 8,
}
"""Bytes per element of each type that nccl-tests prints."""

IN_PIECES = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")
"""Collectives whose buffer has a piece for every rank; their count is that of one piece."""

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "gather", "reduce", "scatter")


def bus_bandwidth_factor(collective: str, world_size: int) -> float | None:
    """What algbw is multiplied by to compare it with the bandwidth of the links.

    Parameters
    ----------
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    world_size : int
        Number of ranks, n.

    Returns
    -------
    float or None
        ``2 (n - 1) / n`` for an all_reduce, ``(n - 1) / n`` where there is a piece per rank, 1 for
        broadcast and reduce; None for a barrier, which has no bandwidth.

    Raises
    ------
    ValueError
        If ``world_size < 1``.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1, got {world_size}")
    if collective == "barrier":
        return None
    if collective == "all_reduce":
        return 2 * (world_size - 1) / world_size
    return (world_size - 1) / world_size if collective in IN_PIECES else 1.0


def count(collective: str, nbytes: int, world_size: int, dtype: str) -> int:
    """Elements of a buffer, or of one rank's piece of it, rounded down."""
    pieces = world_size if collective in IN_PIECES else 1
    return nbytes // (ITEMSIZE[dtype] * pieces)


def redop(collective: str) -> str:
    """What is done with the elements of several ranks: ``"sum"`` or ``"none"``."""
    return "sum" if collective in REDUCING else "none"


def shown_root(collective: str, root: int) -> int:
    """The root as nccl-tests shows it: -1 where there is none."""
    return root if collective in ROOTED else -1
