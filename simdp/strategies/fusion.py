"""Which gradients travel together where that depends on time: Horovod's fusion, and MG-WFBP.

Gradients are numbered in the order in which they become ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import NamedTuple

SMALLEST_MESSAGE = 8192
"""Elements below which MG-WFBP merges on, whatever it costs (its authors' optimizer)."""

BENCHMARK_NBYTES = (8 * 1024 * 4, 63 * 8 * 1024 * 4)
"""Smallest and largest all_reduce that MG-WFBP's authors time for alpha and beta [bytes]."""

PUBLISHED = {
    "10gbe": {
        2: (2.554691138304671e-06, 9.837548167872609e-11),
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (5.230272768511732e-04, 8.570746975492128e-10),
        16: (9.080981007148093e-04, 7.395651186836712e-10),
        32: (3 * 1.3476410788581382e-03, 8.643300782166769e-10),
        64: (3 * 2.3476410788581382e-03, 9.643300782166769e-10),
    },
    "56g_ib": {
        2: (2.554691138304671e-06, 9.837548167872609e-11),
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (9.75367204301171e-05, 3.0568230536676206e-10),
        16: (3 * 2.3583677659915685e-04, 4.0594787739537565e-10),
        32: (4.0632079996292579e-04, 1.5 * 3.2713239529771973e-10),
        64: (8.0632079996292579e-04, 1.8 * 3.2713239529771973e-10),
    },
}
"""Alpha [s] and beta [s/byte] by network and number of ranks, as MG-WFBP's authors typed them into
their optimizer (github.com/HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py). They used
the second network's for all that are faster than 10 Gbit/s."""

FAST_NETWORK = sqrt(10e9 / 8 * 56e9 / 8)
"""Bandwidth of a node from which on 56 Gbit/s are nearer than 10, as ratios [bytes/s]."""


class Group(NamedTuple):
    """Gradients that travel together.

    Attributes
    ----------
    members : range
        Their numbers.
    launch : float
        When they are sent [s].
    """

    members: range
    launch: float


def next_cycle(ready: float, cycle_time: float) -> float:
    """The first instant of 0, ``cycle_time``, 2 ``cycle_time``, ... that is not before ``ready``.

    Parameters
    ----------
    ready, cycle_time : float
        In seconds; cycles of 0 follow each other at once.
    """
    if not cycle_time:
        return ready
    return max(ceil(ready / cycle_time) * cycle_time, ready)


def fused(
    ready: Sequence[float], nbytes: Sequence[float], threshold: float, cycle_time: float
) -> list[Group]:
    """Fuse as Horovod does, whose background thread looks for work once per cycle.

    Of those that are ready in a cycle, the first and those that follow it travel together, as long
    as they fit in the threshold; then the next, and so on.

    Parameters
    ----------
    ready : sequence of float
        When each gradient is ready, never earlier than the one before [s].
    nbytes : sequence of float
        Their sizes [bytes].
    threshold : float
        Size of the fusion buffer [bytes]; a larger gradient travels alone.
    cycle_time : float
        Time between two looks [s].

    References
    ----------
    Horovod 0.19, horovod/common/controller.cc, FuseResponses; docs/tensor-fusion.rst.
    """
    groups: list[Group] = []
    held = 0.0
    for number, (instant, size) in enumerate(zip(ready, nbytes, strict=True)):
        launch = next_cycle(instant, cycle_time)
        fits = groups and groups[-1].launch == launch and held + size <= threshold
        first = groups.pop().members.start if fits else number
        held = held + size if fits else size
        groups.append(Group(range(first, number + 1), launch))
    return groups


def merged(
    ready: Sequence[float],
    num_elements: Sequence[int],
    itemsize: int,
    alpha: float,
    beta: float,
) -> list[range]:
    """Merge gradients by MG-WFBP's rule.

    A message of S bytes is predicted to take ``alpha + beta S``. The next gradient joins it if it
    is ready before the message would be through, and if waiting for it holds the message back by
    less than the ``alpha`` that a message of its own would cost.

    Parameters
    ----------
    ready : sequence of float
        When each gradient is ready, never earlier than the one before [s].
    num_elements : sequence of int
        Their sizes.
    itemsize : int
        Bytes per element.
    alpha, beta : float
        Estimated cost of a message [s], and of a byte [s/byte].

    Returns
    -------
    list of range
        The numbers of the gradients in each message.

    References
    ----------
    Shi, Chu, Li, "MG-WFBP: Efficient data communication for distributed synchronous SGD
    algorithms", INFOCOM 2019, arXiv 1811.11141, algorithm 1; with `SMALLEST_MESSAGE` as in the
    authors' optimizer.
    """
    groups: list[range] = []
    first, held, free = 0, 0, 0.0
    for last in range(len(ready) - 1):
        held += num_elements[last]
        start = max(free, ready[last])
        end = start + alpha + beta * held * itemsize
        following = ready[last + 1]
        worthwhile = following < end and following - start < alpha
        if worthwhile or held < SMALLEST_MESSAGE:
            continue
        groups.append(range(first, last + 1))
        first, held, free = last + 1, 0, end
    groups.append(range(first, len(ready)))
    return groups


def line_through(short: float, long: float) -> tuple[float, float]:
    """Alpha [s] and beta [s/byte] from the times of the two `BENCHMARK_NBYTES` [s]."""
    small, large = BENCHMARK_NBYTES
    beta = max(long - short, 0.0) / (large - small)
    return max(short - beta * small, 0.0), beta
