"""How long each call of a model takes that brings its times: as long as its file says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Device
from simdp.cluster.device import DEVICES
from simdp.engine.compute.columns import Columns, alike
from simdp.engine.compute.roofline import Roofline
from simdp.workload import Workload
from simdp.workload.compute.profile import FromProfile
from simdp.workload.layers.timed import TimedLayer


class Factors(NamedTuple):
    """What a device's times are multiplied by: of products, and of memory traffic."""

    products: float
    memory: float


class ProfileTimes:
    """Seconds of forward and backward, call by call.

    A call takes what its file says of the device, or of the host that launches it, if that is more.
    With k ranks on a device, all that its file says of the device takes k times as long. Another
    device than the one that was measured scales its part by `factors`, and another micro-batch as
    `FromProfile` says.

    Parameters
    ----------
    workload : Workload
        Whose model brings its times.
    roofline : Roofline
        The devices: how many ranks share each, and how fast it is beside the measured one.

    Attributes
    ----------
    names : list of str
        Of the layers; there is no loss.
    tails : list of bool
        Whether a call's backward goes on once its gradients are ready.
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
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
        self._factors = [factors(workload, each) for each in roofline.alone.different]

    def seconds(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[Any],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """Time of every call on every rank.

        Parameters
        ----------
        activity : {"forward", "backward", "tail"}
            Which; ``tail`` is what backward takes once a layer's gradient is ready.
        batch : ndarray, shape `(world_size,)`
            Samples of each rank.
        shapes, which, shares
            Of no matter here.

        Returns
        -------
        Columns
            Of the calls; 0 on a rank without samples.
        """
        if self._spec.microbatch is None:
            batch = (batch > 0).astype(np.int64)
        roofline = self._roofline
        first, column = alike(batch, roofline.sharers, roofline.alone.device)
        found = [self._of_rank(activity, int(rank), int(batch[rank])) for rank in first]
        return Columns(np.array(found).T, column)

    def kernels(self, activity: str, rank: int, batch: int) -> tuple[Ints, Floats, Floats]:
        """As `CallTimes.kernels`: a call is one kernel, which waits as long as its host is late."""
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
        found: Floats = seconds * int(self._roofline.sharers[rank])
        return found


def factors(workload: Workload, device: Device) -> Factors:
    """How much longer a device takes than the one that a profile was measured on."""
    spec = workload.compute
    if not isinstance(spec, FromProfile):
        return Factors(1.0, 1.0)
    return scaling(spec, workload.dtype, device)


def scaling(spec: FromProfile, dtype: str, device: Device) -> Factors:
    """As `factors`, of a profile whose products are of this dtype unless it says another one."""
    if is_measured_on(spec, device):
        return Factors(1.0, 1.0)
    measured = Device.model_validate(DEVICES.figures(spec.device or ""))
    dtype = spec.dtype or dtype
    old, new = (each.rate(_known(each, dtype)) for each in (measured, device))
    return Factors(old / new, measured.memory_rate / device.memory_rate)


def told_update(workload: Workload, roofline: Roofline) -> Floats | None:
    """Time that a profile gives the update of all parameters, on each rank [s]; None without."""
    spec = workload.compute
    if not isinstance(spec, FromProfile) or spec.update is None:
        return None
    longer = np.array([factors(workload, each).memory for each in roofline.alone.different])
    seconds: Floats = spec.update * longer[roofline.alone.device] * roofline.sharers
    return seconds


def is_measured_on(spec: FromProfile, device: Device) -> bool:
    """Whether a profile's times are those of a device as they stand."""
    return spec.device is None or spec.device == device.name


def _known(device: Device, dtype: str) -> str:
    """The dtype, or on a device that does not know it, float32."""
    return dtype if dtype in device.peak else "float32"
