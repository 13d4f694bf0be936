"""Layers with given costs: operators and timed layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.layers.base import (
    Buffer,
    Kept,
    Kernel,
    Needs,
    Parameter,
    Shape,
    WithoutNumbers,
    constant,
)

Size = Annotated[Float, Field(ge=0, le=1e18)]
Count = Annotated[Int, Field(ge=0, le=10**15)]


class KernelSizes(NamedTuple):
    """Cost of a kernel, independent of the dtype."""

    flops: Size
    """Floating-point operations per sample."""
    elements: Size
    """Real numbers read and written: per sample, and per launch."""
    nbytes: Size = 0.0
    """Bytes of everything else, such as indices and masks."""
    fixed_elements: Size = 0.0
    """Real numbers read and written: per sample, and per launch."""
    fixed_nbytes: Size = 0.0
    """Bytes of everything else, such as indices and masks."""

    def at(self, itemsize: int) -> Kernel:
        """The kernel with real numbers of ``itemsize`` bytes."""
        fixed = self.fixed_elements * itemsize + self.fixed_nbytes
        return Kernel(self.flops, self.elements * itemsize + self.nbytes, fixed)


class KeptSizes(NamedTuple):
    """Values that an operator keeps for backward: inputs by position, output, and others."""

    inputs: tuple[Count, ...] = ()
    output: Bool = False
    elements: Size = 0.0
    nbytes: Size = 0.0
    fixed_elements: Size = 0.0
    fixed_nbytes: Size = 0.0


class Learned(NamedTuple):
    """A parameter by name and shape."""

    name: str
    shape: tuple[Count, ...]


class Held(NamedTuple):
    """A buffer by name and shape, and whether it is int64."""

    name: str
    shape: tuple[Count, ...]
    integer: Bool = False


class Operator(WithoutNumbers):
    """A recorded operator with given kernels of forward and backward."""

    kind: Literal["operator"] = "operator"
    elements: Count
    """Real numbers of its output per sample."""
    learned: tuple[Learned, ...] = ()
    """Parameters, in the order in which their gradients are ready."""
    held: tuple[Held, ...] = ()
    """Buffers."""
    products: Size = 0.0
    """FLOPs of forward's matrix products per sample, as publications count them."""
    forward_kernels: tuple[KernelSizes, ...] = ()
    """In the order of their launches."""
    backward_kernels: tuple[KernelSizes, ...] = ()
    """In the order of their launches."""
    keeps: KeptSizes = KeptSizes()
    """Values kept for backward."""

    def parameters(self) -> list[Parameter]:
        return [Parameter(name, shape, constant(0.0)) for name, shape in self.learned]

    def buffers(self) -> list[Buffer]:
        return [Buffer(name, shape, 0.0, integer) for name, shape, integer in self.held]

    def output_shape(self, *inputs: Shape) -> Shape:
        return (self.elements,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [sizes.at(itemsize) for sizes in self.forward_kernels]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return [sizes.at(itemsize) for sizes in self.backward_kernels]

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        return self.products

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        keeps = self.keeps
        return Kept(
            keeps.inputs,
            keeps.output,
            keeps.elements * itemsize + keeps.nbytes,
            keeps.fixed_elements * itemsize + keeps.fixed_nbytes,
        )


class Product(Operator):
    """An operator that multiplies matrices, such as a convolution."""

    autocast = "lower"

    @property
    def uses_cudnn(self) -> bool:  # type: ignore[override]
        """Whether it is a convolution; its name ends in torch's operator."""
        return self.name.rpartition(".")[2].startswith("convolution")


class FusedAttention(Product):
    """Attention in one kernel in each direction."""

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "fused_attention"


class WideOperator(Operator):
    """An operator that autocast runs in 32 bits."""

    autocast = "float32"


POLICIES: dict[str, type[Operator]] = {
    "fused_attention": FusedAttention,
    "product": Product,
    "promote": Operator,
    "wide": WideOperator,
}
"""Classes by their treatment in autocast and in the roofline."""


class TimedLayer(WithoutNumbers):
    """A layer with measured times, for a micro-step of the measured size."""

    kind: Literal["timed"] = "timed"
    forward_time: float
    """Time of forward [s]."""
    gradient_time: float
    """Backward until the gradient of its parameter, if it has one [s]."""
    input_time: float = 0.0
    """Backward after that [s]."""
    num_elements: int
    """Elements of its parameter, which has the layer's name; 0 for none."""
    activation_nbytes: float = 0.0
    """Kept from forward for backward [bytes]."""
    forward_host: float = 0.0
    """Host time to launch the first two [s]: a lower bound, except when a CUDA graph is
    replayed."""
    gradient_host: float = 0.0
    """Host time to launch the first two [s]: a lower bound, except when a CUDA graph is
    replayed."""
    products: float = 0.0
    """Share of its times that is arithmetic of matrix products, from 0 to 1; the rest is memory
    traffic."""
    num_buffers: int = 0
    """Elements of its buffers: of the workload's dtype, and integers."""
    num_counters: int = 0
    """Elements of its buffers: of the workload's dtype, and integers."""

    def parameters(self) -> list[Parameter]:
        if not self.num_elements:
            return []
        return [Parameter(self.name, (self.num_elements,), constant(0.0))]

    def buffers(self) -> list[Buffer]:
        buffers = []
        if self.num_buffers:
            buffers.append(Buffer(f"{self.name}.buffers", (self.num_buffers,), 0.0))
        if self.num_counters:
            buffers.append(Buffer(f"{self.name}.counters", (self.num_counters,), 0, integer=True))
        return buffers

    def output_shape(self, *inputs: Shape) -> Shape:
        return ()

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return []

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(fixed=self.activation_nbytes)
