"""No update: gradients are exchanged, weights stay."""

from __future__ import annotations

from typing import Literal

from simdp.arrays import Array
from simdp.workload.optimizers.base import Optimizer, State, Temporaries


class NoOptimizer(Optimizer):
    """Leaves the parameters as they are and takes no time."""

    kind: Literal["none"] = "none"
    lr: Literal[0] = 0

    def starting_state(self) -> dict[str, float]:
        return {}

    def num_kernels(self) -> int:
        # It leaves everything as it is.
        return 0

    def temporaries(self) -> Temporaries:
        return Temporaries(0, 0)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        """Do nothing."""

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        return 0.0
