"""Layer: forward and backward in NumPy, beside the FLOPs and bytes that they cost on a device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.spec import Spec

Array = NDArray[Any]
Floats = NDArray[np.float64]
Parameters = Mapping[str, Array]

NO_ARRAYS: Parameters = MappingProxyType({})


class Parameter(NamedTuple):
    """A learned tensor: its torch name, its shape, and the bound of its uniform initial values."""

    name: str
    shape: tuple[int, ...]
    bound: float

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Cost(NamedTuple):
    """What a piece of work asks of a device; each an array over ranks, or a number.

    Attributes
    ----------
    flops : float
        Floating-point operations; a multiply-add counts as two.
    nbytes : float
        Bytes read and written in device memory, each tensor once.
    launches : float
        Kernels launched.
    """

    flops: Floats
    nbytes: Floats
    launches: Floats

    def __add__(self, other: object) -> Cost:
        """Add two pieces of work that run one after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(
            self.flops + other.flops, self.nbytes + other.nbytes, self.launches + other.launches
        )


def cost(batch: Floats, flops: float, nbytes: float, launches: int, fixed: float = 0.0) -> Cost:
    """Cost of work on ``batch`` samples per rank.

    Parameters
    ----------
    batch : ndarray, shape `(world_size,)`
        Samples of each rank; a rank without samples does nothing.
    flops, nbytes : float
        Per sample.
    launches : int
        Kernels.
    fixed : float
        Bytes that do not depend on the batch, such as weights.
    """
    busy = batch > 0
    return Cost(batch * flops, batch * nbytes + fixed * busy, launches * busy.astype(float))


class Layer(Spec):
    """One step of a model. Parameters are passed in, so that one layer serves all replicas.

    Attributes
    ----------
    name : str
        Its path in the model, which leads its parameters' names.
    """

    kind: str
    name: str

    def parameters(self) -> list[Parameter]:
        """Learned tensors, in torch's order of registration."""
        return []

    def ready_order(self) -> list[str]:
        """Names of the parameters in the order in which torch's autograd finishes gradients."""
        return [parameter.name for parameter in self.parameters()]

    @abstractmethod
    def forward(self, parameters: Parameters, x: Array) -> tuple[Array, Any]:
        """Return the output and what backward needs."""

    @abstractmethod
    def backward(
        self,
        parameters: Parameters,
        saved: Any,
        dy: Array,
        need_input_grad: bool,
        into: Parameters = NO_ARRAYS,
    ) -> tuple[Array | None, dict[str, Array]]:
        """Return the gradient of the input (None unless needed) and those of the parameters.

        A layer may write a parameter's gradient into the array of its name in ``into``, instead of
        a new one; what that held before is lost.
        """

    @abstractmethod
    def forward_cost(self, batch: Floats, itemsize: int) -> Cost:
        """Cost of forward on ``batch`` samples per rank."""

    @abstractmethod
    def backward_cost(self, batch: Floats, itemsize: int, need_input_grad: bool) -> Cost:
        """Cost of backward on ``batch`` samples per rank."""

    @abstractmethod
    def activation_nbytes(self, batch: Floats, itemsize: int) -> Floats:
        """Bytes kept from forward for backward, shape `(world_size,)`."""
