"""Batch norm of the channels of volumes: torch.nn.BatchNorm3d."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.batch_norm import BatchNorm


class BatchNorm3d(BatchNorm):
    """Batch norm over samples and voxels; per rank, unless it is a SyncBatchNorm."""

    kind: Literal["batch_norm3d"] = "batch_norm3d"

    sample_axes: ClassVar[tuple[int, ...]] = (4,)
