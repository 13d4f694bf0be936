"""Model: a chain of layers, with torch's parameter names, shapes and orders."""

from __future__ import annotations

from abc import abstractmethod

from simdp.spec import Spec
from simdp.workload.layers import Layer, Parameter


class Model(Spec):
    """What is trained: layers in forward order and the shapes of a sample and of its output."""

    kind: str

    @abstractmethod
    def layers(self) -> list[Layer]:
        """Layers in the order of forward."""

    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Shape of what the model makes of one sample."""

    def parameters(self) -> list[Parameter]:
        """Learned tensors, in torch's order of registration."""
        return [parameter for layer in self.layers() for parameter in layer.parameters()]

    def ready_order(self) -> list[str]:
        """Names of the parameters in the order in which backward finishes their gradients."""
        return [name for layer in reversed(self.layers()) for name in layer.ready_order()]

    def num_parameters(self) -> int:
        """Number of learned elements."""
        return sum(parameter.num_elements for parameter in self.parameters())
