"""MLPs and layer-by-layer models."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from simdp.errors import KindError, unknown_name
from simdp.family import WRITTEN_OUT
from simdp.spec import Bool, Int, problem
from simdp.workload.layers import AnyModule
from simdp.workload.layers.activations import ACTIVATIONS, activation
from simdp.workload.layers.base import (
    GraphBuilder,
    Layer,
    ModelGraph,
    Module,
    Shape,
    check_names,
    numbered,
)
from simdp.workload.layers.linear import Linear
from simdp.workload.models.base import Model

KINDS: JsonDict = {
    "anyOf": [
        {"enum": [*sorted(ACTIVATIONS)]},
        {"pattern": f"^{WRITTEN_OUT}$", "title": "`module:Class`"},
    ]
}
"""Names of activations, in JSON Schema."""


class MLP(Model):
    """Linear layers ``widths[0] -> widths[1] -> ...``; no activation after the last.

    Parameters are named ``layers.0.weight``, ``layers.0.bias``, ``layers.1.weight``, ...
    """

    kind: Literal["mlp"] = "mlp"
    widths: list[Annotated[Int, Field(ge=1, le=10**8)]] = Field(min_length=2)
    """Length of a sample, then the outputs of each layer."""
    activation: str = Field("relu", json_schema_extra=KINDS)
    """Kind of activation between layers."""
    bias: Bool = True
    """Whether layers have a bias."""

    @field_validator("activation")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            activation = ACTIVATIONS.find(value)
        except KindError as error:
            raise problem(f"the activation {error}") from None
        if activation is None:
            known = sorted({*ACTIVATIONS, *ACTIVATIONS.offered()})
            raise problem(unknown_name("activation", value, known))
        return value

    def build(self) -> ModelGraph:
        graph = GraphBuilder("x")
        h = graph.input("x")
        for index, (before, after) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            if index:
                h = graph.call(activation(self.activation, f"{self.activation}.{index - 1}"), h)
            name = f"layers.{index}"
            linear = Linear(name=name, in_features=before, out_features=after, bias=self.bias)
            h = graph.call(linear, h)
        return graph.build(h)

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.widths[0],)}


INPUT = "input"
"""Name of the sample among inputs."""


class Sequential(Model):
    """``{kind: sequential, layers: [{name: l1, kind: linear, in_features: 5, ...}, ...]}``."""

    kind: Literal["sequential"] = "sequential"
    layers: list[AnyModule] = Field(min_length=1)
    """In the order of forward; one without a name is named by its number, as in
    torch.nn.Sequential. Each takes the output of the one before it, unless its ``inputs`` name
    earlier ones, or ``input``, the sample: skips are written in this way, with ``add`` and
    ``concat``."""
    input_shape: list[Annotated[Int, Field(ge=1)]] | None = None
    """Shape of a sample; by default that of the data, or the features of a first linear layer."""
    unused: tuple[str, ...] = ()
    """Layers that the model has but never calls: their parameters get no gradient."""

    @model_validator(mode="before")
    @classmethod
    def _number_the_nameless(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("layers"), list):
            return data
        return {**data, "layers": numbered(data["layers"])}

    @field_validator("layers")
    @classmethod
    def _names_differ(cls, value: list[Module]) -> list[Module]:
        check_names(value)
        named = [layer for layer in value if layer.inputs is not None]
        if named and any(layer.name == INPUT for layer in value):
            raise problem(
                f"{INPUT!r} is the name of the sample where layers name their inputs; rename "
                "the layer."
            )
        return value

    @model_validator(mode="after")
    def _unused_exist(self) -> Self:
        known = [layer.name for layer in self.layers]
        for name in self.unused:
            if name not in known:
                lead = f"unused: no layer is called {name!r}"
                raise problem(unknown_name("", name, known, lead=lead))
        if len(set(self.unused)) == len(known):
            raise problem("unused: every layer is unused; leave one out.")
        return self

    @model_validator(mode="after")
    def _inputs_are_earlier(self) -> Self:
        known = [INPUT]
        for place, layer in enumerate(self.layers):
            where = f"layers.{place}.inputs"
            for name in layer.inputs or ():
                if name not in known:
                    raise problem(f"{where}: {unknown_name('earlier layer', name, known)}")
            given, most = len(layer.inputs or ()), layer.most_inputs
            if most is not None and given > most:
                raise problem(
                    f"{where}: {layer.kind} takes {most}, but {given} are named; join them first, "
                    "by add or concat."
                )
            if layer.name not in self.unused:
                known.append(layer.name)
            elif layer.inputs is not None:
                raise problem(f"{where}: the layer is unused; leave inputs out.")
        return self

    @model_validator(mode="after")
    def _all_lead_on(self) -> Self:
        """Raise for a layer with an unused output: its parameters would get no gradient."""
        called = [layer for layer in self.layers if layer.name not in self.unused]
        taken = {name for layer in called for name in layer.inputs or ()}
        for layer, follower in pairwise(called):
            if follower.inputs is not None and layer.name not in taken:
                place = self.layers.index(layer)
                raise problem(
                    f"layers.{place}: its output is not used; name it in the inputs of a "
                    "later layer, or list it in unused."
                )
        return self

    @model_validator(mode="after")
    def _tokens_are_looked_up_first(self) -> Self:
        graph = self.graph
        for call in graph.calls:
            if call.layer.vocabulary is not None and call.inputs[0] >= len(graph.inputs):
                raise problem(
                    f"layers: {call.layer.name} looks up tokens, but the layers before it make "
                    "other numbers; put it first."
                )
        return self

    def build(self) -> ModelGraph:
        graph = GraphBuilder("x")
        h = graph.input("x")
        made = {INPUT: h}
        for module in self.layers:
            if module.name not in self.unused:
                given = [h] if module.inputs is None else [made[name] for name in module.inputs]
                h = made[module.name] = module.add_to(graph, *given)
            elif isinstance(module, Layer):
                graph.register(module)
        return graph.build(h)

    def input_shapes(self) -> dict[str, Shape | None]:
        if self.input_shape is not None:
            return {"x": tuple(self.input_shape)}
        first = self.graph.calls[0].layer
        return {"x": (first.in_features,) if isinstance(first, Linear) else None}

    def num_tokens(self, name: str) -> int | None:
        return self.graph.calls[0].layer.vocabulary

    def how_to_give_shapes(self) -> str:
        return "add input_shape, for example input_shape: [3, 32, 32]."

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        if self.input_shape is not None or "x" not in shapes:
            return self
        return self.model_copy(update={"input_shape": list(shapes["x"])})
