"""A number of parameters: memory and communication, without any compute of their own."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.graph import Graph
from simdp.workload.layers.timed import TimedLayer
from simdp.workload.models.timed import TimedModel, chain


def _counted(value: Any) -> Any:
    """``25.6e6`` is a count as well, which YAML reads as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Parameters(TimedModel):
    """``{kind: parameters, num_params: 25_000_000}``: equal layers, each in no time.

    With ``compute: measured`` a step takes the measured time, in which all layers have equal parts.

    Attributes
    ----------
    num_params : int
        Elements of all layers; also as ``25.6e6``.
    num_layers : int
        Layers, with a tensor each. One by default, but 50 where compute is measured: with a single
        one no communication could begin before backward ends.
    """

    kind: Literal["parameters"] = "parameters"
    num_params: Annotated[Int, BeforeValidator(_counted)] = Field(ge=1, le=10**13)
    num_layers: Int = Field(1, ge=1, le=10**5)

    brings_times: ClassVar[bool] = False

    @model_validator(mode="after")
    def _each_layer_learns(self) -> Parameters:
        if self.num_layers > self.num_params:
            raise problem(
                f"num_layers: {self.num_layers} layers cannot share {self.num_params} parameters; "
                "give fewer layers."
            )
        return self

    def build(self) -> Graph:
        each, more = divmod(self.num_params, self.num_layers)
        return chain(
            [
                TimedLayer(
                    name="parameters" if self.num_layers == 1 else f"parameters.{number}",
                    forward_time=0,
                    gradient_time=0,
                    num_elements=each + (number < more),
                )
                for number in range(self.num_layers)
            ]
        )
