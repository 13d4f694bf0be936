"""Dataset: samples x and targets y, real arrays from a file or from a seed."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic import Field

from simdp.spec import Spec
from simdp.workload.models import Model

Array = NDArray[Any]


class Dataset(Spec):
    """Where samples come from."""

    kind: str

    @abstractmethod
    def length(self, base: Path) -> int:
        """Number of samples; ``base`` is the folder that relative paths start from."""

    @abstractmethod
    def arrays(self, model: Model, seed: int, base: Path) -> dict[str, Array]:
        """Return ``x`` and ``y``, each with the samples along the first axis.

        Floats come as float64, class indices as int64; the workload casts floats to its dtype.
        """


class Synthetic(Dataset):
    """Base of the data sets that are drawn from the scenario's seed."""

    num_samples: int = Field(1024, ge=1)

    def length(self, base: Path) -> int:
        return self.num_samples
