"""Novelty: how much further off a collective may be than the sizes that its machine was fitted to.

Intervals of constants tell what the fitted tables leave open. They cannot tell what was not looked
at: another collective has paths of its own, more nodes share switches. How far such predictions
were off is in `SPREAD`, from the tables of ``scenarios/validation/nccl-tests`` that no constant was
fitted to (``python -m benchmarks.novelty`` finds them again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, hypot, inf, log

from simdp.studies.validate.intervals import NORMAL_90, Interval, Known, residual, spread
from simdp.studies.validate.unmeasured import is_unmeasured

LARGE, MIDDLE = 1 << 20, 1 << 16
"""Sizes from which wires rule, and from which the choice of a protocol does [bytes]."""

SPREAD = {
    "collective": {"large": 0.42, "middle": 0.47, "small": 0.90},
    "nodes": {"large": 0.16, "middle": 0.62, "small": 0.25},
    "network": {"large": 0.35, "middle": 0.62, "small": 0.62},
    "cluster": {"large": 0.25, "middle": 0.80, "small": 0.65},
}
"""Standard deviations of logarithms, by what is new: the 90 % quantile of the errors, over
`NORMAL_90`. ``nodes``: 12 tables of 4 clusters. ``collective``: 9 tables of 2 clusters, the mean of
those on the fitted numbers of nodes and, less what nodes explain, of those on others. ``network``:
between nodes, where all tables are of one; no table of ours tells. Large sizes have the spread that
shares of network cards have over clusters (0.35), smaller ones that of new nodes at its largest."""


def news(known: Sequence[Known], collective: str, num_nodes: int) -> tuple[str, ...]:
    """Tell what a prediction has that is new to what its constants were fitted to.

    Arguments as for `what_is_new`; the whole cluster is new where none was fitted on it.
    """
    if is_unmeasured(known):
        return ("cluster",)
    return what_is_new(tables_of(known), collective, num_nodes)


def what_is_new(
    tables: Mapping[str, Sequence[int]], collective: str, num_nodes: int
) -> tuple[str, ...]:
    """Tell what a prediction has that no fitted table had; keys of `SPREAD`.

    Parameters
    ----------
    tables : mapping of str to sequence of int
        Of the machine's calibration; one without any tells nothing.
    collective : str
        What is predicted.
    num_nodes : int
        Between how many nodes.
    """
    if not tables:
        return ()
    everywhere = {nodes for each in tables.values() for nodes in each}
    new = [] if collective in tables else ["collective"]
    if num_nodes > 1 and max(everywhere) == 1:
        new.append("network")
    elif num_nodes not in (tables.get(collective) or everywhere):
        new.append("nodes")
    return tuple(new)


def tables_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """The tables to which constants were fitted, of all that is known."""
    found: dict[str, list[int]] = {}
    for _, calibration in known:
        for collective, nodes in calibration.tables.items():
            found.setdefault(collective, []).extend(nodes)
    return found


def further(new: Sequence[str], nbytes: float) -> float:
    """Standard deviation of the logarithm that new things add to a time of some size [bytes]."""
    size = "large" if nbytes >= LARGE else "middle" if nbytes >= MIDDLE else "small"
    return hypot(*(SPREAD[each][size] for each in new))


def told(
    time: float,
    ends: Sequence[tuple[float, float]],
    known: Sequence[Known],
    new: Sequence[str],
    nbytes: float,
) -> Interval:
    """The 90 % interval of a collective's time [s].

    Parameters
    ----------
    time, ends
        As `simdp.studies.validate.intervals.spread` has them.
    known : sequence of Known
        How well the machine's constants are.
    new : sequence of str
        As from `what_is_new`.
    nbytes : float
        Size of the buffer [bytes].
    """
    return widened(time, spread(time, ends, residual(known)), further(new, nbytes))


def widened(time: float, interval: Interval, deviation: float) -> Interval:
    """Widen the 90 % interval of a time [s] by another, independent cause of error.

    Parameters
    ----------
    time, interval
        As `simdp.studies.validate.intervals.spread` has them.
    deviation : float
        Standard deviation of the logarithm of the time.
    """
    if not deviation or not time:
        return interval
    reach = NORMAL_90 * deviation
    down = hypot(log(time / interval.low), reach) if interval.low else inf
    return Interval(time * exp(-down), time * exp(hypot(log(interval.high / time), reach)))
