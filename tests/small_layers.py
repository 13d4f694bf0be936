"""Layers so small that a graph of them can be worked out by hand."""

from typing import ClassVar, Literal

import numpy as np

from simdp.workload.layers.base import Kept, Kernel, Layer, Parameter, ShapeError, constant


class Small(Layer):
    """What a small layer leaves out: it costs one operation per element."""

    def output_shape(self, *inputs):
        if len(set(inputs)) > 1:
            raise ShapeError(f"takes samples of one shape, but gets {inputs}")
        return inputs[0]

    def forward_cost(self, inputs, itemsize):
        return [Kernel(1.0, itemsize)]

    def backward_cost(self, inputs, itemsize, needs):
        return [Kernel(2.0, itemsize)]

    def kept(self, inputs, itemsize):
        return Kept(nbytes=float(itemsize))


class Scale(Small):
    """``y = w x`` with one number w, which may be some other layer's too."""

    kind: Literal["scale"] = "scale"
    tensor: str
    start: float = 1.0

    autocast: ClassVar[Literal["lower"]] = "lower"

    def parameters(self):
        return [Parameter(self.tensor, (), constant(self.start))]

    def forward(self, run, *inputs):
        return inputs[0] * run.parameters[self.tensor], inputs[0]

    def backward(self, run, saved, dy, needs):
        run.add_gradient(self.tensor, np.array((dy * saved).sum(), dtype=dy.dtype))
        return (dy * run.parameters[self.tensor] if needs[0] else None,)


class ScaleIn32(Scale):
    """The same, which autocast leaves in 32 bits."""

    kind: Literal["scale_in_32"] = "scale_in_32"
    autocast: ClassVar[Literal["float32"]] = "float32"


class Sum(Small):
    """Sum of all inputs; hands on the very array that it is given backward."""

    kind: Literal["sum"] = "sum"

    def forward(self, run, *inputs):
        return sum(inputs[1:], inputs[0]), None

    def backward(self, run, saved, dy, needs):
        return tuple(dy if need else None for need in needs)

    def backward_cost(self, inputs, itemsize, needs):
        return []


class Product(Small):
    """Product of two inputs."""

    kind: Literal["product"] = "product"

    def forward(self, run, *inputs):
        return inputs[0] * inputs[1], inputs

    def backward(self, run, saved, dy, needs):
        x, y = saved
        return (dy * y if needs[0] else None, dy * x if needs[1] else None)
