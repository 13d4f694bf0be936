"""How long each call of a model takes that brings its times: as long as its file says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdp.arrays import Ints
from simdp.engine.compute.columns import Columns
from simdp.engine.compute.roofline import Roofline
from simdp.workload import Workload
from simdp.workload.layers.timed import TimedLayer


class ProfileTimes:
    """Seconds of forward and backward, call by call; the same on every device of one rank.

    With k ranks on a device, all that its file says of a layer takes k times as long.

    Parameters
    ----------
    workload : Workload
        Whose model brings its times.
    roofline : Roofline
        The devices, of which it matters only how many ranks share them.

    Attributes
    ----------
    names : list of str
        Of the layers; there is no loss.
    tails : list of bool
        Whether a call's backward goes on once its gradients are ready.
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
        layers = [call.layer for call in workload.graph.calls]
        timed = [layer for layer in layers if isinstance(layer, TimedLayer)]
        assert len(timed) == len(layers), "a model brings the times of all of its layers"
        self.names = [layer.name for layer in timed]
        self.tails = [layer.input_time > 0 for layer in timed]
        columns = {
            "forward": [layer.forward_time for layer in timed],
            "backward": [layer.gradient_time for layer in timed],
            "tail": [layer.input_time for layer in timed],
        }
        # The first column is of ranks without samples.
        different, self._column = np.unique(roofline.sharers, return_inverse=True)
        self._tables = {
            activity: np.outer(seconds, [0, *different]) for activity, seconds in columns.items()
        }

    def seconds(self, activity: str, batch: Ints, shapes: Sequence[Any], which: Ints) -> Columns:
        """Time of every call on every rank.

        Parameters
        ----------
        activity : {"forward", "backward", "tail"}
            Which; ``tail`` is what backward takes once a layer's gradient is ready.
        batch : ndarray, shape `(world_size,)`
            Samples of each rank; a layer's time is that of a micro-step, however many there are.
        shapes, which
            Of no matter here.

        Returns
        -------
        Columns
            Of the calls; 0 on a rank without samples.
        """
        table = self._tables[activity]
        if batch.all():
            return Columns(table[:, 1:], self._column)
        return Columns(table, (batch > 0) * (1 + self._column))
