"""Quiet machines, and figures of repeated measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

T = TypeVar("T")

STAT = Path("/proc/stat")
"""Linux's counters; without them every round counts as quiet."""

PAUSE = 0.25
"""Time for which the machine is observed before a round [s]."""


class CpuUsage(NamedTuple):
    """Counters at an instant: of the wall clock, this process, and all processes [s]."""

    wall: float
    own: float
    all: float


def usage() -> CpuUsage:
    """Read the counters; without Linux's, all processes count as idle."""
    ticks = 0.0
    if STAT.exists():
        user, nice, system = STAT.read_text().split(maxsplit=4)[1:4]
        ticks = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    return CpuUsage(time.perf_counter(), time.process_time(), ticks)


def foreign(before: CpuUsage, after: CpuUsage, own: float) -> float:
    """Return the share of the machine's cores used by other programs between two instants.

    ``own`` is the CPU time of all ranks on the machine in between [s].
    """
    cores = os.cpu_count() or 1
    theirs = after.all - before.all - own
    return max(0.0, theirs / (after.wall - before.wall) / cores)


class Gather(Protocol):
    """Gathers a value of every rank on all ranks; a collective call."""

    def __call__(self, value: T, /) -> list[T]: ...


def undisturbed(
    gathered: Gather, work: Callable[[], T], limit: float, tries: int
) -> tuple[T, float]:
    """Run some work on all ranks, repeated until undisturbed or until the tries are used up.

    A try observes the machine for a moment, and ends if it is busy, since waiting costs others
    nothing. Else the work is run, and counts if it was not disturbed; the last try runs it in any
    case, if none did.

    Parameters
    ----------
    gathered : Gather
        Of the ranks.
    work : callable
        The measured work.
    limit : float
        Share of the cores that others may use.
    tries : int
        At least 1.

    Returns
    -------
    result
        Of the quietest try.
    share : float
        Cores used by other programs meanwhile, at most over the nodes.
    """
    rounds: list[tuple[float, int, T]] = []
    for number in range(tries):
        is_last = number == tries - 1 and not rounds
        if not is_last:
            _, share = _watched(gathered, lambda: time.sleep(PAUSE))
            if share > limit:
                continue
        result, share = _watched(gathered, work)
        rounds.append((share, number, result))
        if share <= limit:
            break
    share, _, result = min(rounds, key=lambda tried: tried[:2])
    return result, share


def _watched(gathered: Gather, work: Callable[[], T]) -> tuple[T, float]:
    """Run some work on all ranks; return its result, and the cores used by others meanwhile."""
    gathered(None)
    before = usage()
    result = work()
    gathered(None)
    after = usage()
    here = os.uname().nodename
    ranks = gathered((here, after.own - before.own))
    own = sum(seconds for node, seconds in ranks if node == here)
    return result, max(gathered(foreign(before, after, own)))


# Figures ------------------------------------------------------------------------------------------

PERCENTILES = (10, 50, 75, 90)


def percentiles(seconds: Sequence[float]) -> dict[str, str]:
    """Return the percentiles of times [s] as quantities: ``{"p10": "1.2 ms", ...}``."""
    times = np.percentile(np.asarray(seconds), PERCENTILES)
    return {f"p{p}": milliseconds(float(t)) for p, t in zip(PERCENTILES, times, strict=True)}


def median(seconds: Sequence[float]) -> float:
    """Return the median [s]."""
    return float(np.median(np.asarray(seconds)))


def noise(rounds: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation over the mean of the medians of rounds; 0 for one round."""
    middles = np.array([median(times) for times in rounds])
    return float(middles.std(ddof=1) / middles.mean()) if len(middles) > 1 else 0.0


def milliseconds(seconds: float) -> str:
    """Format a time to a microsecond's precision or five digits, whichever is more."""
    return f"{seconds * 1e3:.5g} ms"


def microseconds(seconds: float) -> str:
    """Format a short time."""
    return f"{seconds * 1e6:.5g} us"


def percent(part: float) -> str:
    """Format a share."""
    return f"{part * 100:.3g} %"


class StepSeconds(NamedTuple):
    """Seconds of each step, and of its parts; four lists of one length."""

    step: list[float]
    forward: list[float]
    backward: list[float]
    update: list[float]

    @classmethod
    def joined(cls, several: Iterable[StepSeconds]) -> StepSeconds:
        """Join the steps of some measurements, at least one."""
        return cls(*(list(chain(*times)) for times in zip(*several, strict=True)))

    @property
    def parts(self) -> dict[str, list[float]]:
        """Seconds of the parts, by their names."""
        return {"forward": self.forward, "backward": self.backward, "update": self.update}


CollectiveTimes = dict[int, dict[str, dict[int, list[float]]]]
"""Seconds of all calls, by world size, collective and size."""


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return the median of each kind of times as a quantity."""
    return {name: milliseconds(median(seconds)) for name, seconds in times.items()}


# Intervals ----------------------------------------------------------------------------------------


class LayerEvent(NamedTuple):
    """An event of a layer."""

    layer: str  # its name
    # the layer's call; the gradient of its output; the gradient of one of its parameters
    kind: Literal["call", "output", "ready"] | str
    at: float  # seconds from the start of the step [s]


class LayerTimes(NamedTuple):
    """Layer times of a model, in forward order; lists of one length."""

    names: list[str]  # layers that have parameters
    forward: list[float]  # from a layer's call to that of the next one [s]
    # from the gradient of its output to the last one of its parameters [s]
    weight_grad: list[float]
    input_grad: list[float]  # from there to the gradient of the next output [s]
    gradient_bytes: list[int]  # of its parameters [bytes]


COLUMNS = ("name", "forward_us", "weight_grad_us", "input_grad_us", "gradient_bytes")


def csv(layers: LayerTimes, about: str) -> str:
    """Format layer times for the model ``profile``, with ``about`` as a comment."""
    lines = [
        f"# {about}; what has no parameters is in the line of the layer before it",
        ",".join(COLUMNS),
    ]
    for name, forward, to_weight, to_input, nbytes in zip(*layers, strict=True):
        times = (f"{1e6 * seconds:.3f}" for seconds in (forward, to_weight, to_input))
        lines.append(",".join([name, *times, str(nbytes)]))
    return "".join(f"{line}\n" for line in lines)


def forward_of(calls: Sequence[LayerEvent], end: float) -> dict[str, float]:
    """Return seconds of each layer's forward, in order of the calls.

    Time before the first call, from instant 0 on, counts with the first layer, and modules without
    parameters with the layer before them.
    """
    starts = [0.0, *(event.at for event in calls[1:]), end]
    seconds: dict[str, float] = {}
    for event, begin, finish in zip(calls, starts, starts[1:], strict=False):
        seconds[event.layer] = seconds.get(event.layer, 0.0) + finish - begin
    return seconds


def backward_of(
    events: Sequence[LayerEvent], begin: float, end: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds of each layer's backward: up to its gradients, and after them.

    Time before the first output's gradient, the loss, counts with that layer. A layer's time lasts
    until the next output's gradient is ready; later gradients of its parameters are of calls that
    autograd deferred, and count as ready at its end. ``events`` are of kind ``output`` and
    ``ready``, in order of time, between ``begin`` and ``end`` [s].
    """
    outputs = [event for event in events if event.kind == "output"]
    starts = [begin, *(event.at for event in outputs[1:]), end]
    to_weight: dict[str, float] = {}
    to_input: dict[str, float] = {}
    for output, start, finish in zip(outputs, starts, starts[1:], strict=False):
        layer = output.layer
        ready = [e.at for e in events if e.layer == layer and e.kind == "ready"]
        inside = [at for at in ready if start <= at <= finish]
        cut = max(inside) if inside and len(inside) == len(ready) else finish
        to_weight[layer] = to_weight.get(layer, 0.0) + cut - start
        to_input[layer] = to_input.get(layer, 0.0) + finish - cut
    return to_weight, to_input
