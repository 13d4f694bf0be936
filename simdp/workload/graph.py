"""Graph: a model's layers in the order of forward, with what flows between them.

A model builds its graph as a torch module writes ``__init__`` and ``forward``: it registers layers
in torch's order, then calls them. Backward goes through the calls in reverse, as torch's autograd
does, so that the order in which gradients become ready follows from the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NewType, TypeVar

from simdp.workload.blocks import Block, block_names, grouped
from simdp.workload.layers.base import Layer, Shape, ShapeError, Synchronised
from simdp.workload.layers.parameter import Buffer, Parameter

Value = NewType("Value", int)
"""What flows: the graph's inputs come first, then the output of each call."""

L = TypeVar("L", bound=Layer)


@dataclass(frozen=True)
class Call:
    """A layer at work: which values it takes. Its output is the value after those before it."""

    layer: Layer
    inputs: tuple[Value, ...]


@dataclass(frozen=True)
class Graph:
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
    def blocks(self) -> tuple[Block, ...]:
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

    def modules(self, names: Sequence[str]) -> list[Block]:
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

    def build(self, output: Value, *auxiliary: tuple[Value, float]) -> Graph:
        """Finish, with the value that the loss sees, and others whose losses count in part."""
        outputs = ((output, 1.0), *auxiliary)
        registered, calls = tuple(self._registered), tuple(self._calls)
        return Graph(self._inputs, registered, calls, outputs, draws=tuple(self._draws))
