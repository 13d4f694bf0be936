"""Models given by their costs: operators, parameters, einsums, timed layers, a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from simdp.errors import ScenarioError, shown, unknown_name
from simdp.files import read_json
from simdp.spec import Bool, Int, Spec, problem, problems
from simdp.tables import NamedRow, read_csv
from simdp.workload.layers.base import GraphBuilder, ModelGraph, Shape, Value
from simdp.workload.layers.linear import Einsum, split_equation
from simdp.workload.layers.operator import (
    POLICIES,
    Count,
    Held,
    KeptSizes,
    KernelSizes,
    Learned,
    Operator,
    Size,
    TimedLayer,
)
from simdp.workload.models.base import Model

# Recorded operators -------------------------------------------------------------------------------

FORMAT = 1
"""Version of the format below; other versions are rejected."""


class GraphInput(Spec):
    """An argument of a recorded module: numbers per sample, and whether they are tokens or such."""

    name: str
    elements: Count
    integers: Bool = False


class RecordedCall(Spec):
    """A recorded operator and its inputs; see `simdp.workload.layers.operator.Operator`."""

    name: str
    """Path of its module, and the operator's name."""
    policy: Literal["fused_attention", "product", "promote", "wide"] = "promote"
    """A key of ``POLICIES``."""
    takes: tuple[Count, ...] = ()
    """Numbers of values: first the graph's inputs, then the operators' outputs."""
    elements: Count = 0
    """As the operator's attributes; parameters by their numbers in the file."""
    learned: tuple[Count, ...] = ()
    """As the operator's attributes; parameters by their numbers in the file."""
    products: Size = 0.0
    """As the operator's attributes; parameters by their numbers in the file."""
    forward: tuple[KernelSizes, ...] = ()
    """As the operator's attributes; parameters by their numbers in the file."""
    backward: tuple[KernelSizes, ...] = ()
    """As the operator's attributes; parameters by their numbers in the file."""
    keeps: KeptSizes = KeptSizes()
    """As the operator's attributes; parameters by their numbers in the file."""


class Recording(Spec):
    """Content of a file of recorded operators."""

    format: Annotated[Int, Field(ge=FORMAT, le=FORMAT)]
    """Version of the format."""
    module: str
    """Name of the recorded module."""
    torch: str
    """Torch's version."""
    inputs: tuple[GraphInput, ...]
    """In the order of the module's arguments."""
    parameters: tuple[Learned, ...]
    """In torch's order of registration."""
    frozen: tuple[Count, ...] = ()
    """Numbers of the parameters without gradient."""
    buffers: tuple[Held, ...] = ()
    """In torch's order of registration."""
    operators: Annotated[tuple[RecordedCall, ...], Field(min_length=1)]
    """In the order of forward."""
    output: Count
    """The value at which backward begins."""

    def problem(self) -> str | None:
        """Error for a number that is no value or parameter, or None."""
        first, parameters = len(self.inputs), len(self.parameters)
        for number, call in enumerate(self.operators):
            where = f"operators.{number}"
            if any(value >= first + number for value in call.takes):
                return (
                    f"{where}.takes: a value that is not computed before it; record the file again."
                )
            if any(learned >= parameters for learned in call.learned):
                return f"{where}.learned: there are {parameters} parameters; record the file again."
            if any(taken >= len(call.takes) for taken in call.keeps.inputs):
                return f"{where}.keeps: there are {len(call.takes)} inputs; record the file again."
        if any(number >= parameters for number in self.frozen):
            return f"frozen: there are {parameters} parameters; record the file again."
        if not first <= self.output < first + len(self.operators):
            return "output: is no operator's; record the file again."
        return None


class Operators(Model):
    """``{kind: operators, path: gpt2.json}``: a module recorded by `simdp.torch.workload`.

    Times and memory on any device follow from the kernels; there are no numbers. The operators
    include the loss, if there was one.
    """

    kind: Literal["operators"] = "operators"
    path: str
    """The file, relative to the scenario's."""

    recorded: ClassVar[bool] = True

    _recording: Recording | None = PrivateAttr(default=None)

    @property
    def unread(self) -> bool:
        return True

    def read(self, base: Path, itemsize: int) -> Self:
        path = base / self.path
        raw = read_json(path)
        try:
            recording = Recording.model_validate(raw)
        except ValidationError as error:
            raise ScenarioError(
                [f"{path}: {problem.line}" for problem in problems(error, raw)]
            ) from None
        wrong = recording.problem()
        if wrong:
            raise ScenarioError([f"{path}: {wrong}"])
        return self.of(recording, self.path)

    @classmethod
    def of(cls, recording: Recording, path: str = "") -> Self:
        """The model of a recording in memory."""
        model = cls(path=path)
        model._recording = recording
        return model

    @property
    def recording(self) -> Recording:
        """Content of the file, which is read when a workload is settled."""
        assert self._recording is not None, "the file is read when a workload is settled"
        return self._recording

    def build(self) -> ModelGraph:
        recording = self.recording
        graph = GraphBuilder(*(tensor.name for tensor in recording.inputs))
        graph.register(
            Operator(name="", elements=0, learned=recording.parameters, held=recording.buffers)
        )
        values = [graph.input(tensor.name) for tensor in recording.inputs]
        for call in recording.operators:
            layer = POLICIES[call.policy](
                name=call.name,
                elements=call.elements,
                learned=tuple(recording.parameters[number] for number in call.learned),
                products=call.products,
                forward_kernels=call.forward,
                backward_kernels=call.backward,
                keeps=call.keeps,
            )
            values.append(graph.call(layer, *(values[number] for number in call.takes)))
        made = graph.build(Value(recording.output))
        frozen = frozenset(recording.parameters[number].name for number in recording.frozen)
        return ModelGraph(made.inputs, made.registered, made.calls, made.outputs, frozen)

    def input_shapes(self) -> dict[str, Shape | None]:
        return {tensor.name: (tensor.elements,) for tensor in self.recording.inputs}

    def num_tokens(self, name: str) -> int | None:
        integers = {tensor.name for tensor in self.recording.inputs if tensor.integers}
        return 2**31 if name in integers else None


class EinsumModel(Model):
    """``{kind: einsum, equation: "bd,df->bf", d: 2048, f: 1024}``: a size for every index.

    The first index is the sample's and has no size. The parameter is called ``weight``.
    """

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "patternProperties": {"^.$": {"type": "integer", "minimum": 1, "maximum": 10**8}},
            "additionalProperties": False,
        },
    )

    kind: Literal["einsum"] = "einsum"
    equation: str
    """Indices of the input, the weight and the output."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_words(cls, data: object) -> object:
        """Raise for keys longer than a letter, which cannot be indices."""
        for key in data if isinstance(data, dict) else ():
            if key not in ("kind", "equation") and len(str(key)) > 1:
                raise problem(unknown_name("key", key, ["equation"]))
        return data

    @field_validator("equation")
    @classmethod
    def _parses(cls, value: str) -> str:
        try:
            split_equation(value)
        except ValueError as error:
            raise problem(f"{shown(value)} is not a valid equation: {error}.") from None
        return value

    @model_validator(mode="after")
    def _sizes_are_given(self) -> EinsumModel:
        x, weight, output = split_equation(self.equation)
        sample, given = x[0], dict(self.model_extra or {})
        wanted = sorted(set(x + weight + output) - {sample})
        for index in wanted:
            if index not in given:
                raise problem(f"index {index!r} of {self.equation!r} has no size; add {index}: 64.")
        for index, size in given.items():
            if index not in wanted:
                raise problem(f"unknown key {index!r}; known: equation, {', '.join(wanted)}.")
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 10**8:
                raise problem(
                    f"{index}: {size!r} is not a size; write a whole number from 1 to 10^8."
                )
        return self

    def sizes(self) -> dict[str, int]:
        """Size of every index but the sample's."""
        return dict(self.model_extra or {})

    def build(self) -> ModelGraph:
        graph = GraphBuilder("x")
        einsum = Einsum(name="einsum", equation=self.equation, sizes=self.sizes())
        return graph.build(graph.call(einsum, graph.input("x")))

    def input_shapes(self) -> dict[str, Shape | None]:
        x, _, _ = split_equation(self.equation)
        return {"x": tuple(self.sizes()[index] for index in x[1:])}


class TimedModel(Model):
    """Base of chains of layers with given times."""

    timed: ClassVar[bool] = True

    brings_times: ClassVar[bool] = True
    """Whether its layers have times, so that ``compute`` must not give them."""

    def input_shapes(self) -> dict[str, Shape | None]:
        return {}


def chain(layers: Sequence[TimedLayer]) -> ModelGraph:
    """Call layers one after the other; the first has no input."""
    graph = GraphBuilder()
    value = graph.call(layers[0])
    for layer in layers[1:]:
        value = graph.call(layer, value)
    return graph.build(value)


def _counted(value: object) -> object:
    """Convert ``25.6e6``, which YAML reads as a float, to an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Parameters(TimedModel):
    """``{kind: parameters, num_params: 25_000_000}``: equal layers that take no time.

    With ``compute: measured`` a step takes the measured time, divided equally among the layers.
    """

    kind: Literal["parameters"] = "parameters"
    num_params: Annotated[Int, BeforeValidator(_counted)] = Field(ge=1, le=10**13)
    """Elements of all layers; also as ``25.6e6``."""
    num_layers: Int = Field(1, ge=1, le=10**5)
    """Layers, with a tensor each. 1 by default, but 50 if compute is measured: with a single one no
    communication could begin before backward ends."""

    brings_times: ClassVar[bool] = False

    @model_validator(mode="after")
    def _each_layer_learns(self) -> Parameters:
        if self.num_layers > self.num_params:
            raise problem(
                f"num_layers: {self.num_layers} layers cannot share {self.num_params} parameters; "
                "give fewer layers."
            )
        return self

    def build(self) -> ModelGraph:
        per_layer, more = divmod(self.num_params, self.num_layers)
        return chain(
            [
                TimedLayer(
                    name="parameters" if self.num_layers == 1 else f"parameters.{number}",
                    forward_time=0,
                    gradient_time=0,
                    num_elements=per_layer + (number < more),
                )
                for number in range(self.num_layers)
            ]
        )


US_PER_S = 1e6

WHOLE = ("backward_us",)
SPLIT = ("weight_grad_us", "input_grad_us")
"""Two forms of backward: in one column, or split where the layer's gradient is ready."""

HOST = ("forward_host_us", "backward_host_us")

OPTIONAL = ("activation_bytes", *HOST, "products", "buffer_bytes", "counter_bytes")

COUNTER_ITEMSIZE = 8


class Profile(TimedModel):
    """``{kind: profile, path: layers.csv}``: times and bytes of each layer, in forward order.

    The columns are ``name, forward_us, backward_us, gradient_bytes``, and optionally
    ``activation_bytes``. Instead of ``backward_us`` there may be ``weight_grad_us, input_grad_us``:
    a layer's gradient is ready after the first; then the second runs, except for the first layer's
    input, which needs no gradient. All are those of one micro-step. A layer's parameter has the
    layer's name; for several tensors write one line each, all but one without times.

    Further columns: ``forward_host_us`` and ``backward_host_us`` are the host's times to launch the
    kernels, a lower bound of a layer's time (0 with `workload.cuda_graphs`). ``products`` is the
    share of matrix products in a layer's time, from 0 to 1, for other devices (`workload.compute`).
    ``buffer_bytes`` and ``counter_bytes`` are those of buffers in the workload's dtype and in
    int64.
    """

    kind: Literal["profile"] = "profile"
    path: str
    """A CSV file, relative to the scenario's; lines that begin with # are comments."""

    _layers: tuple[TimedLayer, ...] = PrivateAttr(default=())

    def read(self, base: Path, itemsize: int) -> Self:
        first, *others = read_layers(base / self.path, itemsize)
        profile = type(self)(path=self.path)
        profile._layers = (first.model_copy(update={"input_time": 0.0}), *others)
        return profile

    def build(self) -> ModelGraph:
        assert self._layers, "the file is read when a workload is settled"
        return chain(self._layers)


def read_layers(path: Path, itemsize: int) -> list[TimedLayer]:
    """Read a `Profile`'s lines, in forward order, each with the gradient of its input.

    ``itemsize`` is that of a gradient [bytes]. Raises ScenarioError if the file cannot be read.
    """
    rows = read_csv(
        path,
        ["name", "forward_us", "gradient_bytes"],
        [*WHOLE, *SPLIT, *OPTIONAL],
    )
    columns = _backward_columns(path, rows[0])
    return [_layer(path, row, columns, itemsize) for row in rows]


def _backward_columns(path: Path, row: NamedRow) -> Sequence[str]:
    """The columns of backward, in either form."""
    given = [column for column in (*WHOLE, *SPLIT) if column in row.numbers]
    if tuple(given) not in (WHOLE, SPLIT):
        listed = ", ".join(given) or "none of them"
        raise ScenarioError(
            [
                f"{path}: backward takes the column backward_us, or the columns weight_grad_us "
                f"and input_grad_us; given: {listed}."
            ]
        )
    if tuple(given) == SPLIT and HOST[1] in row.numbers:
        raise ScenarioError(
            [
                f"{path}: backward_host_us goes with backward_us, not with weight_grad_us and "
                "input_grad_us; leave it out, or give backward in one."
            ]
        )
    return given


def _layer(path: Path, row: NamedRow, columns: Sequence[str], itemsize: int) -> TimedLayer:
    # Divided by a whole number, which rounds once: 5 us is 5 / 1e6, not 5 * 1e-6.
    times = [row.numbers[column] / US_PER_S for column in columns]
    products = row.numbers.get("products", 0.0)
    if products > 1:
        raise ScenarioError(
            [f"{path}:{row.line}: products {products:.12g} is not a share; write 0 to 1."]
        )
    return TimedLayer(
        name=row.name,
        forward_time=row.numbers["forward_us"] / US_PER_S,
        gradient_time=times[0],
        input_time=sum(times[1:]),
        num_elements=_elements(path, row, "gradient_bytes", itemsize),
        activation_nbytes=row.numbers.get("activation_bytes", 0.0),
        forward_host=row.numbers.get(HOST[0], 0.0) / US_PER_S,
        gradient_host=row.numbers.get(HOST[1], 0.0) / US_PER_S,
        products=products,
        num_buffers=_elements(path, row, "buffer_bytes", itemsize),
        num_counters=_elements(path, row, "counter_bytes", COUNTER_ITEMSIZE),
    )


WHOSE = {
    "gradient_bytes": "the workload's gradients have",
    "buffer_bytes": "the workload's buffers have",
    "counter_bytes": "int64 has",
}


def _elements(path: Path, row: NamedRow, column: str, itemsize: int) -> int:
    """Convert a column of bytes to elements."""
    nbytes = row.numbers.get(column, 0.0)
    if nbytes % itemsize:
        raise ScenarioError(
            [
                f"{path}:{row.line}: {column} {nbytes:.12g} is not a whole number of elements; "
                f"{WHOSE[column]} {itemsize} bytes each."
            ]
        )
    return int(nbytes // itemsize)
