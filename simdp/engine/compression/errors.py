"""Errors: what compression has lost of every rank's gradients, kept for the next step."""

from __future__ import annotations

from collections.abc import Mapping

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

    def state_dict(self) -> dict[str, Array]:
        """What every rank has lost."""
        return {
            f"{rank}/lost/{name}": own
            for name, lost in self.lost.items()
            for rank, own in enumerate(lost)
        }

    def load_state_dict(self, arrays: Mapping[str, Array], world_size: int) -> None:
        """Take up what was lost; ranks that were not there have lost nothing yet."""
        names = {name.split("/", 2)[2] for name in arrays if "/lost/" in name}
        for name in sorted(names):
            first = arrays[f"0/lost/{name}"]
            kept = [arrays.get(f"{rank}/lost/{name}") for rank in range(world_size)]
            self.lost[name] = [np.zeros_like(first) if one is None else one.copy() for one in kept]

    def settle(self, bucket: FlatBuffers) -> None:
        """Subtract from what was to be sent what a bucket holds now: what was."""
        for name in bucket.names():
            for own, view in zip(self.lost[name], bucket.views(name), strict=True):
                np.subtract(own, view, out=own)
