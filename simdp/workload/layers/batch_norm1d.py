"""Batch norm of features, or of channels along one axis: torch.nn.BatchNorm1d."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.batch_norm import BatchNorm


class BatchNorm1d(BatchNorm):
    """Batch norm over samples (and positions); per rank, unless it is a SyncBatchNorm."""

    kind: Literal["batch_norm1d"] = "batch_norm1d"

    sample_axes: ClassVar[tuple[int, ...]] = (1, 2)
