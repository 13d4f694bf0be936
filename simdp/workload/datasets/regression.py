"""Synthetic regression: targets from a linear teacher with a little noise."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Literal

import numpy as np

from simdp.arrays import Array
from simdp.rng import stream
from simdp.workload.datasets.base import Synthetic
from simdp.workload.losses import Loss
from simdp.workload.models import Model


class Regression(Synthetic):
    """Normal x shaped as the model wants it; y = x A + noise, shaped as the model's output."""

    kind: Literal["regression"] = "regression"

    def targets(self, model: Model) -> Array:
        return np.zeros((1, *model.output_shape()))

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "regression")
        (shape,) = model.known_shapes()
        num_in = prod(shape)
        num_out = prod(model.output_shape())
        x = random.standard_normal((self.num_samples, num_in))
        teacher = random.standard_normal((num_in, num_out)) / np.sqrt(num_in)
        y = x @ teacher + 0.1 * random.standard_normal((self.num_samples, num_out))
        y = loss.drawn(y.reshape(-1, *model.output_shape()))
        return {"x": x.reshape(-1, *shape), "y": y}
