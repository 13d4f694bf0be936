"""Dataset: samples x and targets y, real arrays from a file or from a seed."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simdp.spec import Int, Spec
from simdp.workload.losses import Loss
from simdp.workload.models import Model

Array = NDArray[Any]


class Dataset(Spec):
    """Where samples come from."""

    kind: str

    usual_loss: ClassVar[str] = "mse"
    """The loss of a workload that names none."""

    @abstractmethod
    def length(self, base: Path) -> int:
        """Number of samples; ``base`` is the folder that relative paths start from."""

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        """Say why these samples do not suit a model and a loss, or None."""
        arrays = self.arrays(model, 0, base)
        x, wanted = arrays["x"], model.input_shape()
        if x.shape[1:] != wanted:
            return f"x has shape {x.shape}, but the model takes samples of shape {wanted}."
        if not np.issubdtype(x.dtype, np.floating) or not np.isfinite(x).all():
            return f"x is {x.dtype} or has values that are not finite; give finite floats."
        return loss.problem_with(arrays["y"], model.output_shape())

    @abstractmethod
    def arrays(self, model: Model, seed: int, base: Path) -> dict[str, Array]:
        """Return ``x`` and ``y``, each with the samples along the first axis.

        Floats come as float64, class indices as int64; the workload casts floats to its dtype.
        """


class Synthetic(Dataset):
    """Base of the data sets that are drawn from the scenario's seed, in the model's shapes."""

    num_samples: Int = Field(1024, ge=1, le=10**9)

    def length(self, base: Path) -> int:
        return self.num_samples

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        wrong = loss.problem_with(self.targets(model), model.output_shape())
        return f"{self.kind} does not suit the loss {loss.kind}: {wrong}" if wrong else None

    @abstractmethod
    def targets(self, model: Model) -> Array:
        """One sample's target, shaped and typed as those of `arrays`; its value means nothing."""
