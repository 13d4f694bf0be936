"""Multi-layer perceptron: linear layers with an activation between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic.config import JsonDict

from simdp.errors import KindError, unknown_name
from simdp.family import WRITTEN_OUT
from simdp.spec import Bool, Int, problem
from simdp.workload.graph import Graph, GraphBuilder
from simdp.workload.layers.activations import ACTIVATIONS, activation
from simdp.workload.layers.base import Shape
from simdp.workload.layers.linear import Linear
from simdp.workload.models.base import Model

KINDS: JsonDict = {
    "anyOf": [
        {"enum": [*sorted(ACTIVATIONS)]},
        {"pattern": f"^{WRITTEN_OUT}$", "title": "`module:Class`"},
    ]
}
"""What an activation may be called, in JSON Schema."""


class MLP(Model):
    """Linear layers ``widths[0] -> widths[1] -> ...``; no activation after the last.

    Parameters are named ``layers.0.weight``, ``layers.0.bias``, ``layers.1.weight``, ...

    Attributes
    ----------
    widths : list of int
        Length of a sample, then the outputs of each layer.
    activation : str
        Its kind; between every two layers.
    bias : bool
        Whether layers have one.
    """

    kind: Literal["mlp"] = "mlp"
    widths: list[Annotated[Int, Field(ge=1, le=10**8)]] = Field(min_length=2)
    activation: str = Field("relu", json_schema_extra=KINDS)
    bias: Bool = True

    @field_validator("activation")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            found = ACTIVATIONS.find(value)
        except KindError as error:
            raise problem(f"the activation {error}") from None
        if found is None:
            known = sorted({*ACTIVATIONS, *ACTIVATIONS.offered()})
            raise problem(unknown_name("activation", value, known))
        return value

    def build(self) -> Graph:
        graph = GraphBuilder("x")
        h = graph.input("x")
        for index, (before, after) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            if index:
                h = graph.call(activation(self.activation, f"{self.activation}.{index - 1}"), h)
            name = f"layers.{index}"
            linear = Linear(name=name, in_features=before, out_features=after, bias=self.bias)
            h = graph.call(linear, h)
        return graph.build(h)

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.widths[0],)}
