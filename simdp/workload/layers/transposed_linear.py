"""TransposedLinear: ``y = x W + b``, as transformers' Conv1D, which GPT-2 is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.linear import affine_backward_cost, affine_cost
from simdp.workload.layers.parameter import Parameter, constant, normal
from simdp.workload.layers.shapes import last_axis


class TransposedLinear(Layer):
    """Affine map of the last axis; the weight has shape ``(in_features, out_features)``."""

    kind: Literal["transposed_linear"] = "transposed_linear"
    in_features: Int = Field(ge=1, le=10**8)
    out_features: Int = Field(ge=1, le=10**8)

    autocast: ClassVar[Literal["lower"]] = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def parameters(self) -> list[Parameter]:
        shape = (self.in_features, self.out_features)
        return [
            Parameter(f"{self.name}.weight", shape, normal(0.02)),
            Parameter(f"{self.name}.bias", (self.out_features,), constant(0.0)),
        ]

    def ready_order(self) -> list[str]:
        return [f"{self.name}.bias", f"{self.name}.weight"]

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*last_axis(inputs[0], self.in_features), self.out_features)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0].reshape(-1, self.in_features)
        y = x @ run.parameters[f"{self.name}.weight"]
        y += run.parameters[f"{self.name}.bias"]
        return y.reshape(*inputs[0].shape[:-1], self.out_features), inputs[0]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        x = saved.reshape(-1, self.in_features)
        flat = dy.reshape(-1, self.out_features)
        weight, bias = f"{self.name}.weight", f"{self.name}.bias"
        run.add_gradient(bias, flat.sum(axis=0, out=run.room(bias)))
        run.add_gradient(weight, np.matmul(x.T, flat, out=run.room(weight)))
        if not needs[0]:
            return (None,)
        return ((flat @ run.parameters[weight].T).reshape(saved.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [affine_cost(inputs[0], self.in_features, self.out_features, True, itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return affine_backward_cost(
            inputs[0], self.in_features, self.out_features, True, itemsize, needs[0]
        )

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
