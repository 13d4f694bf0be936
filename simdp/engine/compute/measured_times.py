"""How long each call of a model takes on devices whose steps were measured as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdp.arrays import Ints
from simdp.cluster import Device
from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.columns import Columns, alike
from simdp.engine.compute.roofline import Roofline
from simdp.workload import Workload
from simdp.workload.compute.measured import FromMeasurements, time_at
from simdp.workload.step_costs import time_beside_compute


class EvenTimes:
    """A second per sample and layer, where nothing is known of the layers.

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
        shapes: Sequence[Any],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """As `CallTimes.seconds`."""
        first, column = alike(batch, which, self.roofline.device)
        each = (batch * self.roofline.sharers)[first].astype(float)
        return Columns(np.tile(each, (len(self.names), 1)), column)


class MeasuredTimes:
    """Seconds of forward and backward, call by call; see `FromMeasurements`.

    Parameters
    ----------
    workload : Workload
        What is computed.
    roofline : Roofline
        The devices.

    Attributes
    ----------
    names : list of str
        Of the calls' layers, and of the loss where the model has one.
    tails : list of bool
        Whether a call's backward goes on once its gradients are ready; here none does.
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
        assert isinstance(workload.compute, FromMeasurements)
        self.workload, self.roofline, self.spec = workload, roofline, workload.compute
        kind = EvenTimes if workload.model.timed else CallTimes
        self.parts: EvenTimes | CallTimes = kind(workload, roofline)
        # Steps are those of a rank that has its device for itself.
        self.alone = self.parts if roofline.alone is roofline else kind(workload, roofline.alone)
        self.names, self.tails = self.parts.names, self.parts.tails
        self._points = [self._curve(device) for device in roofline.alone.different]
        self._known: dict[tuple[str, int, int], float] = {}

    def _curve(self, device: Device) -> list[tuple[int, float]]:
        """Batch sizes, and what forward and backward take at them [s]."""
        found = []
        for point in self.spec.of_device(device.name):
            beside = time_beside_compute(self.workload, point.microbatch, device)
            found.append((point.microbatch, point.step_time - beside))
        return found

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
        activity : {"forward", "backward"}
            Which.
        batch, shapes, which, shares
            As for `CallTimes.seconds`.

        Returns
        -------
        Columns
            Of the calls, and of the loss where the model has one; 0 on a rank without samples.
        """
        found = self.parts.seconds(activity, batch, shapes, which, shares)
        _, first = np.unique(found.column, return_index=True)
        factors = [self._factor(activity, int(rank), int(batch[rank])) for rank in first]
        return Columns(found.seconds * factors, found.column)

    def _factor(self, activity: str, rank: int, batch: int) -> float:
        """What a rank's parts are multiplied by, so that full samples take the measured time."""
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

        return time_at(self._points[self.roofline.alone.device[rank]], batch, size)
