"""Synthetic classification: one Gaussian cloud per class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.rng import stream
from simdp.workload.datasets.base import Synthetic
from simdp.workload.losses import Loss
from simdp.workload.models import Model


class Blobs(Synthetic):
    """Normal clouds around a random centre per class; y holds class indices.

    The number of classes is the length of the model's last output axis.
    """

    kind: Literal["blobs"] = "blobs"

    usual_loss: ClassVar[str] = "cross_entropy"

    def targets(self, model: Model) -> Array:
        return np.zeros((1, *model.output_shape()[:-1]), dtype=np.int64)

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "blobs")
        *positions, classes = model.output_shape()
        (shape,) = model.known_shapes()
        centres = random.standard_normal((classes, *shape))
        labels = random.integers(classes, size=self.num_samples)
        x = centres[labels] + random.standard_normal((self.num_samples, *shape))
        y = np.broadcast_to(
            labels.reshape(-1, *[1] * len(positions)), (self.num_samples, *positions)
        )
        return {"x": x, "y": y.astype(np.int64)}
