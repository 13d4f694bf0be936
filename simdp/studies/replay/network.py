"""Derives links from the transfers of a trace if no machine is given.

A kernel of a collective lasts from when its rank comes to when all are done. The shortest that a
collective had over steps and ranks is that of the rank that came last, and closest to the transfer
alone: to these a latency and a bandwidth are fitted, those of a ring's hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simdp.arrays import Floats
from simdp.studies.replay.timeline import StepCollective

FASTEST = 1e13
"""Bandwidth where all transfers last equally long [bytes/s]."""


@dataclass(frozen=True)
class RankLinks:
    """Links between ranks.

    Attributes
    ----------
    alpha : float
        Of a hop from rank to rank [s].
    bandwidth : float
        Of a hop [bytes/s].
    num_sizes : int
        Collectives that they were fitted to.
    smallest, largest : float
        Of these [bytes].
    error : float
        Mean of the relative errors.
    """

    alpha: float
    bandwidth: float
    num_sizes: int
    smallest: float
    largest: float
    error: float


def fitted(sent: Sequence[StepCollective]) -> RankLinks | None:
    """Fit links to a step's collectives.

    Parameters
    ----------
    sent : sequence of Sent
        Each as short as it ever was.

    Returns
    -------
    Network or None
        None where none of two ranks or more has a size.

    Notes
    -----
    A ring of n makes 2(n-1) steps for an all_reduce of S bytes, n-1 for an all_gather and a
    reduce_scatter, each of S/n: the errors relative to the measured times are least in squares.
    """
    rows = [row for one in sent if (row := _row(one)) is not None]
    if not rows:
        return None
    table = np.array(rows)
    hops, nbytes, seconds, sizes = table.T
    scaled = np.stack([hops / seconds, nbytes / seconds], axis=1)
    alpha, beta = _not_negative(scaled)
    error = float(np.abs(scaled @ [alpha, beta] - 1).mean())
    bandwidth = min(1 / beta if beta > 0 else FASTEST, FASTEST)
    return RankLinks(
        float(alpha), float(bandwidth), len(rows), float(sizes.min()), float(sizes.max()), error
    )


def _row(sent: StepCollective) -> tuple[float, float, float, float] | None:
    """Hops, bytes over one link, and time of a collective."""
    n, nbytes, seconds = sent.group_size, sent.nbytes, sent.seconds
    if n < 2 or not nbytes > 0 or not seconds > 0:
        return None
    if sent.name == "all_reduce":
        return 2.0 * (n - 1), 2 * (n - 1) / n * nbytes, seconds, nbytes
    if sent.name in ("all_gather", "reduce_scatter"):
        return n - 1.0, (n - 1) / n * nbytes, seconds, nbytes
    if sent.name == "broadcast" and n == 2:
        return 1.0, nbytes, seconds, nbytes
    return None


def _not_negative(scaled: Floats) -> tuple[float, float]:
    """Least squares of ``scaled @ x = 1`` with x not below 0."""
    ones = np.ones(len(scaled))
    if len(scaled) > 1 and np.linalg.matrix_rank(scaled) == 2:
        alpha, beta = np.linalg.lstsq(scaled, ones, rcond=None)[0]
        if alpha >= 0 and beta >= 0:
            return float(alpha), float(beta)
    each = [float(column.sum() / (column @ column)) for column in scaled.T]
    errors = [float(((scaled[:, k] * each[k] - 1) ** 2).sum()) for k in (0, 1)]
    return (each[0], 0.0) if errors[0] < errors[1] else (0.0, each[1])
