"""Errors: what compression has lost of every rank's gradients, kept for the next step."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array
from simdp.engine.buffers import FlatBuffers


class Errors:
    """Error feedback of all ranks, tensor by tensor, so that it outlives the buckets."""

    def __init__(self) -> None:
        self.lost: dict[str, list[Array]] = {}

    def add(self, bucket: FlatBuffers) -> None:
        """Add what was lost to a bucket, and note the sums: what is to be sent now."""
        for name in bucket.names():
            views = bucket.views(name)
            lost = self.lost.setdefault(name, [np.zeros_like(view) for view in views])
            for own, view in zip(lost, views, strict=True):
                np.add(view, own, out=view)
                own[...] = view

    def settle(self, bucket: FlatBuffers) -> None:
        """Subtract from what was to be sent what a bucket holds now: what was."""
        for name in bucket.names():
            for own, view in zip(self.lost[name], bucket.views(name), strict=True):
                np.subtract(own, view, out=own)
