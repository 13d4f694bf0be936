"""Layers that rearrange, combine, scale or drop values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from simdp.arrays import Array, Bools, Ints
from simdp.spec import Float, Int, problem
from simdp.workload.layers import AnyModule
from simdp.workload.layers.activations.rectifiers import ReLU
from simdp.workload.layers.base import (
    ExtentsOf,
    FreeBackward,
    Gradients,
    GraphBuilder,
    KeepsNothing,
    Kept,
    Kernel,
    Layer,
    Module,
    Needs,
    Pass,
    Shape,
    ShapeError,
    Value,
    axis_of,
    check_names,
    numbered,
    sequence_shape,
)


class Add(FreeBackward):
    """Elementwise sum of two or more inputs of equal shape."""

    is_functional: ClassVar[bool] = True

    kind: Literal["add"] = "add"

    most_inputs: ClassVar[None] = None

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs) < 2 or len(set(inputs)) > 1:
            raise ShapeError(
                "adds two inputs or more of one shape, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        y: Array = inputs[0] + inputs[1]
        for more in inputs[2:]:
            y += more
        return y, None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
        return tuple(dy if needed else None for needed in needs)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 3 * size * itemsize)] * (len(inputs) - 1)


class Concat(FreeBackward):
    """Concatenation of inputs that differ only along one axis: the channels, or the features."""

    is_functional: ClassVar[bool] = True

    kind: Literal["concat"] = "concat"
    dim: Int = 1
    """Axis along which they are joined; the samples are axis 0, and -1 is the last."""

    most_inputs: ClassVar[None] = None

    def output_shape(self, *inputs: Shape) -> Shape:
        ranks = {len(shape) for shape in inputs}
        axis = axis_of(self.dim, inputs[0]) if ranks != {0} else 1
        rest = {(*shape[: axis - 1], *shape[axis:]) for shape in inputs}
        if len(ranks) != 1 or not all(inputs) or len(rest) != 1:
            what = "their channels" if self.dim == 1 else f"axis {self.dim}"
            raise ShapeError(
                f"joins inputs that differ in {what} alone, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        joined = sum(shape[axis - 1] for shape in inputs)
        return (*inputs[0][: axis - 1], joined, *inputs[0][axis:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Ints]:
        ends = np.cumsum([x.shape[self.dim] for x in inputs])
        return np.concatenate(inputs, axis=self.dim), ends[:-1]

    def backward(self, run: Pass, saved: Ints, dy: Array, needs: Needs) -> Gradients:
        parts = np.split(dy, saved, axis=self.dim)
        return tuple(part if needed else None for part, needed in zip(parts, needs, strict=True))

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [Kernel(0.0, 2.0 * sum(map(prod, inputs)) * itemsize)]


class View(FreeBackward):
    """Base of layers without costs: their outputs are views of the inputs."""

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return []


class Flatten(View):
    """Joins axes to one; a view without cost."""

    is_functional: ClassVar[bool] = True

    kind: Literal["flatten"] = "flatten"
    start_dim: Int = Field(1, ge=1)
    """First and last axis to join; the samples are axis 0, and -1 is the last."""
    end_dim: Int = -1
    """First and last axis to join; the samples are axis 0, and -1 is the last."""

    def output_shape(self, *inputs: Shape) -> Shape:
        shape = inputs[0]
        last = self.end_dim if self.end_dim >= 0 else self.end_dim + 1 + len(shape)
        if not self.start_dim <= last <= len(shape):
            raise ShapeError(
                f"flattens axes {self.start_dim} to {self.end_dim}, "
                f"but gets samples of shape {shape}, whose axes are 1 to {len(shape)}"
            )
        return (*shape[: self.start_dim - 1], prod(shape[self.start_dim - 1 : last]), *shape[last:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Shape]:
        shape = inputs[0].shape
        return inputs[0].reshape(shape[0], *self.output_shape(shape[1:])), shape

    def backward(self, run: Pass, saved: Shape, dy: Array, needs: Needs) -> Gradients:
        return (dy.reshape(saved) if needs[0] else None,)


class Permute(View):
    """Reorders the axes, such as channels last for a loss; a view without cost."""

    is_functional: ClassVar[bool] = True

    kind: Literal["permute"] = "permute"
    dims: tuple[Int, ...]
    """The axes in their new order; the samples stay axis 0."""

    @field_validator("dims")
    @classmethod
    def _is_an_order(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(value) != list(range(len(value))) or value[:1] != (0,):
            raise problem(
                f"{list(value)} does not name each axis once, the samples' axis 0 first; write for "
                "example [0, 2, 1]."
            )
        return value

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs[0]) + 1 != len(self.dims):
            raise ShapeError(
                f"orders axes 0 to {len(self.dims) - 1}, but gets samples of shape {inputs[0]}, "
                f"whose axes are 1 to {len(inputs[0])}"
            )
        return tuple(inputs[0][axis - 1] for axis in self.dims[1:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        return inputs[0].transpose(self.dims), None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
        return (dy.transpose(np.argsort(self.dims)) if needs[0] else None,)


Pair = tuple[int, int]
"""Height, width."""

Size = Annotated[Pair, ExtentsOf(2, 1)]
Margin = Annotated[Pair, ExtentsOf(2, 0)]
Padding = Annotated[Pair | str, ExtentsOf(2, 0, "same", "valid")]


class OneToken(KeepsNothing):
    """Base: one row of a sequence."""

    place: ClassVar[int]
    """Position of the row; -1 is the last."""

    def output_shape(self, *inputs: Shape) -> Shape:
        _, width = sequence_shape(inputs[0])
        return (width,)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Shape]:
        return np.ascontiguousarray(inputs[0][:, self.place]), inputs[0].shape

    def backward(self, run: Pass, saved: Shape, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        dx = np.zeros(saved, dtype=dy.dtype)
        dx[:, self.place] = dy
        return (dx,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [Kernel(0.0, 2.0 * inputs[0][-1] * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Clears the gradient, then writes the row."""
        cleared = Kernel(0.0, float(prod(inputs[0]) * itemsize))
        return [cleared, *self.forward_cost(inputs, itemsize)] * needs[0]


class FirstToken(OneToken):
    """``x[:, 0]``: the output of the token that represents the whole sequence."""

    kind: Literal["first_token"] = "first_token"

    place: ClassVar[int] = 0


class LastToken(OneToken):
    """``x[:, -1]``: the output of the last token, which attends to all before it."""

    kind: Literal["last_token"] = "last_token"

    place: ClassVar[int] = -1


class Residual(Module):
    """``activation(layers(x) + shortcut(x))``; the layers run first, then the shortcut.

    Parameters are named ``<block>.<layer>.weight``. A layer without a name is named by its number;
    one of the shortcut ``shortcut.<number>``.

    References
    ----------
    He et al., "Deep residual learning for image recognition", CVPR 2016 (arXiv 1512.03385).
    """

    kind: Literal["residual"] = "residual"
    layers: list[AnyModule] = Field(min_length=1)
    """The main path, in the order of forward."""
    shortcut: list[AnyModule] = Field(default_factory=list)
    """Layers of the shortcut; none by default."""
    activation: Literal["relu", "none"] = "relu"
    """Activation of the sum."""

    @model_validator(mode="before")
    @classmethod
    def _number_the_nameless(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        named = {
            key: numbered(data[key], lead)
            for key, lead in (("layers", ""), ("shortcut", "shortcut."))
            if isinstance(data.get(key), list)
        }
        return {**data, **named}

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        check_names([*self.layers, *self.shortcut])
        for module in (*self.layers, *self.shortcut):
            if module.inputs is not None:
                raise problem(
                    f"{module.name!r} names its inputs, but a residual block runs its layers one "
                    "after the other; leave inputs out, or write the layers in the model itself."
                )
        return self

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        (x,) = inputs
        main, around = x, x
        for module in self.layers:
            main = self._within(module).add_to(graph, main)
        for module in self.shortcut:
            around = self._within(module).add_to(graph, around)
        y = graph.call(Add(name=self._path("add")), main, around)
        if self.activation == "none":
            return y
        return graph.call(ReLU(name=self._path("relu")), y)

    def _within(self, module: Module) -> Module:
        return module.model_copy(update={"name": self._path(module.name)})

    def _path(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name


class Scale(KeepsNothing):
    """``y = factor x``, such as the sqrt(d_model) of a transformer's embedding."""

    kind: Literal["scale"] = "scale"
    factor: float

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        return inputs[0] * inputs[0].dtype.type(self.factor), None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
        return (dy * dy.dtype.type(self.factor) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]


# Dropout ------------------------------------------------------------------------------------------


class Dropout(Layer):
    """torch.nn.Dropout in training; the dropped elements of a sample do not depend on its batch."""

    kind: Literal["dropout"] = "dropout"
    p: Float = Field(0.5, ge=0, le=1)
    """Share of the elements that are dropped."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Bools | None]:
        x = inputs[0]
        if not self.p:
            return x, None
        kept = kept_elements(run, self.name, self.p, x.shape[1:])
        return masked(x, kept, self.p), kept

    def backward(self, run: Pass, saved: Bools | None, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        return (dy if saved is None else masked(dy, saved, self.p),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [dropout_cost(float(prod(inputs[0])), itemsize)] * bool(self.p)

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(nbytes=float(prod(inputs[0])) * bool(self.p))  # one byte per element

    def evaluated(self) -> Layer:
        return self.model_copy(update={"p": 0.0})


def kept_elements(run: Pass, layer: str, p: float, shape: Shape) -> Bools:
    """Mask of the elements that each sample keeps, shape `(batch, *shape)`."""
    return run.uniform(layer, shape) >= p


def masked(x: Array, kept: Bools, p: float) -> Array:
    """``x / (1 - p)`` where kept, else 0; a new array."""
    y: Array = x * x.dtype.type(1 / (1 - p) if p < 1 else 0)
    y *= kept
    return y


def dropout_cost(size: float, itemsize: int) -> Kernel:
    """Kernel that reads and writes the elements and a mask of one byte each."""
    return Kernel(2 * size, size * (2 * itemsize + 1))
