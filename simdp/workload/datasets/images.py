"""Synthetic images with a class each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.rng import stream
from simdp.workload.datasets.base import Synthetic
from simdp.workload.losses import Loss
from simdp.workload.models import Model

GRID = 4
"""A class is told by the colours of so many patches along each side of an image."""


class Images(Synthetic):
    """Random images of the model's size: coarse patches of the class's colours, under noise.

    The number of classes is that of the model's outputs; colours and noise are normal with
    variance 1.
    """

    kind: Literal["images"] = "images"

    usual_loss: ClassVar[str] = "cross_entropy"

    def problem_with_model(self, model: Model) -> str | None:
        wrong = super().problem_with_model(model)
        if wrong:
            return wrong
        (shape,) = model.known_shapes()
        if len(shape) != 3:
            return f"has samples of channels, rows and columns, but the model takes {shape}."
        return None

    def targets(self, model: Model) -> Array:
        return np.zeros(1, dtype=np.int64)

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "images")
        ((channels, height, width),) = model.known_shapes()
        (classes,) = model.output_shape()
        colours = random.standard_normal((classes, channels, GRID, GRID), dtype=np.float32)
        labels = random.integers(classes, size=self.num_samples)
        x = random.standard_normal((self.num_samples, channels, height, width), dtype=np.float32)
        chosen = colours[labels]
        for row, column in np.ndindex(GRID, GRID):
            rows = slice(row * height // GRID, (row + 1) * height // GRID)
            columns = slice(column * width // GRID, (column + 1) * width // GRID)
            x[:, :, rows, columns] += chosen[:, :, row, column, None, None]
        return {"x": x, "y": labels}
