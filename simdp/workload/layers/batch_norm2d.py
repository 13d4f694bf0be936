"""Batch norm of the channels of images: torch.nn.BatchNorm2d."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.batch_norm import BatchNorm


class BatchNorm2d(BatchNorm):
    """Batch norm over samples and pixels; per rank, unless it is a SyncBatchNorm."""

    kind: Literal["batch_norm2d"] = "batch_norm2d"

    sample_axes: ClassVar[tuple[int, ...]] = (3,)
