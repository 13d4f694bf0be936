"""TimedLayer: a layer of which only times and sizes are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.parameter import Buffer, Parameter, constant


class TimedLayer(Layer):
    """What was measured of a layer, for a micro-step of whatever size was measured.

    Attributes
    ----------
    forward_time : float
        Of its forward [s].
    gradient_time : float
        From the gradient of its output to that of its parameter, if it has one [s].
    input_time : float
        What its backward takes after that [s].
    num_elements : int
        Of its parameter, which is called as the layer; 0 where nothing is learned.
    activation_nbytes : float
        What it keeps from forward for backward [bytes].
    forward_host, gradient_host : float
        What the host needs to launch the first two [s]: neither takes less, unless a CUDA graph is
        replayed.
    products : float
        The part of its times that the arithmetic of products takes, from 0 to 1; the rest is memory
        traffic.
    num_buffers, num_counters : int
        Elements of its buffers: of the workload's dtype, and integers.
    """

    kind: Literal["timed"] = "timed"
    forward_time: float
    gradient_time: float
    input_time: float = 0.0
    num_elements: int
    activation_nbytes: float = 0.0
    forward_host: float = 0.0
    gradient_host: float = 0.0
    products: float = 0.0
    num_buffers: int = 0
    num_counters: int = 0

    def parameters(self) -> list[Parameter]:
        if not self.num_elements:
            return []
        return [Parameter(self.name, (self.num_elements,), constant(0.0))]

    def buffers(self) -> list[Buffer]:
        found = []
        if self.num_buffers:
            found.append(Buffer(f"{self.name}.buffers", (self.num_buffers,), 0.0))
        if self.num_counters:
            found.append(Buffer(f"{self.name}.counters", (self.num_counters,), 0, integer=True))
        return found

    def output_shape(self, *inputs: Shape) -> Shape:
        return ()

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """There are no numbers; the scenario's checks refuse to ask for them."""
        raise AssertionError(f"{self.name} has times but no numbers")

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        """As `forward`."""
        raise AssertionError(f"{self.name} has times but no numbers")

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return []

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(fixed=self.activation_nbytes)
