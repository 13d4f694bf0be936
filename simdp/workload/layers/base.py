"""Layers, the graph that a model builds of them, and helpers for their arguments and shapes.

The bounds and deviations are computed as torch.nn.init computes them, to the last bit.

Borders between layers are `(batch, channels, height, width)` as in torch, but the memory behind
them is channels-last wherever these layers have made it: a neighbourhood of pixels is then a few
long pieces, and the pixels are the rows of a matrix product.

What FSDP's wrapping policies and activation checkpointing take as a whole. Names tell them, as they
do in torch: `layers` are not asked what they are.

A model builds its graph as a torch module writes ``__init__`` and ``forward``: it registers layers
in torch's order, then calls them. Backward goes through the calls in reverse, as torch's autograd
does, so that the order in which gradients become ready follows from the order of the calls.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod, sqrt
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, TypeVar

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
"""What is written where the axes differ, by their number."""


class ExtentsOf:
    """A field that takes a whole number, for all axes, or a list; or one of some words.

    Parameters
    ----------
    axes : int
        How many.
    minimum : int
        The least of a length.
    words : str
        What may stand in place of lengths.
    """

    def __init__(self, axes: int, minimum: int, *words: str) -> None:
        self.axes, self.minimum, self.words = axes, minimum, words

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_shortened),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        one = {"type": "integer", "minimum": self.minimum}
        many = {"type": "array", "items": one, "minItems": self.axes, "maxItems": self.axes}
        return {"anyOf": [one, many, *({"const": word} for word in self.words)]}

    def validate(self, value: Any) -> Any:
        """Make it one length of each axis."""
        if isinstance(value, str) and value in self.words:
            return value
        found = tuple(value) if isinstance(value, list | tuple) else (value,) * self.axes
        if len(found) != self.axes or any(type(n) is not int or n < self.minimum for n in found):
            words = "".join(f", nor {word!r}" for word in self.words)
            example = [self.minimum + 1 + axis for axis in range(self.axes)]
            raise problem(
                f"{shown(value)} is neither a whole number >= {self.minimum} "
                f"nor {LISTS[self.axes]}, such as {example}{words}."
            )
        return found


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return value[0] if len({*value}) == 1 else value


Size1 = Annotated[Extents, ExtentsOf(1, 1)]
Margin1 = Annotated[Extents, ExtentsOf(1, 0)]
Padding1 = Annotated[Extents | str, ExtentsOf(1, 0, "same", "valid")]

Size3 = Annotated[Extents, ExtentsOf(3, 1)]
Margin3 = Annotated[Extents, ExtentsOf(3, 0)]
Padding3 = Annotated[Extents | str, ExtentsOf(3, 0, "same", "valid")]


# Parameter ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Initial:
    """How a tensor is filled before training; see `uniform`, `normal` and `constant`.

    Attributes
    ----------
    kind : {"constant", "normal", "uniform", "copy"}
        Which.
    size : float
        The constant, the standard deviation, or the bound on both sides of 0.
    zero_row : int or None
        A row that is 0 whatever is drawn.
    within : float or None
        Bound on both sides of 0 of a truncated normal: values beyond it are drawn again.
    of : str
        The parameter that is copied, as torch copies a whole module (copy.deepcopy).
    """

    kind: Literal["constant", "normal", "uniform", "copy"]
    size: float
    zero_row: int | None = None
    within: float | None = None
    of: str = ""

    def draw_as_torch(self, generator: TorchGenerator, shape: tuple[int, ...], dtype: str) -> Array:
        """Fill an array in a dtype with the numbers that torch draws for it."""
        if self.kind == "constant":
            return np.full(shape, self.size, dtype=dtype)
        if self.kind == "uniform":
            return generator.uniform(self.size, shape, dtype)
        found = generator.normal(self.size, shape, dtype)
        while self.within is not None and (beyond := np.abs(found) > self.within).any():
            found = np.where(beyond, generator.normal(self.size, shape, dtype), found)
        if self.zero_row is not None:
            found[self.zero_row] = 0
        return found

    def skip_as_torch(self, generator: TorchGenerator, shape: tuple[int, ...], dtype: str) -> None:
        """Leave a generator as `draw_as_torch` does, where the numbers are not wanted."""
        if self.kind == "uniform":
            generator.skip_uniform(prod(shape), dtype)
        elif self.kind == "normal" and self.within is None:
            generator.skip_normal(prod(shape), dtype)
        elif self.kind == "normal":  # how many are drawn again depends on the numbers
            self.draw_as_torch(generator, shape, dtype)

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Fill an array, float64, from a stream that torch does not have."""
        if self.kind == "constant":
            found = np.full(shape, self.size)
        elif self.kind == "normal":
            found = self.size * random.standard_normal(shape)
        else:
            found = random.uniform(-self.size, self.size, shape)
        if self.zero_row is not None:
            found[self.zero_row] = 0
        return found


def uniform(bound: float) -> Initial:
    """Uniform between -bound and bound."""
    return Initial("uniform", bound)


def kaiming_uniform(fan: int, a: float = sqrt(5)) -> Initial:
    """torch.nn.init.kaiming_uniform_; by default as torch's linear and convolution layers do."""
    return uniform(sqrt(3.0) * (sqrt(2.0 / (1 + a**2)) / sqrt(fan)))


def xavier_uniform(fan_in: int, fan_out: int) -> Initial:
    """torch.nn.init.xavier_uniform_."""
    return uniform(sqrt(3.0) * sqrt(2.0 / float(fan_in + fan_out)))


def normal(std: float, zero_row: int | None = None) -> Initial:
    """Normal around 0, but for a row that is 0."""
    return Initial("normal", std, zero_row)


def kaiming_normal(fan: int) -> Initial:
    """torch.nn.init.kaiming_normal_ in front of a relu: variance ``2 / fan``."""
    return normal(sqrt(2.0) / sqrt(fan))


def trunc_normal(std: float, within: float = 2.0) -> Initial:
    """torch.nn.init.trunc_normal_ of torch 2.14, between -within and within, not times std."""
    return Initial("normal", std, within=within)


def copy_of(name: str) -> Initial:
    """The same values as another parameter's, which is drawn before."""
    return Initial("copy", 0.0, of=name)


def constant(value: float) -> Initial:
    """The same value everywhere."""
    return Initial("constant", value)


class Parameter(NamedTuple):
    """A learned tensor: its torch name, its shape, and its values before training."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Buffer(NamedTuple):
    """A tensor that is kept but not learned, such as a running mean.

    Attributes
    ----------
    name : str
        Its torch name.
    shape : tuple of int
        Its shape.
    value : float
        What fills it before training.
    integer : bool
        int64 instead of the workload's dtype.
    """

    name: str
    shape: tuple[int, ...]
    value: float
    integer: bool = False

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


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


# Arguments ----------------------------------------------------------------------------------------


def numbered(modules: list[Any], lead: str = "") -> list[Any]:
    """Name those modules that have no name by their place, as torch.nn.Sequential does.

    Numbers among ``inputs`` become names too.

    Parameters
    ----------
    modules : list
        As written: kinds, mappings, or anything else, which is left for others to refuse.
    lead : str
        What stands before a number.
    """
    named = []
    for number, module in enumerate(modules):
        if isinstance(module, str):
            module = {"kind": module}
        if isinstance(module, dict):
            module = {"name": f"{lead}{number}", **module}
            if isinstance(module.get("inputs"), list):
                names = [str(name) if type(name) is int else name for name in module["inputs"]]
                module["inputs"] = names
        named.append(module)
    return named


def check_names(modules: Sequence[Module]) -> None:
    """Refuse modules that share a name, since their parameters would."""
    name, times = Counter(module.name for module in modules).most_common(1)[0]
    if times > 1:
        raise problem(f"{times} layers are called {name!r}; give each a name of its own.")


def check_heads(heads: str, num_heads: int, width: str, num_features: int) -> None:
    """Refuse heads that do not share the features evenly; the words are the two keys."""
    if num_features % num_heads:
        raise problem(
            f"{heads}: {num_heads} heads do not share {width} {num_features} evenly; "
            "choose a divisor of it."
        )


def check_groups(groups: int, in_channels: int, out_channels: int) -> None:
    """Refuse groups that do not share the channels of a convolution evenly."""
    for key, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
        if channels % groups:
            raise problem(
                f"groups: {groups} does not divide {key}, {channels}; "
                "write a number that divides both."
            )


def check_token(key: str, token: int | None, num_tokens: int) -> None:
    """Refuse a number that is no token of a vocabulary."""
    if token is not None and not 0 <= token < num_tokens:
        raise problem(f"{key}: {token} is not a token; tokens are 0 ... {num_tokens - 1}.")


# Shapes -------------------------------------------------------------------------------------------


def last_axis(shape: Shape, features: int) -> Shape:
    """Check that the last axis of a sample has so many features; return the axes before it.

    Raises
    ------
    ShapeError
        If it has not.
    """
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
    """The lengths of the last axes."""
    return (rows,) if isinstance(rows, int) else rows


def check_rows(shape: Shape, rows: int | Shape) -> None:
    """Check that the last axes of a sample have these lengths.

    Raises
    ------
    ShapeError
        If they have not.
    """
    wanted = row_shape(rows)
    if shape[-len(wanted) :] != wanted:
        what = f"{rows} features" if len(wanted) == 1 else f"rows of shape {wanted}"
        raise ShapeError(f"takes {what}, but gets samples of shape {shape}")


IMAGES = {
    1: ("series", "(channels, length)"),
    2: ("images", "(channels, height, width)"),
    3: ("volumes", "(channels, depth, height, width)"),
}
"""What has so many axes beside the channels, and its shape in words."""


def image_shape(shape: Shape, axes: int = 2) -> Shape:
    """Check that samples are channels of images, or of what has one axis or three.

    Raises
    ------
    ShapeError
        If they have another number of axes.
    """
    if len(shape) != axes + 1:
        what, form = IMAGES[axes]
        raise ShapeError(f"takes {what}, shape {form}, but gets samples of shape {shape}")
    return shape


def check_channels(shape: Shape, channels: int, axes: int) -> None:
    """Check that samples are images, or alike, of so many channels.

    Raises
    ------
    ShapeError
        If they are not.
    """
    if image_shape(shape, axes)[0] != channels:
        what = IMAGES[axes][0]
        raise ShapeError(f"takes {what} of {channels} channels, but gets samples of shape {shape}")


def axis_of(dim: int, shape: Shape) -> int:
    """Number of an axis among those of a batch, whose samples are axis 0; -1 is the last.

    Raises
    ------
    ShapeError
        If samples have no such axis.
    """
    axis = dim if dim >= 0 else dim + 1 + len(shape)
    if not 1 <= axis <= len(shape):
        raise ShapeError(
            f"works along axis {dim}, but gets samples of shape {shape}, "
            f"whose axes are 1 to {len(shape)}"
        )
    return axis


def sequence_shape(shape: Shape) -> tuple[int, int]:
    """Take a sequence's shape apart into length and features.

    Raises
    ------
    ShapeError
        If it has not these two axes.
    """
    if len(shape) != 2:
        raise ShapeError(f"takes sequences (length, features), but gets samples of shape {shape}")
    return shape[0], shape[1]


CACHED_ELEMENTS = 2**15
"""128 KiB of float32: three arrays of a block fit into a core's second cache."""


def blocks(num_rows: int, row_elements: int = 1, elements: int | None = None) -> Iterator[slice]:
    """Cut rows into blocks, each of whole rows and of about so many elements.

    Parameters
    ----------
    num_rows : int
        How many there are.
    row_elements : int
        Elements of each.
    elements : int, optional
        Most elements of a block; one row is the least.
    """
    most = CACHED_ELEMENTS if elements is None else elements
    step = max(most // max(row_elements, 1), 1)
    for begin in range(0, num_rows, step):
        yield slice(begin, begin + step)


# Channels -----------------------------------------------------------------------------------------

LANES = 512
"""Elements of a row that NumPy goes over at once; shorter rows cost more than their elements."""


def channels_last(x: Array) -> Array:
    """The same values with the channels along the last axis, in one piece of memory."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def channels_second(x: Array) -> Array:
    """View of channels-last values as torch orders the axes."""
    return np.moveaxis(x, -1, 1)


def channel_sum(x: Array) -> Array:
    """Sum of channels-last values over every axis but the last, float64."""
    rows = rows_of(x)
    total = np.zeros(rows.shape[1])
    for block in blocks(*rows.shape):
        total += rows[block].sum(axis=0)
    return folded(total, x)


def channel_sums(x: Array, y: Array) -> tuple[Array, Array]:
    """Sums of x and of x y over every axis but the last, float64; both are channels-last."""
    left, right = rows_of(x), rows_of(y)
    total, product = np.zeros(left.shape[1]), np.zeros(left.shape[1])
    for block in blocks(*left.shape):
        total += left[block].sum(axis=0)
        product += np.einsum("ij,ij->j", left[block], right[block])
    return folded(total, x), folded(product, x)


def rows_of(x: Array) -> Array:
    """View contiguous channels-last values as a matrix whose rows hold whole pixels."""
    width, axis = x.shape[-1], x.ndim - 1
    while axis and width < LANES:
        axis -= 1
        width *= x.shape[axis]
    return x.reshape(prod(x.shape[:axis]), width)


def repeated(channels: Array, rows: Array) -> Array:
    """One value per channel, for every column of `rows_of`, in its dtype."""
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
    """Calls and parameters of one module.

    Attributes
    ----------
    name : str
        The module's, such as ``"encoder.layers.0"``; empty for the root, which has all the rest.
    calls : tuple of int
        Numbers of its calls, in the order of forward.
    parameters : tuple of str
        Names of its parameters, in torch's order of registration.
    """

    name: str
    calls: tuple[int, ...]
    parameters: tuple[str, ...]


def block_names(parameters: Sequence[str]) -> list[str]:
    """Find the blocks of a model in the names of its parameters.

    Up to and including the first part that is a number (``encoder.layers.0``, ``layer1.0``), else
    the first of several parts (``Mixed_5b``), unless that holds other blocks.
    """
    found: dict[str, None] = {}
    for name in parameters:
        parts = name.split(".")[:-1]  # the last one is the tensor's own
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is not None:
            found[".".join(parts[: number + 1])] = None
        elif len(parts) > 1:
            found[parts[0]] = None
    holding = {name[:dot] for name in found for dot, sign in enumerate(name) if sign == "."}
    return [name for name in found if name not in holding]


def grouped(
    registered: Sequence[Layer], calls: Sequence[Layer], names: Sequence[str]
) -> list[ModuleBlock]:
    """Sort calls and parameters into modules.

    Parameters
    ----------
    registered : sequence of Layer
        In torch's order of registration.
    calls : sequence of Layer
        In the order of forward.
    names : sequence of str
        Of the modules; of several that hold a layer, the innermost counts.

    Returns
    -------
    list of Block
        The root, and then each module, in the order of their first calls. A layer that learns
        nothing, and whose name is of no module, goes with the call before it. A parameter that
        layers of several modules use is the root's.
    """
    modules = set(names)

    def home(name: str) -> str:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    homes, users = list[str](), dict[str, set[str]]()
    for layer in calls:
        learned = [parameter.name for parameter in layer.parameters()]
        found = home(layer.name)
        if not found and not learned and homes:
            found = homes[-1]
        homes.append(found)
        for name in learned:
            users.setdefault(name, set()).add(found)
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
    """Find the units that each call runs in, of units that may lie within each other.

    Parameters
    ----------
    calls : sequence of Layer
        In the order of forward.
    units : sequence of str
        Names of modules; several in one, with commas between them, are a unit together.

    Returns
    -------
    list of frozenset of str
        What learns nothing and has no name runs where the call before it does, unless that is a
        module of one layer.
    """
    known = {name: unit for unit in units for name in unit.split(", ")}
    found, before = list[frozenset[str]](), frozenset[str]()
    for layer in calls:
        parts = layer.name.split(".") if layer.name else []
        names = [".".join(parts[: end + 1]) for end in range(len(parts))]
        here = frozenset(known[name] for name in names if name in known)
        if not (layer.name or layer.parameters()):
            here = before
        found.append(here)
        before = here - {known[layer.name]} if layer.name in known else here
    return found


# Graph --------------------------------------------------------------------------------------------

Value = NewType("Value", int)
"""What flows: the graph's inputs come first, then the output of each call."""

L = TypeVar("L", bound=Layer)


@dataclass(frozen=True)
class Call:
    """A layer at work: which values it takes. Its output is the value after those before it."""

    layer: Layer
    inputs: tuple[Value, ...]


@dataclass(frozen=True)
class ModelGraph:
    """A model's layers and how they are joined.

    Attributes
    ----------
    inputs : tuple of str
        Arrays of the data set, such as ``("x",)``.
    registered : tuple of Layer
        Layers in torch's order of registration; some may never be called.
    calls : tuple of Call
        In the order of forward.
    outputs : tuple of (Value, float)
        What the loss sees, and the weight of each one's loss: 1 for the only one.
    frozen : frozenset of str
        Names of the parameters that nobody changes: torch's ``requires_grad`` is False.
    draws : tuple of Parameter
        What torch's constructors fill, in their order; the last value of a parameter stays.
    """

    inputs: tuple[str, ...]
    registered: tuple[Layer, ...]
    calls: tuple[Call, ...]
    outputs: tuple[tuple[Value, float], ...]
    frozen: frozenset[str] = frozenset()
    draws: tuple[Parameter, ...] = ()

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Learned tensors, in torch's order of registration; one that is shared, once."""
        found = {p.name: p for layer in reversed(self.registered) for p in layer.parameters()}
        names = dict.fromkeys(p.name for layer in self.registered for p in layer.parameters())
        return tuple(found[name] for name in names)

    @cached_property
    def num_parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.num_elements for parameter in self.parameters)

    @cached_property
    def trainable(self) -> tuple[Parameter, ...]:
        """Those of the parameters that are not frozen."""
        return tuple(p for p in self.parameters if p.name not in self.frozen)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Tensors that are kept but not learned, in torch's order of registration."""
        return tuple(buffer for layer in self.registered for buffer in layer.buffers())

    @cached_property
    def ready_at(self) -> tuple[tuple[str, ...], ...]:
        """Names whose gradients are complete once backward has gone through each call."""
        seen = set(self.frozen)
        ready = []
        for call in self.calls:
            names = [name for name in call.layer.ready_order() if name not in seen]
            seen.update(names)
            ready.append(tuple(names))
        return tuple(ready)

    @cached_property
    def ready_order(self) -> tuple[str, ...]:
        """Names of the parameters in the order in which backward finishes their gradients."""
        return tuple(name for names in reversed(self.ready_at) for name in names)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """Names of the parameters that get no gradient, though they are not frozen."""
        used = set(self.ready_order)
        return tuple(p.name for p in self.trainable if p.name not in used)

    @cached_property
    def needs(self) -> tuple[tuple[bool, ...], ...]:
        """For each call, which inputs want a gradient: those with something learned below them."""
        learned = [False] * len(self.inputs)
        found = []
        for call in self.calls:
            needs = tuple(learned[value] for value in call.inputs)
            found.append(needs)
            learned.append(any(needs) or bool(self._learned(call.layer)))
        return tuple(found)

    def _learned(self, layer: Layer) -> list[str]:
        names = [parameter.name for parameter in layer.parameters()]
        return [name for name in names if name not in self.frozen]

    @cached_property
    def flows(self) -> tuple[bool, ...]:
        """For each call, whether backward goes through it: something is learned there or below."""
        return tuple(
            any(needs) or bool(self._learned(call.layer))
            for call, needs in zip(self.calls, self.needs, strict=True)
        )

    def learned(self, number: int) -> tuple[str, ...]:
        """Parameters of a call that get gradients, in the order in which torch finishes them."""
        names = self.calls[number].layer.ready_order()
        return tuple(name for name in names if name not in self.frozen)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each call, the first one whose layer is the same but for its name."""
        first: dict[tuple[type[Layer], str], int] = {}
        layers = [call.layer.model_copy(update={"name": ""}) for call in self.calls]
        return tuple(first.setdefault((type(one), repr(one)), n) for n, one in enumerate(layers))

    @cached_property
    def is_synchronised(self) -> bool:
        """Whether ranks exchange numbers in the middle of forward and backward."""
        return any(isinstance(call.layer, Synchronised) for call in self.calls)

    @cached_property
    def blocks(self) -> tuple[ModuleBlock, ...]:
        """The modules that the model repeats, in the order of their first calls.

        A layer that is its own parameter, as where only its times are known, is one, unless names
        tell which layers are of one block, as those of ``encoder.layers.0`` do.
        """
        names = block_names([parameter.name for parameter in self.parameters])
        if not any(name.rpartition(".")[2].isdigit() for name in names):
            for call in self.calls:
                if any(parameter.name == call.layer.name for parameter in call.layer.parameters()):
                    names.append(call.layer.name)
        return tuple(self.modules(names)[1:])

    def modules(self, names: Sequence[str]) -> list[ModuleBlock]:
        """What belongs to the root, and to each of these modules; see `blocks.grouped`."""
        layers = [call.layer for call in self.calls]
        return grouped(self.registered, layers, names)

    def shapes(self, inputs: Sequence[Shape]) -> list[Shape]:
        """Shape of every value, per sample.

        Raises
        ------
        ShapeError
            If layers do not chain; says which one.
        """
        if tuple(inputs) in self._known_shapes:
            return list(self._known_shapes[tuple(inputs)])
        found = list(inputs)
        for call in self.calls:
            given = [found[value] for value in call.inputs]
            try:
                found.append(call.layer.output_shape(*given))
            except ShapeError as error:
                raise ShapeError(f"{call.layer.name or call.layer.kind}: {error}") from None
        self._known_shapes[tuple(inputs)] = found
        return list(found)

    @cached_property
    def _known_shapes(self) -> dict[tuple[Shape, ...], list[Shape]]:
        return {}


class GraphBuilder:
    """Makes a graph; see the module's text.

    Parameters
    ----------
    inputs : str
        The graph's inputs by name.
    """

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
        """Take a layer's tensors into the model, in this order; return the layer.

        ``draws`` are the parameters that torch fills when it constructs the layer, in its order,
        where they are not the layer's own in theirs.
        """
        if draws is None:  # one that is shared is drawn where it is registered first
            draws = [p for p in layer.parameters() if p.name not in self._drawn]
        self._registered.append(layer)
        self.draw(*draws)
        self._known.add(id(layer))
        return layer

    def draw(self, *parameters: Parameter) -> None:
        """Add what torch's constructors fill besides, such as a tensor that is then replaced."""
        self._draws += parameters
        self._drawn.update(parameter.name for parameter in parameters)

    def call(self, layer: Layer, *inputs: Value) -> Value:
        """Let a layer work on values; one that is not registered is registered now."""
        if id(layer) not in self._known:
            self.register(layer)
        self._calls.append(Call(layer, inputs))
        return Value(len(self._inputs) + len(self._calls) - 1)

    def build(self, output: Value, *auxiliary: tuple[Value, float]) -> ModelGraph:
        """Finish, with the value that the loss sees, and others whose losses count in part."""
        outputs = ((output, 1.0), *auxiliary)
        registered, calls = tuple(self._registered), tuple(self._calls)
        return ModelGraph(self._inputs, registered, calls, outputs, draws=tuple(self._draws))
