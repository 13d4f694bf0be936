"""PReLU: x above 0, a learned share of x below, as torch.nn.PReLU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float, Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.parameter import Parameter, constant


class PReLU(Layer):
    """Rectified linear unit whose slope below 0 is learned (He et al., arXiv 1502.01852).

    Attributes
    ----------
    num_parameters : int
        1, or one for each channel.
    init : float
        The slope before training.
    """

    kind: Literal["prelu"] = "prelu"
    num_parameters: Int = Field(1, ge=1, le=10**8)
    init: Float = 0.25

    autocast: ClassVar[Literal["lower"]] = "lower"

    def parameters(self) -> list[Parameter]:
        return [Parameter(f"{self.name}.weight", (self.num_parameters,), constant(self.init))]

    def output_shape(self, *inputs: Shape) -> Shape:
        if self.num_parameters > 1 and inputs[0][:1] != (self.num_parameters,):
            raise ShapeError(
                f"takes {self.num_parameters} channels, but gets samples of shape {inputs[0]}"
            )
        return inputs[0]

    def _slope(self, run: Pass, x: Array) -> Array:
        weight = run.parameters[f"{self.name}.weight"]
        return weight.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else weight

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        return np.where(x > 0, x, self._slope(run, x) * x), x

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        above = saved > 0
        pulled = np.where(above, 0, saved * dy)
        if self.num_parameters == 1:
            gradient = pulled.sum(keepdims=True).reshape(1)
        else:
            gradient = pulled.sum(axis=(0, *range(2, pulled.ndim)))
        run.add_gradient(f"{self.name}.weight", gradient)
        if not needs[0]:
            return (None,)
        return (np.where(above, dy, self._slope(run, saved) * dy),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(2 * size, 2 * size * itemsize, self.num_parameters * float(itemsize))]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """One kernel writes both gradients, element by element; another adds up the weight's."""
        size, weight = float(prod(inputs[0])), self.num_parameters * float(itemsize)
        both = Kernel(4 * size, (3 + needs[0]) * size * itemsize, weight)
        return [both, Kernel(size, size * itemsize, weight)]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
