"""Residual: a block whose input is added to its output, as in a ResNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import problem
from simdp.workload.layers import AnyModule
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.add import Add
from simdp.workload.layers.arguments import check_names, numbered
from simdp.workload.layers.base import Module

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class Residual(Module):
    """``activation(layers(x) + shortcut(x))``; the layers run first, then the shortcut.

    Parameters are named ``<block>.<layer>.weight``. A layer without a name has its number; one of
    the shortcut is called ``shortcut.<number>``.

    Attributes
    ----------
    layers : list of Module
        The main path, in the order of forward.
    shortcut : list of Module
        What the input goes through on its way around; nothing by default.
    activation : {"relu", "none"}
        What follows the sum.

    References
    ----------
    He et al., "Deep residual learning for image recognition", CVPR 2016 (arXiv 1512.03385).
    """

    kind: Literal["residual"] = "residual"
    layers: list[AnyModule] = Field(min_length=1)
    shortcut: list[AnyModule] = Field(default_factory=list)
    activation: Literal["relu", "none"] = "relu"

    @model_validator(mode="before")
    @classmethod
    def _number_the_nameless(cls, data: Any) -> Any:
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
