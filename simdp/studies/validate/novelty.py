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
    "size": {"large": 0.10, "middle": 0.35, "small": 0.06},
    "collective": {"large": 0.35, "middle": 0.37, "small": 0.74},
    "nodes": {"large": 0.19, "middle": 0.38, "small": 0.26},
    "network": {"large": 0.35, "middle": 0.62, "small": 0.62},
    "cluster": {"large": 0.35, "middle": 0.68, "small": 0.55},
    "both": {"large": 0.48, "middle": 1.08, "small": 0.98},
}
"""Standard deviations of logarithms, by what is new: what it takes to have 90 % of the errors
inside, less what is new beside it. ``size``, which always is: 50 tables of 22 clusters. ``nodes``:
17 tables of 4 clusters. ``collective``: 5 tables of 2 clusters; ``both``, another collective on
other nodes, comes on top: 6 tables of 2 clusters. ``network``: between nodes, where all tables are
of one; no table of ours tells: large sizes have the spread that shares of network cards have over
clusters (0.35), smaller ones that of new nodes, and more. ``cluster``: 78 tables, each predicted
without its site, beside the spread of the pool's shares."""


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
    for one in known:
        for collective, nodes in one.calibration.tables.items():
            found.setdefault(collective, []).extend(nodes)
    return found


def further(new: Sequence[str], nbytes: float) -> float:
    """Standard deviation of the logarithm that a size [bytes] and what is new add to a time."""
    size = "large" if nbytes >= LARGE else "middle" if nbytes >= MIDDLE else "small"
    both = ["both"] if "collective" in new and "nodes" in new else []
    return hypot(*(SPREAD[each][size] for each in ("size", *new, *both)))


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
