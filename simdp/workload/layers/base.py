"""Base classes of layers, the graph that a model builds of them, checks of arguments and shapes.

Bounds and deviations of initial values equal torch.nn.init's to the last bit.

Values between layers have torch's axes, `(batch, channels, height, width)`, but lie channels-last
in memory wherever these layers made them: a neighbourhood of pixels is then a few long pieces, and
the pixels are the rows of a matrix product.

A model builds its graph like ``__init__`` and ``forward`` of a torch module: it registers layers in
torch's order, then calls them. Backward runs through the calls in reverse, as autograd does, so the
order in which gradients become ready follows from the order of the calls.

FSDP's wrapping policies and activation checkpointing work on blocks, which the names of parameters
define.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod, sqrt
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, TypeVar, get_args

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from simdp.arrays import Array, Ints
from simdp.errors import shown
from simdp.rng import TorchGenerator, uniform_at
from simdp.spec import Int, Spec, problem

Extents = tuple[int, ...]
"""In torch's order: length, or height, width, or depth, height, width."""

LISTS = {1: "a list of one", 2: "a pair of them", 3: "three of them"}
"""Wording of errors, by number of axes."""


class ExtentsOf:
    """Field type: a whole number for all axes, a list with one per axis, or one of some words.

    Parameters
    ----------
    axes : int
        Number of axes.
    minimum : int
        Smallest length allowed.
    words : str
        Words allowed in place of lengths, such as ``"same"``.
    """

    def __init__(self, axes: int, minimum: int, *words: str) -> None:
        self.axes, self.minimum, self.words = axes, minimum, words

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_shortened),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        integer = {"type": "integer", "minimum": self.minimum}
        many = {"type": "array", "items": integer, "minItems": self.axes, "maxItems": self.axes}
        return {"anyOf": [integer, many, *({"const": word} for word in self.words)]}

    def validate(self, value: object) -> Extents | str:
        """Convert to one length per axis."""
        if isinstance(value, str) and value in self.words:
            return value
        lengths = value if isinstance(value, list | tuple) else (value,) * self.axes
        extents = tuple(n for n in lengths if type(n) is int and n >= self.minimum)
        if len(extents) != len(lengths) or len(extents) != self.axes:
            words = "".join(f", nor {word!r}" for word in self.words)
            example = [self.minimum + 1 + axis for axis in range(self.axes)]
            raise problem(
                f"{shown(value)} is neither a whole number >= {self.minimum} "
                f"nor {LISTS[self.axes]}, such as {example}{words}."
            )
        return extents


def _shortened(value: Extents | str) -> int | Extents | str:
    if isinstance(value, str):
        return value
    return value[0] if len({*value}) == 1 else value


Size1 = Annotated[Extents, ExtentsOf(1, 1)]
Margin1 = Annotated[Extents, ExtentsOf(1, 0)]
Padding1 = Annotated[Extents | str, ExtentsOf(1, 0, "same", "valid")]

Size3 = Annotated[Extents, ExtentsOf(3, 1)]
Margin3 = Annotated[Extents, ExtentsOf(3, 0)]
Padding3 = Annotated[Extents | str, ExtentsOf(3, 0, "same", "valid")]


# Initial values and parameters --------------------------------------------------------------------


@dataclass(frozen=True)
class Initial:
    """Initial values of a tensor; made by `uniform`, `normal`, `constant` and their like."""

    kind: Literal["constant", "normal", "uniform", "copy"]
    """Distribution, or a copy of another parameter."""
    size: float
    """The constant, the standard deviation, or the bound on both sides of 0."""
    zero_row: int | None = None
    """Row that is set to 0."""
    within: float | None = None
    """Bound of a truncated normal: values beyond ``+-within`` are drawn again."""
    of: str = ""
    """Name of the parameter to copy, as torch does with copy.deepcopy of a module."""

    def draw_as_torch(self, generator: TorchGenerator, shape: tuple[int, ...], dtype: str) -> Array:
        """Draw the numbers that torch draws from this generator."""
        if self.kind == "constant":
            return np.full(shape, self.size, dtype=dtype)
        if self.kind == "uniform":
            return generator.uniform(self.size, shape, dtype)
        values = generator.normal(self.size, shape, dtype)
        while self.within is not None and (beyond := np.abs(values) > self.within).any():
            values = np.where(beyond, generator.normal(self.size, shape, dtype), values)
        if self.zero_row is not None:
            values[self.zero_row] = 0
        return values

    def skip_as_torch(self, generator: TorchGenerator, shape: tuple[int, ...], dtype: str) -> None:
        """Advance a generator as `draw_as_torch` does, without making the numbers."""
        if self.kind == "uniform":
            generator.skip_uniform(prod(shape), dtype)
        elif self.kind == "normal" and self.within is None:
            generator.skip_normal(prod(shape), dtype)
        elif self.kind == "normal":  # the number of redraws depends on the values
            self.draw_as_torch(generator, shape, dtype)

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw float64 values from a NumPy stream, which torch has no counterpart of."""
        if self.kind == "constant":
            values = np.full(shape, self.size)
        elif self.kind == "normal":
            values = self.size * random.standard_normal(shape)
        else:
            values = random.uniform(-self.size, self.size, shape)
        if self.zero_row is not None:
            values[self.zero_row] = 0
        return values


def uniform(bound: float) -> Initial:
    """Uniform in [-bound, bound]."""
    return Initial("uniform", bound)


def kaiming_uniform(fan: int, a: float = sqrt(5)) -> Initial:
    """torch.nn.init.kaiming_uniform_; by default as torch's linear and convolution layers do."""
    return uniform(sqrt(3.0) * (sqrt(2.0 / (1 + a**2)) / sqrt(fan)))


def xavier_uniform(fan_in: int, fan_out: int) -> Initial:
    """torch.nn.init.xavier_uniform_."""
    return uniform(sqrt(3.0) * sqrt(2.0 / float(fan_in + fan_out)))


def normal(std: float, zero_row: int | None = None) -> Initial:
    """Normal around 0; ``zero_row`` is set to 0."""
    return Initial("normal", std, zero_row)


def kaiming_normal(fan: int) -> Initial:
    """torch.nn.init.kaiming_normal_ in front of a relu: variance ``2 / fan``."""
    return normal(sqrt(2.0) / sqrt(fan))


def trunc_normal(std: float, within: float = 2.0) -> Initial:
    """torch.nn.init.trunc_normal_ of torch 2.14, cut at +-within (absolute, not times std)."""
    return Initial("normal", std, within=within)


def copy_of(name: str) -> Initial:
    """The values of another parameter, which is drawn earlier."""
    return Initial("copy", 0.0, of=name)


def constant(value: float) -> Initial:
    """One value for all elements."""
    return Initial("constant", value)


class Parameter(NamedTuple):
    """Trainable tensor: torch name, shape and initial values."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Buffer(NamedTuple):
    """Tensor that is stored but not trained, such as a running mean."""

    name: str
    shape: tuple[int, ...]
    value: float
    """Initial value of every element."""
    integer: bool = False
    """int64 instead of the workload's dtype."""

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


Parameters = Mapping[str, Array]
T = TypeVar("T")
Shape = tuple[int, ...]
"""Shape of one sample, without the batch axis."""

Needs = Sequence[bool]
"""For each input of a layer, whether its gradient is needed."""

Gradients = tuple[Array | None, ...]
"""Of each input of a layer; None where it is not needed."""

ArrayPair = tuple[Array, Array]
"""Two arrays that backward needs."""

NO_ARRAYS: Parameters = MappingProxyType({})

PAUSE: Array = np.zeros(0)
"""Yielded before each call by a pass with pauses, instead of a part to exchange."""


class ShapeError(ValueError):
    """Raised when inputs do not fit a layer."""


class Kernel(NamedTuple):
    """Cost of one kernel."""

    flops: float
    """Floating-point operations per sample; a multiply-add counts as two."""
    nbytes: float
    """Bytes read and written in device memory per sample, each tensor once."""
    fixed: float = 0.0
    """Bytes per launch that do not depend on the number of samples, such as weights."""
    misaligned: float = 0.0
    """1 for a product of matrices whose rows are no multiple of `ALIGNMENT` bytes, else 0."""


ALIGNMENT = 16
"""Bytes that a thread reads at once: kernels on tensor cores need rows of matrices that are
multiples of it (NVIDIA, "Matrix multiplication background", user's guide, section on tensor cores).
"""


class Kept(NamedTuple):
    """Values kept from forward for backward; a value kept by several layers counts once."""

    inputs: tuple[int, ...] = ()
    """Positions of the inputs kept."""
    output: bool = False
    """Whether the output is kept."""
    nbytes: float = 0.0
    """Bytes per sample kept besides these."""
    fixed: float = 0.0
    """Bytes kept per micro-batch, independent of the number of samples."""


@dataclass
class Pass:
    """One rank's forward and backward over a micro-batch."""

    parameters: Parameters
    """The rank's weights by torch name."""
    buffers: dict[str, Array] = field(default_factory=dict)
    """The rank's buffers; layers may change them in place."""
    gradients: dict[str, Array] = field(default_factory=dict)
    """Gradients that backward has computed so far."""
    into: Parameters = field(default_factory=lambda: NO_ARRAYS)
    """Arrays to write gradients into instead of new ones; their content is lost."""
    samples: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of the samples, for random numbers that belong to a sample; shape `(batch,)`."""
    seed: int = 0
    """Seed of the scenario."""
    step: int = 0
    """Number of the optimizer step."""
    pauses: bool = False
    """Whether to yield `PAUSE` before each call, so that weights can be gathered and freed."""

    def room(self, name: str) -> Array:
        """Array to write a parameter's gradient into; its content is undefined."""
        if name in self.gradients or name not in self.into:
            return np.empty_like(self.parameters[name])
        return self.into[name]

    def add_gradient(self, name: str, gradient: Array) -> None:
        """Add to a parameter's gradient; layers that share a parameter each add theirs."""
        if name in self.gradients:
            self.gradients[name] += gradient
        else:
            self.gradients[name] = gradient

    def uniform(self, layer: str, shape: Shape) -> Array:
        """Random numbers in [0, 1) for each sample, shape `(batch, *shape)`, float64.

        They depend on the seed, the step, the layer, the sample and the position in its tensor, but
        not on the batch around the sample or the length that it is padded to.
        """
        return uniform_at(self.seed, ("dropout", layer, self.step), self.samples, shape)


class Module(Spec):
    """Base of layers and of blocks of several layers."""

    kind: str
    name: str = ""
    """Path in the model; prefix of the parameters' names."""
    inputs: tuple[str, ...] | None = Field(None, min_length=1)
    """In `Sequential`: names of the layers that feed it, or ``input``; by default the layer
    before."""

    most_inputs: ClassVar[int | None] = 1
    """Maximum number of inputs; None for any number."""

    @abstractmethod
    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        """Append to a model's graph, in the order of forward; return the output."""


Family = Literal["attention", "recurrent", "convolutional", "dense", "unknown"]
"""Kinds of models, the strongest first: a transformer with a convolution is one of attention."""


class Layer(Module):
    """One operation of a model. Arrays are passed in, so one layer serves all replicas."""

    is_functional: ClassVar[bool] = False
    """Whether torch's models call a function in its place, which is no module."""

    autocast: ClassVar[Literal["lower", "float32", "promote"]] = "promote"
    """Dtype in mixed precision: 16 bit, 32 bit, or the widest of its inputs."""

    uses_cudnn: ClassVar[bool] = False
    """Whether its products run in cuDNN."""

    float8_casts: ClassVar[bool] = False
    """Whether its products can run in 8 bits, after casts of their operands."""

    keeps_for_weights: ClassVar[bool] = False
    """Whether kept values serve only the gradients of its weights, as in a matrix product."""

    splits_backward: ClassVar[bool] = False
    """Whether backward without input gradients serves only the weights, so frozen ones skip it."""

    family: ClassVar[Family] = "dense"
    """Kind of model that the layer makes, see `ModelGraph.family`."""

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        """Output that selective recomputation keeps: a product, fused attention or none."""
        return "product" if self.autocast == "lower" else "no"

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens that it looks up; None for a layer of other numbers."""
        return None

    @property
    def constant_nbytes(self) -> float:
        """Bytes held besides parameters and buffers, in full on every rank."""
        return 0.0

    def parameters(self) -> list[Parameter]:
        """Trainable tensors, in torch's order of registration."""
        return []

    def buffers(self) -> list[Buffer]:
        """Tensors that are stored but not trained, in torch's order of registration."""
        return []

    def ready_order(self) -> list[str]:
        """Parameter names in the order in which torch's autograd finishes their gradients."""
        return [parameter.name for parameter in self.parameters()]

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return graph.call(self, *inputs)

    @abstractmethod
    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape of the output, per sample; raises ShapeError if the inputs do not fit."""

    @abstractmethod
    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """Return the output and the values that backward needs."""

    @abstractmethod
    def backward(self, run: Pass, saved: Any, dy: Array, needs: Needs) -> Gradients:
        """Add the parameters' gradients to the pass, and return those of the inputs.

        Parameters
        ----------
        run : Pass
            The same as in forward.
        saved : object
            Second result of forward.
        dy : ndarray
            Gradient of the output; not modified.
        needs : sequence of bool
            For each input, whether its gradient is needed; None is returned for the others.
        """

    @abstractmethod
    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Kernels of forward for inputs of these shapes."""

    @abstractmethod
    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Kernels of backward."""

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """FLOPs of forward's matrix products per sample, as publications count them."""
        if self.autocast != "lower":
            return 0.0
        return sum(kernel.flops for kernel in self.forward_cost(inputs, 1))

    @abstractmethod
    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """Values that torch's layer keeps from forward for backward."""

    def evaluated(self) -> Layer:
        """The layer in torch's ``eval()`` mode, with the same tensors."""
        return self


class WithoutNumbers(Layer):
    """Base of layers with costs alone; the scenario's checks reject runs with numbers."""

    family = "unknown"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        raise AssertionError(f"{self.name} has costs but no numbers")

    def backward(self, run: Pass, saved: object, dy: Array, needs: Needs) -> Gradients:
        raise AssertionError(f"{self.name} has costs but no numbers")


class KeepsInput(Layer):
    """Base of layers whose backward needs their first input."""

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))


class KeepsNothing(Layer):
    """Base of layers whose backward needs no values of forward."""

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()


class FreeBackward(KeepsNothing):
    """Base of layers whose inputs' gradients are the output's, or views of it."""

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return []


Exchange = Generator[Array, Array, T]
"""A generator that yields a rank's part, receives the combination of all parts, and returns."""


class Synchronised(Layer):
    """Base of layers that exchange numbers between ranks during forward and backward."""

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """Forward with a world size of 1."""
        return _alone(self.exchanged_forward(run, *inputs), lambda own: own[None])

    def backward(self, run: Pass, saved: Any, dy: Array, needs: Needs) -> Gradients:
        """Backward with a world size of 1."""
        return _alone(self.exchanged_backward(run, saved, dy, needs), lambda own: own)

    @abstractmethod
    def exchanged_forward(self, run: Pass, *inputs: Array) -> Exchange[tuple[Array, Any]]:
        """Forward as a generator: yields a 1-D array, receives those of all ranks as rows."""

    @abstractmethod
    def exchanged_backward(
        self, run: Pass, saved: Any, dy: Array, needs: Needs
    ) -> Exchange[Gradients]:
        """Backward as a generator: yields a 1-D array, receives the sum over all ranks."""

    @abstractmethod
    def exchanged_elements(self) -> tuple[int, int]:
        """Elements that a rank yields in forward and in backward."""


def _alone(exchange: Exchange[T], answer: Callable[[Array], Array]) -> T:
    own = next(exchange)
    try:
        exchange.send(answer(own))
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("an exchange yields once")


# Arguments ----------------------------------------------------------------------------------------


def numbered(modules: Iterable[object], lead: str = "") -> list[object]:
    """Name unnamed modules by ``lead`` and their position, as torch.nn.Sequential does.

    Numbers among ``inputs`` become names too. Invalid values are left to validation.
    """
    named = []
    for number, module in enumerate(modules):
        if isinstance(module, str):
            module = {"kind": module}
        if isinstance(module, dict):
            module = {"name": f"{lead}{number}", **module}
            if isinstance(names := module.get("inputs"), list):
                module |= {"inputs": [str(n) if type(n) is int else n for n in names]}
        named.append(module)
    return named


def check_names(modules: Sequence[Module]) -> None:
    """Raise if two modules share a name, because their parameters would share names too."""
    name, times = Counter(module.name for module in modules).most_common(1)[0]
    if times > 1:
        raise problem(f"{times} layers are called {name!r}; give each a name of its own.")


def check_heads(heads: str, num_heads: int, width: str, num_features: int) -> None:
    """Raise if the heads do not divide the features; ``heads`` and ``width`` are the two keys."""
    if num_features % num_heads:
        raise problem(
            f"{heads}: {num_heads} heads do not share {width} {num_features} evenly; "
            "choose a divisor of it."
        )


def check_groups(groups: int, in_channels: int, out_channels: int) -> None:
    """Raise if the groups do not divide the channels of a convolution."""
    for key, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
        if channels % groups:
            raise problem(
                f"groups: {groups} does not divide {key}, {channels}; "
                "write a number that divides both."
            )


def check_token(key: str, token: int | None, num_tokens: int) -> None:
    """Raise if a number is not a token of the vocabulary."""
    if token is not None and not 0 <= token < num_tokens:
        raise problem(f"{key}: {token} is not a token; tokens are 0 ... {num_tokens - 1}.")


# Shapes -------------------------------------------------------------------------------------------


def last_axis(shape: Shape, features: int) -> Shape:
    """Return the axes before the last; raise ShapeError unless the last has ``features``."""
    if not shape or shape[-1] != features:
        raise ShapeError(f"takes {features} features, but gets samples of shape {shape}")
    return shape[:-1]


Rows = Annotated[
    Annotated[Int, Field(ge=1, le=10**8)]
    | Annotated[tuple[Annotated[Int, Field(ge=1, le=10**8)], ...], Field(min_length=1)],
    Field(union_mode="left_to_right"),
]
"""Length of the last axis, or lengths of the last axes, as torch's ``normalized_shape``."""


def row_shape(rows: int | Shape) -> Shape:
    """Convert `Rows` to a tuple."""
    return (rows,) if isinstance(rows, int) else rows


def check_rows(shape: Shape, rows: int | Shape) -> None:
    """Raise ShapeError unless the last axes of a sample have these lengths."""
    wanted = row_shape(rows)
    if shape[-len(wanted) :] != wanted:
        what = f"{rows} features" if len(wanted) == 1 else f"rows of shape {wanted}"
        raise ShapeError(f"takes {what}, but gets samples of shape {shape}")


IMAGES = {
    1: ("series", "(channels, length)"),
    2: ("images", "(channels, height, width)"),
    3: ("volumes", "(channels, depth, height, width)"),
}
"""Name and shape of samples in errors, by number of axes besides the channels."""


def image_shape(shape: Shape, axes: int = 2) -> Shape:
    """Raise ShapeError unless samples have channels and ``axes`` spatial axes."""
    if len(shape) != axes + 1:
        what, form = IMAGES[axes]
        raise ShapeError(f"takes {what}, shape {form}, but gets samples of shape {shape}")
    return shape


def check_channels(shape: Shape, channels: int, axes: int) -> None:
    """Raise ShapeError unless samples have ``axes`` spatial axes and ``channels``."""
    if image_shape(shape, axes)[0] != channels:
        what = IMAGES[axes][0]
        raise ShapeError(f"takes {what} of {channels} channels, but gets samples of shape {shape}")


def axis_of(dim: int, shape: Shape) -> int:
    """Convert torch's ``dim`` to a positive axis of a batch (axis 0: the samples)."""
    axis = dim if dim >= 0 else dim + 1 + len(shape)
    if not 1 <= axis <= len(shape):
        raise ShapeError(
            f"works along axis {dim}, but gets samples of shape {shape}, "
            f"whose axes are 1 to {len(shape)}"
        )
    return axis


def sequence_shape(shape: Shape) -> tuple[int, int]:
    """Split a sequence's shape into length and features, or raise ShapeError."""
    if len(shape) != 2:
        raise ShapeError(f"takes sequences (length, features), but gets samples of shape {shape}")
    return shape[0], shape[1]


CACHED_ELEMENTS = 2**15
"""128 KiB of float32: three arrays of a block fit into a core's L2 cache."""


def blocks(num_rows: int, row_elements: int = 1, elements: int | None = None) -> Iterator[slice]:
    """Cut rows into blocks of whole rows with at most ``elements`` elements, but at least one."""
    most = CACHED_ELEMENTS if elements is None else elements
    step = max(most // max(row_elements, 1), 1)
    for begin in range(0, num_rows, step):
        yield slice(begin, begin + step)


# Channels -----------------------------------------------------------------------------------------

LANES = 512
"""Least elements of a row for which NumPy's cost per row is negligible."""


def channels_last(x: Array) -> Array:
    """The same values with the channels along the last axis, contiguous."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def channels_second(x: Array) -> Array:
    """View of channels-last values with torch's order of axes."""
    return np.moveaxis(x, -1, 1)


def channel_sum(x: Array) -> Array:
    """Sum of channels-last values over all axes but the last, float64."""
    rows = rows_of(x)
    total = np.zeros(rows.shape[1])
    for block in blocks(*rows.shape):
        total += rows[block].sum(axis=0)
    return folded(total, x)


def channel_sums(x: Array, y: Array) -> tuple[Array, Array]:
    """Sums of x and of x y over all axes but the last, float64; both are channels-last."""
    left, right = rows_of(x), rows_of(y)
    total, product = np.zeros(left.shape[1]), np.zeros(left.shape[1])
    for block in blocks(*left.shape):
        total += left[block].sum(axis=0)
        product += np.einsum("ij,ij->j", left[block], right[block])
    return folded(total, x), folded(product, x)


def rows_of(x: Array) -> Array:
    """View contiguous channels-last values as a matrix with whole pixels in each row."""
    width, axis = x.shape[-1], x.ndim - 1
    while axis and width < LANES:
        axis -= 1
        width *= x.shape[axis]
    return x.reshape(prod(x.shape[:axis]), width)


def repeated(channels: Array, rows: Array) -> Array:
    """Repeat one value per channel for every column of `rows_of`, in its dtype."""
    return np.repeat(
        channels.astype(rows.dtype)[None], rows.shape[1] // len(channels), axis=0
    ).ravel()


def folded(columns: Array, x: Array) -> Array:
    """Add up the columns of `rows_of` that belong to one channel."""
    total: Array = columns.reshape(columns.size // x.shape[-1], x.shape[-1]).sum(axis=0)
    return total


# Blocks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModuleBlock:
    """Calls and parameters of one module, by path; an empty path for the root, which has the rest.

    Calls are in the order of forward, parameters in torch's order of registration.
    """

    name: str
    calls: tuple[int, ...]
    parameters: tuple[str, ...]


def block_names(parameters: Sequence[str]) -> list[str]:
    """Find the blocks of a model from the names of its parameters.

    A block's name ends with the first part that is a number (``encoder.layers.0``, ``layer1.0``),
    or is the first of several parts (``Mixed_5b``), unless that contains other blocks.
    """
    prefixes: dict[str, None] = {}
    for name in parameters:
        parts = name.split(".")[:-1]  # the last one is the tensor's own
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is not None:
            prefixes[".".join(parts[: number + 1])] = None
        elif len(parts) > 1:
            prefixes[parts[0]] = None
    holding = {name[:dot] for name in prefixes for dot, sign in enumerate(name) if sign == "."}
    return [name for name in prefixes if name not in holding]


def grouped(
    registered: Sequence[Layer], calls: Sequence[Layer], names: Sequence[str]
) -> list[ModuleBlock]:
    """Group calls and parameters by module: the root, then each module, by their first calls.

    Of nested modules the innermost counts. A layer without parameters and outside of all modules
    joins the call before it. A parameter used in several modules belongs to the root.
    """
    modules = set(names)

    def home(name: str) -> str:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    homes, users = list[str](), dict[str, set[str]]()
    for layer in calls:
        learned = [parameter.name for parameter in layer.parameters()]
        unit = home(layer.name)
        if not unit and not learned and homes:
            unit = homes[-1]
        homes.append(unit)
        for name in learned:
            users.setdefault(name, set()).add(unit)
    numbers: dict[str, list[int]] = {}
    for number, of_call in enumerate(homes):
        numbers.setdefault(of_call, []).append(number)
    ordered = list(dict.fromkeys(["", *homes, *names]))
    sorted_names: dict[str, list[str]] = {name: [] for name in ordered}
    for name in dict.fromkeys(p.name for layer in registered for p in layer.parameters()):
        used_by = users.get(name, {home(name)})
        sorted_names[next(iter(used_by)) if len(used_by) == 1 else ""].append(name)
    return [
        ModuleBlock(
            name,
            tuple(numbers.get(name, ())),
            tuple(sorted_names[name]),
        )
        for name in ordered
    ]


def within(calls: Sequence[Layer], units: Sequence[str]) -> list[frozenset[str]]:
    """Find the units that contain each call; units may be nested.

    A unit is the path of a module, or several joined by commas. A call without parameters and name
    belongs to the units of the call before it, except a unit that is a single layer.
    """
    known = {name: unit for unit in units for name in unit.split(", ")}
    blocks, before = list[frozenset[str]](), frozenset[str]()
    for layer in calls:
        parts = layer.name.split(".") if layer.name else []
        names = [".".join(parts[: end + 1]) for end in range(len(parts))]
        here = frozenset(known[name] for name in names if name in known)
        if not (layer.name or layer.parameters()):
            here = before
        blocks.append(here)
        before = here - {known[layer.name]} if layer.name in known else here
    return blocks


# Graph --------------------------------------------------------------------------------------------

Value = NewType("Value", int)
"""Number of a value: the graph's inputs come first, then the output of each call."""

L = TypeVar("L", bound=Layer)


@dataclass(frozen=True)
class Call:
    """A layer and the values that it takes; its output is numbered after all earlier values."""

    layer: Layer
    inputs: tuple[Value, ...]


@dataclass(frozen=True)
class ModelGraph:
    """Layers of a model and their connections."""

    inputs: tuple[str, ...]
    """Arrays of the dataset, such as ``("x",)``."""
    registered: tuple[Layer, ...]
    """Layers in torch's order of registration; some may never be called."""
    calls: tuple[Call, ...]
    """In the order of forward."""
    outputs: tuple[tuple[Value, float], ...]
    """Inputs of the loss, each with the weight of its loss: 1 for a single one."""
    frozen: frozenset[str] = frozenset()
    """Names of the parameters with ``requires_grad=False``."""
    draws: tuple[Parameter, ...] = ()
    """Tensors that torch's constructors fill, in their order; the last value of a parameter
    counts."""

    @property
    def family(self) -> Family:
        """Kind of the model by its called layers; ``unknown`` if one only has a time or a size."""
        families = {call.layer.family for call in self.calls}
        if "unknown" in families:
            return "unknown"
        return next((family for family in get_args(Family) if family in families), "unknown")

    @cached_property
    def num_modules(self) -> int:
        """Modules of the model in torch: layers, and the containers that their paths name.

        Layers without parameters whose names differ by a number at the end (``relu1``, ``relu2``)
        are one module that is called several times.
        """
        paths = set[tuple[str, ...]]()
        for layer in self.registered:
            *path, leaf = layer.name.split(".")
            if layer.is_functional or not layer.name:
                continue
            shared = not leaf.isdigit() and not layer.parameters()
            paths.add((*path, leaf.rstrip("0123456789") if shared else leaf))
        return 1 + len({path[:depth] for path in paths for depth in range(1, len(path) + 1)})

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Trainable tensors in torch's order of registration, shared ones once."""
        by_name = {p.name: p for layer in reversed(self.registered) for p in layer.parameters()}
        names = dict.fromkeys(p.name for layer in self.registered for p in layer.parameters())
        return tuple(by_name[name] for name in names)

    @cached_property
    def num_parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.num_elements for parameter in self.parameters)

    @cached_property
    def trainable(self) -> tuple[Parameter, ...]:
        """Parameters that are not frozen."""
        return tuple(p for p in self.parameters if p.name not in self.frozen)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Tensors that are stored but not trained, in torch's order of registration."""
        return tuple(buffer for layer in self.registered for buffer in layer.buffers())

    @cached_property
    def ready_at(self) -> tuple[tuple[str, ...], ...]:
        """For each call, the parameters with complete gradients after its backward."""
        seen = set(self.frozen)
        ready = []
        for call in self.calls:
            names = [name for name in call.layer.ready_order() if name not in seen]
            seen.update(names)
            ready.append(tuple(names))
        return tuple(ready)

    @cached_property
    def ready_order(self) -> tuple[str, ...]:
        """Parameter names in the order in which backward finishes their gradients."""
        return tuple(name for names in reversed(self.ready_at) for name in names)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """Names of trainable parameters that get no gradient."""
        used = set(self.ready_order)
        return tuple(p.name for p in self.trainable if p.name not in used)

    @cached_property
    def needs(self) -> tuple[tuple[bool, ...], ...]:
        """For each call and input, whether a gradient is needed (trainable weights before it)."""
        learned = [False] * len(self.inputs)
        needs_of_calls = []
        for call in self.calls:
            needs = tuple(learned[value] for value in call.inputs)
            needs_of_calls.append(needs)
            learned.append(any(needs) or bool(self._learned(call.layer)))
        return tuple(needs_of_calls)

    def _learned(self, layer: Layer) -> list[str]:
        names = [parameter.name for parameter in layer.parameters()]
        return [name for name in names if name not in self.frozen]

    @cached_property
    def flows(self) -> tuple[bool, ...]:
        """For each call, whether backward runs through it: trainable weights in it or before it."""
        return tuple(
            any(needs) or bool(self._learned(call.layer))
            for call, needs in zip(self.calls, self.needs, strict=True)
        )

    def learned(self, number: int) -> tuple[str, ...]:
        """Trainable parameters of a call, in the order in which torch finishes their gradients."""
        names = self.calls[number].layer.ready_order()
        return tuple(name for name in names if name not in self.frozen)

    @cached_property
    def first_equal(self) -> tuple[int, ...]:
        """For each call, the first call with an equal layer, apart from its name."""
        first: dict[tuple[type[Layer], str], int] = {}
        layers = [call.layer.model_copy(update={"name": ""}) for call in self.calls]
        return tuple(
            first.setdefault((type(layer), repr(layer)), n) for n, layer in enumerate(layers)
        )

    @cached_property
    def is_synchronised(self) -> bool:
        """Whether ranks exchange numbers during forward and backward."""
        return any(isinstance(call.layer, Synchronised) for call in self.calls)

    @cached_property
    def blocks(self) -> tuple[ModuleBlock, ...]:
        """Repeated modules of the model, in the order of their first calls.

        A layer that is its own parameter (a timed layer) is a block of its own, unless names such
        as ``encoder.layers.0`` define the blocks.
        """
        names = block_names([parameter.name for parameter in self.parameters])
        if not any(name.rpartition(".")[2].isdigit() for name in names):
            for call in self.calls:
                if any(parameter.name == call.layer.name for parameter in call.layer.parameters()):
                    names.append(call.layer.name)
        return tuple(self.modules(names)[1:])

    def modules(self, names: Sequence[str]) -> list[ModuleBlock]:
        """The root and these modules; see `grouped`."""
        return grouped(self.registered, [call.layer for call in self.calls], names)

    def shapes(self, inputs: Sequence[Shape]) -> list[Shape]:
        """Shape of every value, per sample; a ShapeError names the layer that does not fit."""
        if tuple(inputs) in self._known_shapes:
            return list(self._known_shapes[tuple(inputs)])
        shapes = list(inputs)
        for call in self.calls:
            given = [shapes[value] for value in call.inputs]
            try:
                shapes.append(call.layer.output_shape(*given))
            except ShapeError as error:
                raise ShapeError(f"{call.layer.name or call.layer.kind}: {error}") from None
        self._known_shapes[tuple(inputs)] = shapes
        return list(shapes)

    @cached_property
    def _known_shapes(self) -> dict[tuple[Shape, ...], list[Shape]]:
        return {}


class GraphBuilder:
    """Builds a graph with these inputs; see the module's docstring."""

    def __init__(self, *inputs: str) -> None:
        self._inputs = inputs
        self._registered: list[Layer] = []
        self._draws: list[Parameter] = []
        self._drawn: set[str] = set()
        self._known: set[int] = set()  # by identity: equal layers may be registered twice
        self._calls: list[Call] = []

    def input(self, name: str) -> Value:
        """An input of the graph."""
        return Value(self._inputs.index(name))

    def register(self, layer: L, draws: Sequence[Parameter] | None = None) -> L:
        """Add a layer's tensors to the model, in this order; return the layer.

        ``draws`` lists the parameters that torch's constructor fills, in its order, where it
        differs from the layer's own.
        """
        if draws is None:  # a shared one is drawn where it is first registered
            draws = [p for p in layer.parameters() if p.name not in self._drawn]
        self._registered.append(layer)
        self.draw(*draws)
        self._known.add(id(layer))
        return layer

    def draw(self, *parameters: Parameter) -> None:
        """Add tensors that torch's constructors fill besides, such as one replaced later."""
        self._draws += parameters
        self._drawn.update(parameter.name for parameter in parameters)

    def call(self, layer: Layer, *inputs: Value) -> Value:
        """Append a call; a layer that is not registered yet is registered first."""
        if id(layer) not in self._known:
            self.register(layer)
        self._calls.append(Call(layer, inputs))
        return Value(len(self._inputs) + len(self._calls) - 1)

    def build(self, output: Value, *auxiliary: tuple[Value, float]) -> ModelGraph:
        """Finish, with the loss's input, and auxiliary outputs with the weights of their losses."""
        outputs = ((output, 1.0), *auxiliary)
        registered, calls = tuple(self._registered), tuple(self._calls)
        return ModelGraph(self._inputs, registered, calls, outputs, draws=tuple(self._draws))
