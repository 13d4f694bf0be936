"""Events: what happens to a job's nodes in a run, from all of the cluster's failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from operator import attrgetter

from simdp.cluster.failures import Event, Failures
from simdp.rng import stream

__all__ = ["Event", "events", "expected_mttf"]


def events(
    failures: Sequence[Failures], num_nodes: int, devices_per_node: int, seed: int, run: int
) -> Iterator[Event]:
    """Play all processes of failures side by side.

    Parameters
    ----------
    failures : sequence of Failures
        Each draws from a stream of its own, so that one more leaves the others as they are.
    num_nodes, devices_per_node : int
        Those that can be hit, spares too.
    seed : int
        The scenario's.
    run : int
        Which of the runs of an ensemble, from 0.

    Returns
    -------
    iterator of Event
        In rising time, those of one instant in the order of the processes. It has no end, unless
        all processes are traces. The same for the same seed and run, however far it is read.
    """
    streams = [
        process.events(num_nodes, devices_per_node, stream(seed, "failures", run, number))
        for number, process in enumerate(failures)
    ]
    return streams[0] if len(streams) == 1 else merge(*streams, key=attrgetter("time"))


def expected_mttf(
    failures: Sequence[Failures], num_nodes: int, devices_per_node: int
) -> float | None:
    """Mean time between the failures of a job, by the sum of all rates [s].

    Parameters
    ----------
    failures, num_nodes, devices_per_node
        As in `events`.

    Returns
    -------
    float or None
        Infinite where nothing fails; None where a process does not tell how often it does.
    """
    rates = [process.job_rate(num_nodes, devices_per_node) for process in failures]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    total = sum(known)
    return 1 / total if total else float("inf")
