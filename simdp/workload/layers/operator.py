"""Layers with given costs: operators and timed layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int
from simdp.workload.layers.base import Buffer, Kept, Kernel, Layer, Parameter, Pass, Shape, constant

# Operator -----------------------------------------------------------------------------------------

Size = Annotated[Float, Field(ge=0, le=1e18)]
Count = Annotated[Int, Field(ge=0, le=10**15)]


class KernelSizes(NamedTuple):
    """What a kernel asks of a device, whatever the dtype that its layer runs in.

    Attributes
    ----------
    flops : float
        Floating-point operations per sample.
    elements, fixed_elements : float
        Real numbers that it reads and writes: per sample, and whatever the samples.
    nbytes, fixed_nbytes : float
        Bytes of all else, such as indices and masks.
    """

    flops: Size
    elements: Size
    nbytes: Size = 0.0
    fixed_elements: Size = 0.0
    fixed_nbytes: Size = 0.0

    def at(self, itemsize: int) -> Kernel:
        """The kernel with real numbers of so many bytes."""
        fixed = self.fixed_elements * itemsize + self.fixed_nbytes
        return Kernel(self.flops, self.elements * itemsize + self.nbytes, fixed)


class KeptSizes(NamedTuple):
    """What an operator keeps for backward.

    Attributes
    ----------
    inputs : tuple of int
        Which of its inputs.
    output : bool
        Whether its output.
    elements, nbytes, fixed_elements, fixed_nbytes : float
        Of what it keeps beside them, as in `KernelSizes`.
    """

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
    """A buffer by name and shape, and whether it holds whole numbers."""

    name: str
    shape: tuple[Count, ...]
    integer: Bool = False


class Operator(Layer):
    """One operator as it ran, with what its inputs were and what its backward launched.

    Attributes
    ----------
    elements : int
        Real numbers that it makes of a sample.
    learned : tuple of Learned
        Parameters that it takes, in the order in which their gradients are ready.
    held : tuple of Held
        Buffers that belong to it.
    products : float
        FLOPs of forward's matrix products per sample, as publications count them.
    forward_kernels, backward_kernels : tuple of KernelSizes
        In the order of their launches.
    keeps : KeptSizes
        For backward.
    """

    kind: Literal["operator"] = "operator"
    elements: Count
    learned: tuple[Learned, ...] = ()
    held: tuple[Held, ...] = ()
    products: Size = 0.0
    forward_kernels: tuple[KernelSizes, ...] = ()
    backward_kernels: tuple[KernelSizes, ...] = ()
    keeps: KeptSizes = KeptSizes()

    def parameters(self) -> list[Parameter]:
        return [Parameter(name, shape, constant(0.0)) for name, shape in self.learned]

    def buffers(self) -> list[Buffer]:
        return [Buffer(name, shape, 0.0, integer) for name, shape, integer in self.held]

    def output_shape(self, *inputs: Shape) -> Shape:
        return (self.elements,)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """There are no numbers; the scenario's checks refuse to ask for them."""
        raise AssertionError(f"{self.name} has kernels but no numbers")

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        """As `forward`."""
        raise AssertionError(f"{self.name} has kernels but no numbers")

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [sizes.at(itemsize) for sizes in self.forward_kernels]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
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
    """One that multiplies matrices, as convolutions do."""

    autocast: ClassVar[Literal["lower"]] = "lower"


class FusedAttention(Product):
    """Attention in one kernel each way."""

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "fused_attention"


class WideOperator(Operator):
    """One that autocast runs in 32 bits."""

    autocast: ClassVar[Literal["float32"]] = "float32"


POLICIES: dict[str, type[Operator]] = {
    "fused_attention": FusedAttention,
    "product": Product,
    "promote": Operator,
    "wide": WideOperator,
}
"""By what autocast, and the roofline, make of them."""


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
