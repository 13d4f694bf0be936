"""Compute times from measurements and profiles, and of devices that wait for their host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster.hardware import DEVICES, Device
from simdp.engine.compute.call_times import CallTimes, Columns, Shapes, alike, layer_kernels
from simdp.engine.compute.roofline import Roofline
from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.compute import BACKWARD_OPERATORS, FromMeasurements, FromProfile, time_at
from simdp.workload.layers.base import Shape
from simdp.workload.step_costs import time_beside_compute


class EvenTimes:
    """Equal time per sample and layer, 1 s, where layers have no costs.

    Attributes and arguments are those of `CallTimes`.
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
        self.roofline = roofline
        self.names = [call.layer.name for call in workload.graph.calls]
        self.tails = [False] * len(self.names)

    def whole(self, activity: str, rank: int, batch: int) -> float:
        """As `CallTimes.whole`."""
        return float(batch * len(self.names))

    def seconds(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[tuple[Shape, ...]],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """As `CallTimes.seconds`."""
        first, column = alike(batch, which, self.roofline.device)
        samples = (batch * self.roofline.sharers)[first].astype(float)
        return Columns(np.tile(samples, (len(self.names), 1)), column)


class MeasuredTimes:
    """Seconds of forward and backward, call by call; see `FromMeasurements`.

    ``names`` and ``tails`` are those of `CallTimes` or `EvenTimes`. ``curves`` are of each kind of
    device: batch sizes, and time of forward and backward at them [s].
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
        assert isinstance(workload.compute, FromMeasurements)
        self.workload, self.roofline, self.spec = workload, roofline, workload.compute
        kind = EvenTimes if workload.model.timed else CallTimes
        self.parts: EvenTimes | CallTimes = kind(workload, roofline)
        # Measured steps are of a rank that does not share its device.
        self.alone = self.parts if roofline.alone is roofline else kind(workload, roofline.alone)
        self.names, self.tails = self.parts.names, self.parts.tails
        self.curves = [self._curve(device) for device in roofline.alone.different]
        self._known: dict[tuple[str, int, int], float] = {}

    def _curve(self, device: Device) -> list[tuple[int, float]]:
        """Batch sizes, and their times of forward and backward [s]."""
        curve = []
        for point in self.spec.of_device(device.name):
            size, shards = point.microbatch, point.sharded_over
            beside = time_beside_compute(self.workload, size, device, shards)
            curve.append((point.microbatch, point.step_time - beside))
        return curve

    def seconds(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[tuple[Shape, ...]],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """Time of every call on every rank, as `CallTimes.seconds`."""
        columns = self.parts.seconds(activity, batch, shapes, which, shares)
        _, first = np.unique(columns.column, return_index=True)
        factors = [self._factor(activity, int(rank), int(batch[rank])) for rank in first]
        return Columns(columns.seconds * factors, columns.column)

    def _factor(self, activity: str, rank: int, batch: int) -> float:
        """Factor on a rank's calls, so that full samples take the measured time."""
        key = (activity, int(self.roofline.alone.device[rank]), batch)
        if key not in self._known:
            part = self.spec.forward_fraction
            part = part if activity == "forward" else 1 - part
            whole = self.alone.whole(activity, rank, batch)
            self._known[key] = part * self._compute_time(rank, batch) / whole if batch else 0.0
        return self._known[key]

    def _compute_time(self, rank: int, batch: int) -> float:
        def size(samples: int) -> float:
            return sum(self.alone.whole(name, rank, samples) for name in ("forward", "backward"))

        return time_at(self.curves[self.roofline.alone.device[rank]], batch, size)


# ProfileTimes -------------------------------------------------------------------------------------


class DeviceFactors(NamedTuple):
    """Factors on a device's times of matrix products and of memory traffic."""

    products: float
    memory: float


class ProfileTimes:
    """Seconds of forward and backward, call by call.

    A call takes the larger of its file's device time and host time. With k ranks on a device,
    device times are multiplied by k. Another device than the measured one scales its part by
    `factors`, and another micro-batch as in `FromProfile`. There is no loss; ``tails``: whether a
    call's backward continues after its gradients are ready.
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
        from simdp.workload.layers.operator import TimedLayer  # few models have them

        assert isinstance(workload.compute, FromProfile)
        layers = [call.layer for call in workload.graph.calls]
        timed = [layer for layer in layers if isinstance(layer, TimedLayer)]
        assert len(timed) == len(layers), "a model brings the times of all of its layers"
        self.names = [layer.name for layer in timed]
        self.tails = [layer.input_time > 0 for layer in timed]
        self._spec, self._roofline = workload.compute, roofline
        self._times = {
            "forward": np.array([layer.forward_time for layer in timed]),
            "backward": np.array([layer.gradient_time for layer in timed]),
            "tail": np.array([layer.input_time for layer in timed]),
        }
        launched = 0.0 if workload.cuda_graphs else 1.0
        self._host = {
            "forward": launched * np.array([layer.forward_host for layer in timed]),
            "backward": launched * np.array([layer.gradient_host for layer in timed]),
        }
        self._products = np.array([layer.products for layer in timed])
        self._factors = [factors(workload, device) for device in roofline.alone.different]

    def seconds(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[tuple[Shape, ...]],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """Time of every call on every rank, as `CallTimes.seconds`.

        Activity ``tail`` is the part of backward after a layer's gradient is ready. Shapes are
        ignored.
        """
        if self._spec.microbatch is None:
            batch = (batch > 0).astype(np.int64)
        roofline = self._roofline
        first, column = alike(batch, roofline.sharers, roofline.alone.device)
        seconds_of_ranks = [self._of_rank(activity, int(rank), int(batch[rank])) for rank in first]
        return Columns(np.array(seconds_of_ranks).T, column)

    def kernels(self, activity: str, rank: int, batch: int) -> tuple[Ints, Floats, Floats]:
        """As `CallTimes.kernels`: a call is one kernel, which waits for its host's delay."""
        if self._spec.microbatch is None:
            batch = int(batch > 0)
        busy = self._on_device(activity, rank, batch)
        whole = self._of_rank(activity, rank, batch)
        return np.arange(len(busy)), whole - busy, busy

    def _of_rank(self, activity: str, rank: int, batch: int) -> Floats:
        seconds, host = self._on_device(activity, rank, batch), self._host.get(activity)
        return np.maximum(seconds, host) if batch and host is not None else seconds

    def _on_device(self, activity: str, rank: int, batch: int) -> Floats:
        seconds = self._times[activity]
        if not batch:
            return np.zeros_like(seconds)
        longer = self._factors[self._roofline.alone.device[rank]]
        if longer != (1.0, 1.0):
            seconds = seconds * (
                self._products * longer.products + (1 - self._products) * longer.memory
            )
        if self._spec.microbatch is not None:
            seconds = seconds * batch / self._spec.microbatch
        return seconds * int(self._roofline.sharers[rank])


def factors(workload: Workload, device: Device) -> DeviceFactors:
    """Time of a device relative to the one that a profile was measured on."""
    spec = workload.compute
    if not isinstance(spec, FromProfile):
        return DeviceFactors(1.0, 1.0)
    return scaling(spec, workload.dtype, device)


def scaling(spec: FromProfile, dtype: str, device: Device) -> DeviceFactors:
    """As `factors`, for a profile with products of this dtype unless it has one of its own."""
    if is_measured_on(spec, device):
        return DeviceFactors(1.0, 1.0)
    measured = Device.model_validate(DEVICES.figures(spec.device or ""))
    dtype = spec.dtype or dtype
    old, new = (gpu.rate(_known(gpu, dtype)) for gpu in (measured, device))
    return DeviceFactors(old / new, measured.memory_rate / device.memory_rate)


def profiled_update(workload: Workload, roofline: Roofline) -> Floats | None:
    """Profiled time of the update of all parameters, on each rank [s]; None without."""
    spec = workload.compute
    if not isinstance(spec, FromProfile) or spec.update is None:
        return None
    longer = np.array([factors(workload, device).memory for device in roofline.alone.different])
    seconds: Floats = spec.update * longer[roofline.alone.device] * roofline.sharers
    return seconds


def is_measured_on(spec: FromProfile, device: Device) -> bool:
    """Whether a profile's times apply to a device without scaling."""
    return spec.device is None or spec.device == device.name


def _known(device: Device, dtype: str) -> str:
    """The dtype, or float32 on a device without a peak for it."""
    return dtype if dtype in device.peak else "float32"


# Host ------------------------------------------------------------------------------------------


def operators_of(workload: Workload, num_works: int) -> Floats:
    """Operators of forward of each call; one for a loss behind them.

    Parameters
    ----------
    workload : Workload
        Its model has layers.
    num_works : int
        Calls, and 1 more where there is a loss.

    Returns
    -------
    ndarray, shape `(num_works,)`
        Kernels of each layer: torch launches about one per operator.
    """
    kernels = layer_kernels(workload, "forward", workload.model.known_shapes())
    counts = np.ones(num_works)
    counts[: len(kernels)] = [len(those) for those in kernels]
    return counts


class HostBoundTimes:
    """Times of calls on devices that wait where their host launches more slowly than they work.

    A call begins when the host has dispatched all calls before it, and when the device is done with
    them: ``end[k] = max(end[k - 1], host[0] + ... + host[k - 1]) + device[k]``. Backward takes
    `BACKWARD_OPERATORS` times the host time of forward. Measured steps have waited for a host
    already: its time is limited so that the fastest measured step keeps its length, and a pass is
    stretched evenly to the time of its host.

    Parameters
    ----------
    times : CallTimes or MeasuredTimes
        Times without a host.
    operator : float
        Host time of an operator of forward [s].
    gil : float
        Share of forward for which a thread holds the interpreter's lock, where all ranks are
        threads of one process: with k of them at work, forward takes the host
        ``1 + gil (k - 1)`` times as long. 0 for processes.

    Attributes
    ----------
    names, tails
        As of `CallTimes`.
    """

    def __init__(self, times: CallTimes | MeasuredTimes, operator: float, gil: float) -> None:
        self._times, self._gil = times, gil
        self.names, self.tails, self.roofline = times.names, times.tails, times.roofline
        forward = operator * operators_of(times.workload, len(times.names))
        self._host = {"forward": forward, "backward": BACKWARD_OPERATORS * forward}
        self._is_measured = isinstance(times, MeasuredTimes)
        self._limits = np.ones(len(self.roofline.alone.different))
        if isinstance(times, MeasuredTimes):
            whole = sum(float(host.sum()) for host in self._host.values())
            fastest = [min(seconds for _, seconds in curve) for curve in times.curves]
            self._limits = np.clip(np.array(fastest) / whole, 0.0, 1.0)

    def seconds(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[Shapes],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """As `CallTimes.seconds`, with the time for which devices wait."""
        columns = self._times.seconds(activity, batch, shapes, which, shares)
        _, first = np.unique(columns.column, return_index=True)
        active = max(int((batch > 0).sum()) - 1, 0)
        held = 1 + self._gil * active if activity == "forward" else 1.0
        limits = self._limits[self.roofline.alone.device[first]]
        host = self._host[activity][:, None] * held * limits
        return Columns(
            columns.seconds + self._waits(activity, columns.seconds, host), columns.column
        )

    def kernels(self, activity: str, rank: int, batch: int) -> tuple[Ints, Floats, Floats]:
        """As `CallTimes.kernels`; a call's first kernel waits for its host."""
        call, idle, busy = self._times.kernels(activity, rank, batch)  # type: ignore[union-attr]
        device = np.bincount(call, idle + busy, minlength=len(self.names))[:, None]
        waits = self._waits(activity, device.astype(float), self._host[activity][:, None])[:, 0]
        calls, first = np.unique(call, return_index=True)
        idle = idle.copy()
        idle[first] += waits[calls]
        return call, idle, busy

    def whole(self, activity: str, rank: int, batch: int) -> float:
        """As `CallTimes.whole`: without waiting for the host."""
        times: Any = self._times
        seconds: float = times.whole(activity, rank, batch)
        return seconds

    def _waits(self, activity: str, device: Floats, host: Floats) -> Floats:
        """Time for which devices wait before each call, shape `(num_calls, num_columns)` [s]."""
        order = slice(None, None, -1 if activity == "backward" else 1)
        works, launches = device[order], host[order] * (device.sum(axis=0) > 0)
        if self._is_measured:
            whole = works.sum(axis=0)
            late = np.maximum(launches.sum(axis=0) - whole, 0.0)
            share = np.divide(works, whole, out=np.zeros_like(works), where=whole > 0)
            waits = late * share
        else:
            dispatched = np.cumsum(launches, axis=0) - launches
            late = np.maximum.accumulate(dispatched - (np.cumsum(works, axis=0) - works), axis=0)
            waits = np.diff(np.maximum(late, 0.0), axis=0, prepend=0.0)
        waits_of_ranks: Floats = waits[order]
        return waits_of_ranks


# Choice -------------------------------------------------------------------------------------------

Times = CallTimes | MeasuredTimes | ProfileTimes | HostBoundTimes

COMPUTE: dict[str, type[CallTimes] | type[MeasuredTimes] | type[ProfileTimes]] = {
    "measured": MeasuredTimes,
    "profile": ProfileTimes,
    "roofline": CallTimes,
}


def times_of(workload: Workload, strategy: Strategy, roofline: Roofline) -> Times:
    """Compute times of a workload, with the waiting for its host where one is described.

    Profiles have host times of their own, and CUDA graphs replace launches: both have no floor.
    """
    times = COMPUTE[workload.compute.source](workload, roofline)
    host = strategy.host_of(workload, len(roofline.device))
    without_floor = workload.model.timed or workload.cuda_graphs or isinstance(times, ProfileTimes)
    if not host.operator or without_floor:
        return times
    assert not isinstance(times, ProfileTimes)
    return HostBoundTimes(times, host.operator, strategy.interpreter_lock)
