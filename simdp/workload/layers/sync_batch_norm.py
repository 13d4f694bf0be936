"""SyncBatchNorm: statistics of all ranks' micro-batches, as torch.nn.SyncBatchNorm.

Two collectives per layer: forward gathers each rank's mean, variance and count (2 C + 1 numbers),
backward sums two numbers per channel (2 C).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.arrays.channels import channels_last, repeated, rows_of
from simdp.workload.layers.base import Exchange, Pass, Synchronised
from simdp.workload.layers.batch_norm import BatchNormSettings, BatchStatistics, moments


class SyncBatchNorm(BatchNormSettings, Synchronised):
    """Batch norm over the samples of all ranks."""

    kind: Literal["sync_batch_norm"] = "sync_batch_norm"

    def exchanged_elements(self) -> tuple[int, int]:
        return 2 * self.num_features + 1, 2 * self.num_features

    def exchanged_forward(self, run: Pass, *inputs: Array) -> Exchange[tuple[Array, Any]]:
        x = inputs[0]
        own, centred = moments(x)
        part = np.concatenate([own.mean, own.variance, [own.num_values]])
        rows = yield part.astype(x.dtype)
        found = _joined(rows.astype(np.float64), self.num_features)
        self.track(run, found)
        values = rows_of(centred)
        shifts = repeated(own.mean - found.mean, values)
        for block in blocks(*values.shape):
            values[block] += shifts
        y, saved = self.normalise(run, centred, found.variance)
        return y, (saved, found.num_values)

    def exchanged_backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> Exchange[tuple[Array | None, ...]]:
        kept, count = saved
        slope = channels_last(dy)
        own = np.concatenate(self.sums(run, kept, slope))
        everyone = yield own.astype(dy.dtype)
        total, projected = np.split(everyone.astype(np.float64), 2)
        if not needs[0]:
            return (None,)
        return (self.input_gradient(run, kept, slope, total, projected, max(count, 1)),)


def _joined(rows: Array, num_features: int) -> BatchStatistics:
    """Mean and variance of all ranks' samples from those of each rank; empty ranks weigh nothing.

    ``variance = sum n_r (var_r + (mean_r - mean)^2) / n`` (Chan, Golub and LeVeque, 1979).
    """
    means, variances = rows[:, :num_features], rows[:, num_features:-1]
    weight = rows[:, -1:]
    count = weight.sum()
    mean = (weight * means).sum(axis=0) / max(count, 1)
    variance = (weight * (variances + (means - mean) ** 2)).sum(axis=0) / max(count, 1)
    return BatchStatistics(mean, variance, float(count))
