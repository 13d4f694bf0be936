"""Simulates many independent points, and stores each when it is done.

Executors return, and stores keep, the same plain data, so that results do not depend on either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.engine.clocks.clock import Fabric
from simdp.engine.outcome import launched
from simdp.engine.simulate import simulate, trace_of_run
from simdp.results.metrics import Metrics
from simdp.results.result import Result
from simdp.results.trace import Trace, TraceToCome, arrays_of, trace_of
from simdp.scenario.overrides import Raw
from simdp.scenario.root import Scenario
from simdp.studies.answers import interval_of, recorder_of
from simdp.studies.executor import CompletedItem, Failed, PointExecutor, in_order
from simdp.studies.store import Store, key_of_plain

Progress = Callable[[int, int], None]

Interval = Literal["none", "cheap", "any"]
"""When a point has ``interval_s``: never, if the run itself recorded enough for it, or always."""

NOT_KEPT = ("scenario", "set", "trace", "replicas", "outputs", "state", "launched")
"""Fields of a result that follow from the scenario, are stored as arrays, or are absent in many
runs."""

TO_COME = "trace_to_come"


WEIGHTS = "weights/"  # prefix of the names of weights among the arrays

MAX_KEPT = 64 * 2**20
"""Largest arrays of a point that are stored [bytes]; points with more are simulated again."""


class PointRequest(NamedTuple):
    """A point, its clock, and the parts of the result to keep, as for `simulate_all`."""

    point: Scenario
    fabric: Fabric
    keep_trace: bool | None
    keep_weights: bool = False
    interval: Interval = "none"


class Plain(NamedTuple):
    """A result as plain data, and its arrays."""

    value: dict[str, Any]
    arrays: dict[str, Array] | None

    @property
    def can_be_kept(self) -> bool:
        """Whether it may go into a file: small arrays of NumPy's own dtypes."""
        arrays = list((self.arrays or {}).values())
        known = all(array.dtype.kind != "V" for array in arrays)
        return known and sum(array.nbytes for array in arrays) <= MAX_KEPT


def simulate_all(
    points: Sequence[Scenario],
    *,
    executor: PointExecutor,
    store: Store | None = None,
    progress: Progress | None = None,
    fabric: Fabric = "auto",
    keep_trace: bool | Sequence[bool | None] | None = False,
    interval: Interval = "none",
) -> list[Result | Failed]:
    """Simulate many points; those in the store are reused.

    Parameters
    ----------
    points : sequence of Scenario
        Without sweeps.
    executor : PointExecutor
        The results are the same for any.
    store : Store, optional
        Stores finished points and provides those of earlier runs.
    progress : callable, optional
        Called with the number of finished points and of all.
    fabric
        As for `simulate`.
    keep_trace : bool or None, or a sequence of these
        As for `simulate`, for all points or each; False leaves results without a trace.
    interval : {"none", "cheap", "any"}
        Whether points have the metric ``interval_s``: "cheap" where a trace is kept, and where the
        vectorised clock simulates them, which makes it a fraction of the time.

    Returns
    -------
    list of Result or Failed
        In the order of the points; without weights and with an empty ``set``.
    """
    if keep_trace is None or isinstance(keep_trace, bool):
        keep_trace = [keep_trace] * len(points)
    requests = [
        PointRequest(
            point, fabric, keep, interval="any" if keep and interval == "cheap" else interval
        )
        for point, keep in zip(points, keep_trace, strict=True)
    ]
    return list(in_order(simulated(requests, executor, store, progress), len(requests)))


def simulated(
    requests: Sequence[PointRequest],
    executor: PointExecutor,
    store: Store | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Result | Failed]]:
    """Simulate many points with individual requests; arguments as for `simulate_all`.

    Yields the number and result of a point, as they finish. Weights are those of rank 0.
    """
    raws = [request.point.resolved() for request in requests]
    keys = list[str]()
    if store is not None:
        # with the trace, which may change the clock
        keys = [
            key_of_plain(raw, request.point.base, *request[1:])
            for request, raw in zip(requests, raws, strict=True)
        ]
    waiting, done = list[int](), 0
    for number, request in enumerate(requests):
        there = None if store is None else stored_result(store, keys[number], request, raws[number])
        if there is None:
            waiting.append(number)
        else:
            done += 1
            yield number, there
    if progress is not None:
        progress(done, len(requests))
    for place, outcome in executor.each(play, [requests[number] for number in waiting]):
        number = waiting[place]
        result: Result | Failed
        if isinstance(outcome, CompletedItem):
            plain = outcome.value
            if store is not None and plain.can_be_kept:
                store.put(keys[number], *plain)
            result = result_of(requests[number], raws[number], *plain)
        else:
            result = outcome
        done += 1
        if progress is not None:
            progress(done, len(requests))
        yield number, result


def play(request: PointRequest) -> Plain:
    """Simulate a point in any process, and return the result as plain data."""
    recorded = None if request.interval == "none" else recorder_of(request.point)
    result = simulate(
        request.point,
        fabric=request.fabric,
        keep_trace=request.keep_trace,
        listen=None if recorded is None else recorded.listen,
    )
    if recorded is not None and (recorded.ops or request.interval == "any"):
        metrics = result.metrics
        ends = interval_of(request.point, metrics.step_time_s, recorded, metrics)
        result.metrics = replace(metrics, interval_s=ends)
    value = {
        field.name: getattr(result, field.name)
        for field in fields(result)
        if field.name not in NOT_KEPT
    }
    value["metrics"] = dict(result.metrics)
    if result.step_ends is not None:
        value["step_ends"] = result.step_ends.tolist()
    arrays: dict[str, Array] = {}
    if request.keep_trace is not False and result.trace is not None:
        value[TO_COME] = isinstance(result.trace, TraceToCome)
        arrays |= {} if value[TO_COME] else arrays_of(result.trace)
    if request.keep_weights and result.replicas is not None:
        arrays |= {f"{WEIGHTS}{name}": array for name, array in result.replicas[0].items()}
    return Plain(value, arrays or None)


def stored_result(store: Store, key: str, request: PointRequest, raw: Raw) -> Result | None:
    """Read a finished point; None where it is missing or damaged."""
    value = store.get(key)
    if value is None:
        return None
    try:
        return result_of(request, raw, value, store.arrays(key))
    except (LookupError, ValueError, TypeError):
        store.num_found -= 1
        return None


def result_of(
    request: PointRequest, raw: Raw, value: Raw, arrays: Mapping[str, Array] | None
) -> Result:
    """Make a result from plain data; ``raw`` is its resolved scenario.

    KeyError, ValueError or TypeError if the data is not that of a result.
    """
    value = dict(value)
    to_come = value.pop(TO_COME, None)
    trace: Trace | None = None
    if to_come:
        trace = TraceToCome(partial(trace_of_run, request.point))
    elif to_come is not None:
        trace = trace_of(arrays or {})
    weights = {
        name.removeprefix(WEIGHTS): array
        for name, array in (arrays or {}).items()
        if name.startswith(WEIGHTS)
    }
    ends, metrics = value.pop("step_ends"), value.pop("metrics")
    return Result(
        scenario=raw,
        set={},
        metrics=Metrics.of(metrics),
        trace=trace,
        replicas=[weights] if weights else None,
        step_ends=None if ends is None else np.array(ends),
        launched=partial(launched, request.point),
        **value,
    )


def shared_first(points: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Combine the problems of points, given with their labels: shared ones once, and first."""
    first = points[0][1]
    lines = [line for line in first if all(line in problems for _, problems in points)]
    for label, problems in points:
        lines += [f"with {label}: {line}" for line in problems if line not in lines]
    return lines
