"""A number of parameters: memory and communication, without any compute."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.graph import Graph
from simdp.workload.layers.timed import TimedLayer
from simdp.workload.models.timed import TimedModel, chain


class Parameters(TimedModel):
    """``{kind: parameters, num_params: 25_000_000}``: one tensor, forward and backward in no time.

    Attributes
    ----------
    num_params : int
        Elements of the tensor.
    """

    kind: Literal["parameters"] = "parameters"
    num_params: Int = Field(ge=1, le=10**13)

    def build(self) -> Graph:
        name = "parameters"
        return chain(
            [TimedLayer(name=name, forward_time=0, gradient_time=0, num_elements=self.num_params)]
        )
