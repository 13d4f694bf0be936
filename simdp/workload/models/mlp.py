"""Multi-layer perceptron: linear layers with an activation between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from simdp.errors import unknown_name
from simdp.spec import Bool, Int, problem
from simdp.workload.layers import ACTIVATIONS, Layer, Linear
from simdp.workload.models.base import Model


class MLP(Model):
    """Linear layers ``widths[0] -> widths[1] -> ...``; no activation after the last.

    Parameters are named ``layers.0.weight``, ``layers.0.bias``, ``layers.1.weight``, ...
    """

    kind: Literal["mlp"] = "mlp"
    widths: list[Annotated[Int, Field(ge=1, le=10**8)]] = Field(min_length=2)
    activation: str = "relu"
    bias: Bool = True

    @field_validator("activation")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ACTIVATIONS:
            raise problem(unknown_name("activation", value, sorted(ACTIVATIONS)))
        return value

    def layers(self) -> list[Layer]:
        activation: Any = ACTIVATIONS[self.activation]
        layers: list[Layer] = []
        for index, (before, after) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            if index:
                layers.append(activation(name=f"{self.activation}.{index - 1}", features=before))
            layers.append(
                Linear(
                    name=f"layers.{index}", in_features=before, out_features=after, bias=self.bias
                )
            )
        return layers

    def input_shape(self) -> tuple[int, ...]:
        return (self.widths[0],)

    def output_shape(self) -> tuple[int, ...]:
        return (self.widths[-1],)
