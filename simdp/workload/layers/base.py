"""Layer: forward and backward in NumPy, beside the FLOPs and bytes that they cost on a device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from simdp.arrays import Array, Ints
from simdp.rng import uniform_at
from simdp.spec import Spec
from simdp.workload.layers.parameter import Buffer, Parameter

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value

Parameters = Mapping[str, Array]
T = TypeVar("T")
Shape = tuple[int, ...]
"""Of one sample: without the batch's axis."""

NO_ARRAYS: Parameters = MappingProxyType({})

PAUSE: Array = np.zeros(0)
"""What a pass with pauses yields before each call, instead of a part to exchange."""


class ShapeError(ValueError):
    """What a layer is given does not fit it."""


class Kernel(NamedTuple):
    """What one kernel asks of a device.

    Attributes
    ----------
    flops : float
        Floating-point operations per sample; a multiply-add counts as two.
    nbytes : float
        Bytes read and written in device memory per sample, each tensor once.
    fixed : float
        Bytes that do not depend on the samples, such as weights.
    """

    flops: float
    nbytes: float
    fixed: float = 0.0


class Kept(NamedTuple):
    """What a layer keeps from forward for backward; values that others keep too are kept once.

    Attributes
    ----------
    inputs : tuple of int
        Which of its inputs.
    output : bool
        Whether its output.
    nbytes : float
        Of what it keeps beside them, per sample.
    fixed : float
        Bytes that it keeps of a micro-batch, whatever its samples.
    """

    inputs: tuple[int, ...] = ()
    output: bool = False
    nbytes: float = 0.0
    fixed: float = 0.0


@dataclass
class Pass:
    """One rank's forward and backward over a micro-batch.

    Attributes
    ----------
    parameters : mapping of str to ndarray
        The rank's weights by torch name.
    buffers : dict of str to ndarray
        The rank's buffers; a layer may change them in place.
    gradients : dict of str to ndarray
        What backward has found so far.
    into : mapping of str to ndarray
        Arrays that gradients may be written into, instead of new ones; their content is lost.
    samples : ndarray, shape `(batch,)`
        Which samples these are, for random numbers that belong to a sample.
    seed, step : int
        Of the scenario, and the number of the optimizer step.
    pauses : bool
        Whether to yield `PAUSE` before each call, so that weights may come and go.
    """

    parameters: Parameters
    buffers: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    into: Parameters = field(default_factory=lambda: NO_ARRAYS)
    samples: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seed: int = 0
    step: int = 0
    pauses: bool = False

    def room(self, name: str) -> Array:
        """An array that a gradient of a parameter may be written into; its content is lost."""
        if name in self.gradients or name not in self.into:
            return np.empty_like(self.parameters[name])
        return self.into[name]

    def add_gradient(self, name: str, gradient: Array) -> None:
        """Add to a parameter's gradient; a parameter that several layers share gets several."""
        if name in self.gradients:
            self.gradients[name] += gradient
        else:
            self.gradients[name] = gradient

    def uniform(self, layer: str, shape: Shape) -> Array:
        """Random numbers of each sample in [0, 1), shape `(batch, *shape)`, float64.

        They depend on the seed, the step, the layer, the sample and the place in its tensor, but
        neither on the batch that the sample is in nor on the length that it is padded to.
        """
        return uniform_at(self.seed, ("dropout", layer, self.step), self.samples, shape)


class Module(Spec):
    """What a model is made of: a layer, or a block of several.

    Attributes
    ----------
    name : str
        Its path in the model, which leads its parameters' names.
    inputs : tuple of str or None
        In `Sequential`: names of the layers that it takes, or ``input``; by default the one before.
    """

    kind: str
    name: str = ""
    inputs: tuple[str, ...] | None = Field(None, min_length=1)

    most_inputs: ClassVar[int | None] = 1
    """How many it may be told to take; None is any number."""

    @abstractmethod
    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        """Append to a model's graph, in the order of forward; return what comes out."""


class Layer(Module):
    """One step of a model. Arrays are passed in, so that one layer serves all replicas."""

    autocast: ClassVar[Literal["lower", "float32", "promote"]] = "promote"
    """In mixed precision: 16 bit, 32 bit, or the widest of its inputs."""

    keeps_for_weights: ClassVar[bool] = False
    """Whether what it keeps serves gradients of its weights alone, as of a product."""

    splits_backward: ClassVar[bool] = False
    """Whether kernels of backward that run where no input wants a gradient serve its weights alone:
    then frozen ones spare them."""

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        """Whether selective recomputation keeps its output: a matrix product, or a fused kernel."""
        return "product" if self.autocast == "lower" else "no"

    @property
    def constant_nbytes(self) -> float:
        """Bytes that it holds beside its tensors, whole on every rank."""
        return 0.0

    def parameters(self) -> list[Parameter]:
        """Learned tensors, in torch's order of registration."""
        return []

    def buffers(self) -> list[Buffer]:
        """Tensors that are kept but not learned, in torch's order of registration."""
        return []

    def ready_order(self) -> list[str]:
        """Names of the parameters in the order in which torch's autograd finishes gradients."""
        return [parameter.name for parameter in self.parameters()]

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return graph.call(self, *inputs)

    @abstractmethod
    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape that comes out, per sample.

        Raises
        ------
        ShapeError
            If the inputs' shapes do not fit.
        """

    @abstractmethod
    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """Return the output and what backward needs."""

    @abstractmethod
    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        """Add the parameters' gradients to the pass, and return those of the inputs.

        Parameters
        ----------
        run : Pass
            As in forward.
        saved : object
            What forward returned beside the output.
        dy : ndarray
            Gradient of the output; left as it is.
        needs : sequence of bool
            For which inputs a gradient is wanted; None is returned for the others.
        """

    @abstractmethod
    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Kernels of forward on samples whose inputs have these shapes."""

    @abstractmethod
    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Kernels of backward."""

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """FLOPs of forward's products per sample, as publications count them."""
        if self.autocast != "lower":
            return 0.0
        return sum(kernel.flops for kernel in self.forward_cost(inputs, 1))

    @abstractmethod
    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """What torch's layer keeps from forward for backward."""

    def evaluated(self) -> Layer:
        """The layer as it is after training, with the same tensors: torch's ``eval()``."""
        return self


Exchange = Generator[Array, Array, T]
"""A generator that yields a rank's part, is sent the answer to all ranks' parts, and returns."""


class Synchronised(Layer):
    """Base of the layers whose ranks exchange numbers in the middle of forward and backward."""

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """As on one rank, that hears itself alone."""
        return _alone(self.exchanged_forward(run, *inputs), lambda own: own[None])

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        """As on one rank, that hears itself alone."""
        return _alone(self.exchanged_backward(run, saved, dy, needs), lambda own: own)

    @abstractmethod
    def exchanged_forward(self, run: Pass, *inputs: Array) -> Exchange[tuple[Array, Any]]:
        """Like forward; yields a one-dimensional array, is sent those of all ranks as rows."""

    @abstractmethod
    def exchanged_backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> Exchange[tuple[Array | None, ...]]:
        """Like backward; yields a one-dimensional array, is sent the sum over all ranks."""

    @abstractmethod
    def exchanged_elements(self) -> tuple[int, int]:
        """Elements that a rank yields in forward and in backward."""


def _alone(exchange: Exchange[T], answer: Callable[[Array], Array]) -> T:
    own = next(exchange)
    try:
        exchange.send(answer(own))
    except StopIteration as stop:
        found: T = stop.value
        return found
    raise AssertionError("an exchange yields once")
