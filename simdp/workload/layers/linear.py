"""Linear layers, projections, einsum, and the gated layers built on them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod, sqrt
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int
from simdp.workload.layers.activations import Activation, activation, logistic
from simdp.workload.layers.base import (
    ALIGNMENT,
    ArrayPair,
    Gradients,
    KeepsInput,
    Kept,
    Kernel,
    Layer,
    Needs,
    Parameter,
    Pass,
    Shape,
    ShapeError,
    WithoutNumbers,
    axis_of,
    blocks,
    constant,
    kaiming_uniform,
    last_axis,
    normal,
    uniform,
)

FEW_ROWS = 128
"""Up to this many rows, (W x^T)^T is up to twice as fast as x W^T; beyond, it is slower."""


class Linear(KeepsInput):
    """Affine map of the last axis; the weight has shape ``(out_features, in_features)``."""

    kind: Literal["linear"] = "linear"
    in_features: Int = Field(ge=1, le=10**8)
    """Lengths of the last axis of input and output."""
    out_features: Int = Field(ge=1, le=10**8)
    """Lengths of the last axis of input and output."""
    bias: Bool = True
    """Whether there is a bias."""

    autocast = "lower"
    float8_casts: ClassVar[bool] = True
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def parameters(self) -> list[Parameter]:
        shape = (self.out_features, self.in_features)
        weight = Parameter(f"{self.name}.weight", shape, kaiming_uniform(self.in_features))
        bias = Parameter(f"{self.name}.bias", shape[:1], uniform(1 / sqrt(self.in_features)))
        return [weight, bias] if self.bias else [weight]

    def ready_order(self) -> list[str]:
        return [parameter.name for parameter in reversed(self.parameters())]  # bias, then weight

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*last_axis(inputs[0], self.in_features), self.out_features)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        bias = run.parameters[f"{self.name}.bias"] if self.bias else None
        return affine(inputs[0], run.parameters[f"{self.name}.weight"], bias), inputs[0]

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        x = saved.reshape(-1, self.in_features)
        flat = dy.reshape(-1, self.out_features)
        weight, bias = f"{self.name}.weight", f"{self.name}.bias"
        if self.bias:
            run.add_gradient(bias, flat.sum(axis=0, out=run.room(bias)))
        run.add_gradient(weight, np.matmul(flat.T, x, out=run.room(weight)))
        if not needs[0]:
            return (None,)
        return ((flat @ run.parameters[weight]).reshape(saved.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [affine_cost(inputs[0], self.in_features, self.out_features, self.bias, itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return affine_backward_cost(
            inputs[0], self.in_features, self.out_features, self.bias, itemsize, needs[0]
        )


def affine(x: Array, weight: Array, bias: Array | None) -> Array:
    """``x W^T + b`` over the last axis of x; the weight has shape `(out, in)`."""
    flat = x.reshape(-1, x.shape[-1])
    if len(flat) <= FEW_ROWS:
        y: Array = np.ascontiguousarray((weight @ flat.T).T)
    else:
        y = flat @ weight.T
    y = y.reshape(*x.shape[:-1], len(weight))
    if bias is not None:
        y += bias
    return y


def affine_cost(shape: Shape, fan_in: int, fan_out: int, bias: bool, itemsize: int) -> Kernel:
    """One product that adds the bias as it writes."""
    rows = float(prod(shape[:-1]))
    weights = fan_in * fan_out + fan_out * bias
    return Kernel(
        rows * 2 * fan_in * fan_out,
        rows * (fan_in + fan_out) * itemsize,
        weights * itemsize,
        float(gcd(fan_in, fan_out) * itemsize % ALIGNMENT > 0),
    )


def affine_backward_cost(
    shape: Shape, fan_in: int, fan_out: int, bias: bool, itemsize: int, need_input_grad: bool
) -> list[Kernel]:
    """``db = sum of dy``, ``dW = dy^T x`` and ``dx = dy W``."""
    rows = float(prod(shape[:-1]))
    product = affine_cost(shape, fan_in, fan_out, False, itemsize)
    kernels = [Kernel(rows * fan_out, rows * fan_out * itemsize, fan_out * itemsize)] * bias
    return [*kernels, product] + [product] * need_input_grad


class Projection(KeepsInput):
    """``y = x W[rows]^T + b[rows]``; the bias starts at 0.

    torch packs the weights of queries, keys and values into one parameter. Self-attention uses all
    rows at once; cross-attention uses some for each input, and both add to one gradient.
    """

    kind: Literal["projection"] = "projection"
    weight: str
    """Names of the parameters; an empty bias for none."""
    bias: str
    """Names of the parameters; an empty bias for none."""
    in_features: Int = Field(ge=1)
    """Of the whole weight, which has shape ``(out_features, in_features)``."""
    out_features: Int = Field(ge=1)
    """Of the whole weight, which has shape ``(out_features, in_features)``."""
    first: Int = Field(ge=0)
    """The rows are ``first ... last - 1``."""
    last: Int = Field(ge=1)
    """The rows are ``first ... last - 1``."""
    bound: float
    """The weight is initialised uniformly in [-bound, bound]."""

    autocast = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def parameters(self) -> list[Parameter]:
        shape = (self.out_features, self.in_features)
        weight = Parameter(self.weight, shape, uniform(self.bound))
        bias = Parameter(self.bias, shape[:1], constant(0.0))
        return [weight, bias] if self.bias else [weight]

    def ready_order(self) -> list[str]:
        return [parameter.name for parameter in reversed(self.parameters())]  # bias, then weight

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*last_axis(inputs[0], self.in_features), self.last - self.first)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        rows = slice(self.first, self.last)
        bias = run.parameters[self.bias][rows] if self.bias else None
        return affine(inputs[0], run.parameters[self.weight][rows], bias), inputs[0]

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        rows = slice(self.first, self.last)
        x = saved.reshape(-1, self.in_features)
        flat = dy.reshape(-1, self.last - self.first)
        if self.bias:
            part, more = self._rows_of_gradient(run, self.bias)
            if more:
                part += flat.sum(axis=0)
            else:
                flat.sum(axis=0, out=part)
        part, more = self._rows_of_gradient(run, self.weight)
        if more:
            part += flat.T @ x
        else:
            np.matmul(flat.T, x, out=part)
        if not needs[0]:
            return (None,)
        return ((flat @ run.parameters[self.weight][rows]).reshape(saved.shape),)

    def _rows_of_gradient(self, run: Pass, name: str) -> tuple[Array, bool]:
        """These rows of the gradient, and whether to add to them; the first call clears others."""
        if name in run.gradients:
            return run.gradients[name][self.first : self.last], True
        whole = run.room(name)
        whole[: self.first] = 0
        whole[self.last :] = 0
        run.add_gradient(name, whole)
        return whole[self.first : self.last], False

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        rows = self.last - self.first
        return [affine_cost(inputs[0], self.in_features, rows, bool(self.bias), itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        rows = self.last - self.first
        return affine_backward_cost(
            inputs[0], self.in_features, rows, bool(self.bias), itemsize, needs[0]
        )


class TransposedLinear(KeepsInput):
    """Affine map of the last axis; the weight has shape ``(in_features, out_features)``."""

    kind: Literal["transposed_linear"] = "transposed_linear"
    in_features: Int = Field(ge=1, le=10**8)
    out_features: Int = Field(ge=1, le=10**8)

    autocast = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def parameters(self) -> list[Parameter]:
        shape = (self.in_features, self.out_features)
        return [
            Parameter(f"{self.name}.weight", shape, normal(0.02)),
            Parameter(f"{self.name}.bias", (self.out_features,), constant(0.0)),
        ]

    def ready_order(self) -> list[str]:
        return [f"{self.name}.bias", f"{self.name}.weight"]

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*last_axis(inputs[0], self.in_features), self.out_features)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        x = inputs[0].reshape(-1, self.in_features)
        y = x @ run.parameters[f"{self.name}.weight"]
        y += run.parameters[f"{self.name}.bias"]
        return y.reshape(*inputs[0].shape[:-1], self.out_features), inputs[0]

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        x = saved.reshape(-1, self.in_features)
        flat = dy.reshape(-1, self.out_features)
        weight, bias = f"{self.name}.weight", f"{self.name}.bias"
        run.add_gradient(bias, flat.sum(axis=0, out=run.room(bias)))
        run.add_gradient(weight, np.matmul(x.T, flat, out=run.room(weight)))
        if not needs[0]:
            return (None,)
        return ((flat @ run.parameters[weight].T).reshape(saved.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [affine_cost(inputs[0], self.in_features, self.out_features, True, itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return affine_backward_cost(
            inputs[0], self.in_features, self.out_features, True, itemsize, needs[0]
        )


SCALE_NBYTES, SMALL_NBYTES = 4, 1
"""Bytes of a block's scale, in float32 or in 8 bits."""

SECOND_BLOCK = 256
"""Scales that share a scale of their own (QLoRA, section 3)."""


class QuantizedLinear(WithoutNumbers, Linear):
    """``y = x W^T + b``; W is packed, and kernels unpack it before every use.

    ``storage_itemsize`` are the bytes of the numbers that 4-bit values are packed into; the rest is
    as in `simdp.workload.finetuning.Quantized`.
    """

    kind: Literal["linear"] = "linear"
    float8_casts: ClassVar[bool] = False
    storage_itemsize: int
    block: int
    double: bool

    def parameters(self) -> list[Parameter]:
        """The weight, packed into one column, and the bias."""
        weight, *bias = super().parameters()
        packed = -(-weight.num_elements // (2 * self.storage_itemsize))
        return [weight._replace(shape=(packed, 1)), *bias]

    @property
    def constant_nbytes(self) -> float:
        blocks = -(-self._num_weights // self.block)
        if not self.double:
            return float(SCALE_NBYTES * blocks)
        return float(SMALL_NBYTES * blocks + SCALE_NBYTES * -(-blocks // SECOND_BLOCK))

    @property
    def _num_weights(self) -> int:
        return self.in_features * self.out_features

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [*self._unpacked(itemsize), *super().forward_cost(inputs, itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        products = super().backward_cost(inputs, itemsize, needs)
        return [*self._unpacked(itemsize) * needs[0], *products]

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        return sum(kernel.flops for kernel in super().forward_cost(inputs, 1))

    def _unpacked(self, itemsize: int) -> list[Kernel]:
        """Unpack 8-bit scales to float32 (if double) and add their mean; then the weight."""
        size, blocks = float(self._num_weights), float(-(-self._num_weights // self.block))
        scales = [Kernel(0.0, 0.0, blocks * (SMALL_NBYTES + SCALE_NBYTES))]
        scales.append(Kernel(0.0, 0.0, 2 * blocks * SCALE_NBYTES))
        weight = Kernel(0.0, 0.0, size / 2 + blocks * SCALE_NBYTES + size * itemsize)
        return [*scales * self.double, weight]


def split_equation(equation: str) -> tuple[str, str, str]:
    """Split ``"bd,df->bf"`` into ``("bd", "df", "bf")``.

    Raises ValueError unless it is a product of a batch and one weight with einsums as gradients.
    """
    operands, arrow, output = equation.replace(" ", "").partition("->")
    x, comma, weight = operands.partition(",")
    parts = (x, weight, output)
    if not (arrow and comma and all(part.isascii() and part.isalpha() for part in parts)):
        raise ValueError('it must look like "bd,df->bf": the batch, the weight, the output')
    if any(len(set(part)) < len(part) for part in parts):
        raise ValueError("an index may occur once in each operand")
    if x[0] != output[0] or x[0] in weight:
        raise ValueError("the first index of the batch and of the output must be the sample's")
    for part, others in ((x, weight + output), (weight, x + output), (output, x + weight)):
        alone = [index for index in part if index not in others]
        if alone:
            raise ValueError(f"the index {alone[0]!r} occurs in one operand only")
    return parts


class Einsum(KeepsInput):
    """Product of a batch and a weight of shape ``sizes[weight's indices]``."""

    kind: Literal["einsum"] = "einsum"
    equation: str
    sizes: dict[str, int]

    autocast = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def _parts(self) -> tuple[str, str, str]:
        return split_equation(self.equation)

    def _num(self, indices: str) -> int:
        return prod(self.sizes[i] for i in indices)

    def parameters(self) -> list[Parameter]:
        x, weight, _ = self._parts()
        contracted = self._num("".join(i for i in weight if i in x))
        shape = tuple(self.sizes[i] for i in weight)
        return [Parameter("weight", shape, uniform(contracted**-0.5))]

    def output_shape(self, *inputs: Shape) -> Shape:
        x, _, output = self._parts()
        wanted = tuple(self.sizes[i] for i in x[1:])
        if inputs[0] != wanted:
            raise ShapeError(f"takes samples of shape {wanted}, but gets {inputs[0]}")
        return tuple(self.sizes[i] for i in output[1:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        y: Array = np.einsum(self.equation, inputs[0], run.parameters["weight"], optimize=True)
        return y, inputs[0]

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        x, weight, output = self._parts()
        run.add_gradient("weight", np.einsum(f"{x},{output}->{weight}", saved, dy, optimize=True))
        if not needs[0]:
            return (None,)
        return (np.einsum(f"{output},{weight}->{x}", dy, run.parameters["weight"], optimize=True),)

    def _product(self, itemsize: int) -> Kernel:
        """One of the three products; each reads two of x, W, y and writes the third."""
        x, weight, output = self._parts()
        flops = 2.0 * self._num("".join(sorted(set(x[1:] + weight + output[1:]))))
        moved = self._num(x[1:]) + self._num(output[1:])
        rows = gcd(*(self.sizes[indices[-1]] for indices in (x, weight, output) if indices[1:]))
        misaligned = float(rows * itemsize % ALIGNMENT > 0)
        weights = float(self._num(weight) * itemsize)
        return Kernel(flops, float(moved * itemsize), weights, misaligned)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [self._product(itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return [self._product(itemsize)] * (1 + needs[0])


class PReLU(KeepsInput):
    """Rectified linear unit with a learned slope below 0 (He et al., arXiv 1502.01852)."""

    kind: Literal["prelu"] = "prelu"
    num_parameters: Int = Field(1, ge=1, le=10**8)
    """1, or one for each channel."""
    init: Float = 0.25
    """Initial slope."""

    autocast = "lower"

    def parameters(self) -> list[Parameter]:
        return [Parameter(f"{self.name}.weight", (self.num_parameters,), constant(self.init))]

    def output_shape(self, *inputs: Shape) -> Shape:
        if self.num_parameters > 1 and inputs[0][:1] != (self.num_parameters,):
            raise ShapeError(
                f"takes {self.num_parameters} channels, but gets samples of shape {inputs[0]}"
            )
        return inputs[0]

    def _slope(self, run: Pass, x: Array) -> Array:
        weight = run.parameters[f"{self.name}.weight"]
        return weight.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else weight

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        x = inputs[0]
        return np.where(x > 0, x, self._slope(run, x) * x), x

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        above = saved > 0
        pulled = np.where(above, 0, saved * dy)
        if self.num_parameters == 1:
            gradient = pulled.sum(keepdims=True).reshape(1)
        else:
            gradient = pulled.sum(axis=(0, *range(2, pulled.ndim)))
        run.add_gradient(f"{self.name}.weight", gradient)
        if not needs[0]:
            return (None,)
        return (np.where(above, dy, self._slope(run, saved) * dy),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(2 * size, 2 * size * itemsize, self.num_parameters * float(itemsize))]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """One kernel writes both gradients, element by element; another sums the weight's."""
        size, weight = float(prod(inputs[0])), self.num_parameters * float(itemsize)
        both = Kernel(4 * size, (3 + needs[0]) * size * itemsize, weight)
        return [both, Kernel(size, size * itemsize, weight)]


class GLU(KeepsInput):
    """Gated linear unit: ``a sigmoid(b)`` with a and b the halves (arXiv 1612.08083)."""

    kind: Literal["glu"] = "glu"
    dim: Int = -1
    """Axis that is halved; the samples are axis 0, and -1 is the last."""

    def output_shape(self, *inputs: Shape) -> Shape:
        axis, shape = axis_of(self.dim, inputs[0]), list(inputs[0])
        if shape[axis - 1] % 2:
            raise ShapeError(f"halves axis {self.dim}, but gets samples of shape {inputs[0]}")
        shape[axis - 1] //= 2
        return tuple(shape)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, ArrayPair]:
        value, gate = np.split(inputs[0], 2, axis=self.dim)
        share = logistic(gate)
        return value * share, (value, share)

    def backward(self, run: Pass, saved: ArrayPair, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        value, share = saved
        return (np.concatenate([dy * share, dy * value * share * (1 - share)], axis=self.dim),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        out = float(prod(inputs[0])) / 2
        return [Kernel(5 * out, 3 * out * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        out = float(prod(inputs[0])) / 2
        return [Kernel(8 * out, 5 * out * itemsize)] * needs[0]


class Gate(Layer):
    """``activation(gate) * up`` with a kind of activation.

    Shazeer, "GLU variants improve transformer", arXiv 2002.05202.
    """

    kind: Literal["gate"] = "gate"
    activation: str = "silu"

    def _activation(self) -> Activation:
        return activation(self.activation, self.name)

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs) != 2 or inputs[0] != inputs[1]:
            raise ShapeError(
                "takes a gate and another input of its shape, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, ArrayPair]:
        gate, up = (np.ascontiguousarray(x) for x in inputs)
        y, act = np.empty_like(up), self._activation()
        flat = [array.reshape(-1) for array in (gate, up, y)]
        for part in blocks(up.size):
            gates, ups, out = (array[part] for array in flat)
            np.multiply(act.value(gates)[0], ups, out=out)
        return y, (gate, up)

    def backward(self, run: Pass, saved: ArrayPair, dy: Array, needs: Needs) -> Gradients:
        """Recompute the activation, which is cheaper than reading it from memory."""
        gate, up = saved
        dgate, dup, act = np.empty_like(up), np.empty_like(up), self._activation()
        flat = [array.reshape(-1) for array in (gate, up, np.ascontiguousarray(dy), dgate, dup)]
        for part in blocks(up.size):
            gates, ups, slopes, out, out_up = (array[part] for array in flat)
            opened, needed = act.value(gates)
            np.multiply(slopes, opened, out=out_up)
            np.multiply(slopes, ups, out=out)
            out *= act.slope(needed)
        return tuple(
            array if need else None for array, need in zip((dgate, dup), needs, strict=True)
        )

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """The activation, then the product."""
        size = float(prod(inputs[0]))
        product = Kernel(size, 3 * size * itemsize)
        return [*self._activation().forward_cost(inputs[:1], itemsize), product]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """The product's two gradients, then the activation's."""
        size = float(prod(inputs[0]))
        products = [Kernel(size, 3 * size * itemsize)] * sum(needs)
        return [*products, *self._activation().backward_cost(inputs[:1], itemsize, needs[:1])]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """Both inputs, and the output of the activation."""
        return Kept(inputs=(0, 1), nbytes=float(prod(inputs[0])) * itemsize)
