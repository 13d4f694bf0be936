"""Elementwise activations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import pi, prod, sqrt
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.family import Family
from simdp.spec import Float, Int, problem
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, axis_of, blocks

__path__: list[str] = []  # for old names of submodules, see simdp.moved


class Activation(Layer):
    """An elementwise function."""

    flops_per_element: ClassVar[int] = 1
    """Arithmetic per element; these layers are bound by memory, so that a rough count serves."""

    keeps_output: ClassVar[bool] = False
    """Whether backward needs the output; else it needs the input."""

    @abstractmethod
    def value(self, x: Array) -> tuple[Array, Array]:
        """Return f(x) and what `slope` needs: the input or the output."""

    @abstractmethod
    def slope(self, saved: Array) -> Array:
        """Return f'(x)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return self.value(inputs[0])

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy * self.slope(saved) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(self.flops_per_element * size, 2 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel((self.flops_per_element + 1) * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=() if self.keeps_output else (0,), output=self.keeps_output)


ACTIVATIONS: Family[Activation] = Family(
    "activations",
    Activation,
    __name__,
    {
        "celu": "CELU",
        "elu": "ELU",
        "gelu": "GELU",
        "gelu_tanh": "GELUTanh",
        "hardsigmoid": "Hardsigmoid",
        "hardswish": "Hardswish",
        "hardtanh": "Hardtanh",
        "leaky_relu": "LeakyReLU",
        "log_sigmoid": "LogSigmoid",
        "mish": "Mish",
        "quick_gelu": "QuickGELU",
        "relu": "ReLU",
        "relu2": "ReLU2",
        "relu6": "ReLU6",
        "selu": "SELU",
        "sigmoid": "Sigmoid",
        "silu": "SiLU",
        "softplus": "Softplus",
        "tanh": "Tanh",
    },
)


def activation(kind: str, name: str) -> Activation:
    """Make an activation by its kind, with its usual options and a path in a model."""
    member: Any = ACTIVATIONS.find(kind)
    made: Activation = member(kind=kind, name=name)
    return made


class CELU(Activation):
    """Continuously differentiable exponential linear unit (Barron, arXiv 1704.07483).

    Attributes
    ----------
    alpha : float
        Minus what it tends to far below 0; not 0.
    """

    kind: Literal["celu"] = "celu"
    alpha: Float = Field(1.0, gt=0)
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0) / self.alpha)), x

    def slope(self, saved: Array) -> Array:
        return np.where(saved > 0, 1, np.exp(np.minimum(saved, 0) / self.alpha))


class ELU(Activation):
    """Exponential linear unit (Clevert et al., arXiv 1511.07289).

    Attributes
    ----------
    alpha : float
        Minus what it tends to far below 0.
    """

    kind: Literal["elu"] = "elu"
    alpha: Float = 1.0
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0))), x

    def slope(self, saved: Array) -> Array:
        return np.where(saved > 0, 1, self.alpha * np.exp(np.minimum(saved, 0)))


FAR = 40.0
"""Beyond, Phi is 0 or 1 in any dtype."""

TURN = 4.5
TAIL = (-0.9143915077, 2.684156087, -3.789100088, 3.267243625, -1.795237761, 0.5)
"""``Phi(-a) exp(a^2 / 2)`` as a polynomial in ``a / (a + TURN)``, the highest power first.

Our own fit to SciPy's erfcx: off by less than 3e-8 of Phi, half a step of float32 below 1.
"""


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["gelu"] = "gelu"
    flops_per_element: ClassVar[int] = 15

    def value(self, x: Array) -> tuple[Array, Array]:
        """Find the slope too: both need the same exponential."""
        x = np.ascontiguousarray(x)
        y, slope = np.empty_like(x), np.empty_like(x)
        flat, flat_y, flat_slope = x.reshape(-1), y.reshape(-1), slope.reshape(-1)
        for part in blocks(x.size):
            near = np.clip(flat[part], -FAR, FAR)
            cdf, bell = _normal(near)
            np.multiply(flat[part], cdf, out=flat_y[part])
            near *= bell
            near *= 1 / sqrt(2 * pi)
            np.add(cdf, near, out=flat_slope[part])
        return y, slope

    def slope(self, saved: Array) -> Array:
        return saved


def _normal(x: Array) -> tuple[Array, Array]:
    """Phi(x), and ``exp(-x^2 / 2)``."""
    bell = x * x
    bell *= -0.5
    np.exp(bell, out=bell)
    if x.dtype == np.float32:
        return _cdf32(x, bell), bell
    from scipy.special import ndtr

    return ndtr(x), bell


def _cdf32(x: Array, bell: Array) -> Array:
    """Phi(x) in float32, ten times as fast as SciPy's."""
    far = np.abs(x)
    near = far + np.float32(TURN)
    far /= near
    tail = np.multiply(far, np.float32(TAIL[0]), out=near)
    for coefficient in TAIL[1:-1]:
        tail += np.float32(coefficient)
        tail *= far
    tail += np.float32(TAIL[-1])
    tail *= bell
    np.subtract(np.float32(0.5), tail, out=tail)
    # Minus where x is: np.copysign takes three times as long.
    tail.view(np.uint32)[...] ^= x.view(np.uint32) & np.uint32(2**31)
    tail += np.float32(0.5)
    return tail


INNER, CUBE = sqrt(2 / pi), 0.044715


class GELUTanh(Activation):
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``: torch's GELU(approximate="tanh").

    Hendrycks and Gimpel, arXiv 1606.08415, section 2.
    """

    kind: Literal["gelu_tanh"] = "gelu_tanh"
    flops_per_element: ClassVar[int] = 18

    def value(self, x: Array) -> tuple[Array, Array]:
        return 0.5 * x * (1 + _inner_tanh(x)), x

    def slope(self, saved: Array) -> Array:
        t = _inner_tanh(saved)
        inner = INNER * (1 + 3 * CUBE * saved * saved)
        slope: Array = 0.5 * (1 + t + saved * (1 - t * t) * inner)
        return slope


def _inner_tanh(x: Array) -> Array:
    t: Array = np.tanh(INNER * (x + CUBE * x * x * x))
    return t


class Hardsigmoid(Activation):
    """Sigmoid of straight lines."""

    kind: Literal["hardsigmoid"] = "hardsigmoid"
    flops_per_element: ClassVar[int] = 4

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x / 6 + 0.5, 0, 1), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > -3) & (saved < 3)).astype(saved.dtype)
        inside /= 6
        return inside


class Hardswish(Activation):
    """SiLU of straight lines (Howard et al., arXiv 1905.02244)."""

    kind: Literal["hardswish"] = "hardswish"
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * np.clip(x / 6 + 0.5, 0, 1), x

    def slope(self, saved: Array) -> Array:
        inside = np.where(saved > -3, saved / 3 + 0.5, 0)
        return np.where(saved >= 3, 1, inside).astype(saved.dtype)


class Hardtanh(Activation):
    """Cuts off what is below one bound or above another.

    Attributes
    ----------
    min_val, max_val : float
        The bounds.
    """

    kind: Literal["hardtanh"] = "hardtanh"
    min_val: Float = -1.0
    max_val: Float = 1.0

    flops_per_element: ClassVar[int] = 2

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.min_val >= self.max_val:
            raise problem(
                f"min_val: {self.min_val} is not below max_val, {self.max_val}; write less."
            )
        return self

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x, self.min_val, self.max_val), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > self.min_val) & (saved < self.max_val)).astype(saved.dtype)
        return inside


class LeakyReLU(Activation):
    """Rectified linear unit that lets something through below 0.

    Attributes
    ----------
    negative_slope : float
        Share of x below 0, and slope at 0.
    """

    kind: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: Float = 0.01
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        pick = np.maximum if self.negative_slope <= 1 else np.minimum
        return pick(x, self.negative_slope * x), x

    def slope(self, saved: Array) -> Array:
        above = (saved > 0).astype(saved.dtype)
        below = 1 - above
        below *= self.negative_slope
        below += above
        return below


class ReLU(Activation):
    """Rectified linear unit."""

    kind: Literal["relu"] = "relu"

    keeps_output: ClassVar[bool] = True

    def value(self, x: Array) -> tuple[Array, Array]:
        y = np.clip(x, 0, np.inf)  # three times as fast as np.maximum(x, 0)
        return y, y

    def slope(self, saved: Array) -> Array:
        return saved > 0


class ReLU2(Activation):
    """Squared rectified linear unit (So et al., arXiv 2109.08668).

    transformers writes it in two steps, each with a kernel of its own; what is between is kept.
    """

    kind: Literal["relu2"] = "relu2"
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        above = np.maximum(x, 0)
        return above * above, above

    def slope(self, saved: Array) -> Array:
        slope: Array = 2 * saved
        return slope

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * 2

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        through = [Kernel(2 * size, 3 * size * itemsize), Kernel(size, 3 * size * itemsize)]
        return through * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(nbytes=float(prod(inputs[0])) * itemsize)


class ReLU6(Activation):
    """Rectified linear unit that is cut off at 6 (arXiv 1704.04861)."""

    kind: Literal["relu6"] = "relu6"
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x, 0, 6), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > 0) & (saved < 6)).astype(saved.dtype)
        return inside


ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805


class SELU(Activation):
    """Scaled exponential linear unit (Klambauer et al., arXiv 1706.02515, equation 2)."""

    kind: Literal["selu"] = "selu"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        y: Array = SCALE * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0)))
        return y, x

    def slope(self, saved: Array) -> Array:
        slope: Array = SCALE * np.where(saved > 0, 1, ALPHA * np.exp(np.minimum(saved, 0)))
        return slope


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, of which no part overflows."""
    power = np.exp(-np.abs(x))
    y: Array = np.maximum(power, x >= 0)  # 1 above 0, exp(x) below
    power += 1
    y /= power
    return y


class Sigmoid(Activation):
    """Logistic function."""

    kind: Literal["sigmoid"] = "sigmoid"
    keeps_output: ClassVar[bool] = True
    flops_per_element: ClassVar[int] = 4

    def value(self, x: Array) -> tuple[Array, Array]:
        y = logistic(x)
        return y, y

    def slope(self, saved: Array) -> Array:
        slope: Array = saved * (1 - saved)
        return slope


class LogSigmoid(Activation):
    """Logarithm of the logistic function."""

    kind: Literal["log_sigmoid"] = "log_sigmoid"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return -np.logaddexp(0, -x), x

    def slope(self, saved: Array) -> Array:
        return logistic(-saved)


class Mish(Activation):
    """Self-regularised activation (Misra, arXiv 1908.08681)."""

    kind: Literal["mish"] = "mish"
    flops_per_element: ClassVar[int] = 8

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * np.tanh(np.logaddexp(0, x)), x

    def slope(self, saved: Array) -> Array:
        bent = np.tanh(np.logaddexp(0, saved))
        slope: Array = bent + saved * logistic(saved) * (1 - bent * bent)
        return slope


STEEP = 1.702


class QuickGELU(Activation):
    """GELU by a sigmoid (Hendrycks and Gimpel, arXiv 1606.08415, section 2).

    transformers writes it in three steps, each with a kernel of its own; the sigmoid is kept too.
    """

    kind: Literal["quick_gelu"] = "quick_gelu"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * logistic(STEEP * x), x

    def slope(self, saved: Array) -> Array:
        part = logistic(STEEP * saved)
        slope: Array = part * (1 + STEEP * saved * (1 - part))
        return slope

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        one = Kernel(size, 2 * size * itemsize)
        return [one, one._replace(flops=4 * size), one._replace(nbytes=3 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Of the product two kernels, then back through the sigmoid and the factor, and a sum."""
        size = float(prod(inputs[0]))
        two, three = Kernel(size, 2 * size * itemsize), Kernel(size, 3 * size * itemsize)
        return [three, three, three._replace(flops=3 * size), two, three] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=float(prod(inputs[0])) * itemsize)


class SiLU(Activation):
    """Sigmoid linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["silu"] = "silu"
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        """Find the slope too: both need the same exponential."""
        share = logistic(x)
        slope = 1 - share
        slope *= x
        slope += 1
        slope *= share
        share *= x
        return share, slope

    def slope(self, saved: Array) -> Array:
        return saved


class Softplus(Activation):
    """Smooth rectified linear unit.

    Attributes
    ----------
    beta : float
        How sharply it bends.
    threshold : float
        Of beta x, beyond which it is x itself.
    """

    kind: Literal["softplus"] = "softplus"
    beta: Float = Field(1.0, gt=0)
    threshold: Float = 20.0

    flops_per_element: ClassVar[int] = 6
    autocast: ClassVar[Literal["float32"]] = "float32"

    def value(self, x: Array) -> tuple[Array, Array]:
        steep = self.beta * x
        return np.where(steep > self.threshold, x, np.logaddexp(0, steep) / self.beta), x

    def slope(self, saved: Array) -> Array:
        steep = self.beta * saved
        return np.where(steep > self.threshold, 1, logistic(steep))


class Tanh(Activation):
    """Hyperbolic tangent; its slope is 1 - tanh(x)^2."""

    kind: Literal["tanh"] = "tanh"
    keeps_output: ClassVar[bool] = True
    flops_per_element: ClassVar[int] = 10

    def value(self, x: Array) -> tuple[Array, Array]:
        y = np.tanh(x)
        return y, y

    def slope(self, saved: Array) -> Array:
        slope: Array = 1 - saved * saved
        return slope


class Exponentials(Layer):
    """Exponentials along an axis over their sum.

    Attributes
    ----------
    dim : int
        The axis along which they add up to 1; the samples are axis 0, and -1 is the last.
    """

    dim: Int = -1

    autocast: ClassVar[Literal["float32"]] = "float32"

    def output_shape(self, *inputs: Shape) -> Shape:
        axis_of(self.dim, inputs[0])
        return inputs[0]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(5 * size, 2 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(4 * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(output=True)


class Softmax(Exponentials):
    """``exp(x) / sum exp(x)``."""

    kind: Literal["softmax"] = "softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = inputs[0] - inputs[0].max(axis=self.dim, keepdims=True)
        np.exp(y, out=y)
        y /= y.sum(axis=self.dim, keepdims=True)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (saved * (dy - (dy * saved).sum(axis=self.dim, keepdims=True)),)


def log_softmax(x: Array, axis: int = -1) -> Array:
    """``x - log(sum exp(x))`` along an axis, a new array."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y


class LogSoftmax(Exponentials):
    """``x - log(sum exp(x))``."""

    kind: Literal["log_softmax"] = "log_softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = log_softmax(inputs[0], self.dim)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (dy - np.exp(saved) * dy.sum(axis=self.dim, keepdims=True),)
