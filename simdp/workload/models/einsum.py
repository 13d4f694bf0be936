"""One einsum: the smallest model whose weight gradient sums over the batch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, field_validator, model_validator

from simdp.errors import shown, unknown_name
from simdp.spec import problem
from simdp.workload.graph import Graph, GraphBuilder
from simdp.workload.layers.base import Shape
from simdp.workload.layers.einsum import Einsum, split_equation
from simdp.workload.models.base import Model


class EinsumModel(Model):
    """``{kind: einsum, equation: "bd,df->bf", d: 2048, f: 1024}``: a size for every index.

    The first index is the sample's and has no size. The parameter is called ``weight``.

    Attributes
    ----------
    equation : str
        The input's indices, the weight's and the output's.
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

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_words(cls, data: Any) -> Any:
        """Indices are single letters; anything longer is a key that was meant otherwise."""
        words = [key for key in data if key not in ("kind", "equation") and len(str(key)) > 1]
        if isinstance(data, dict) and words:
            raise problem(unknown_name("key", words[0], ["equation"]))
        return data

    @field_validator("equation")
    @classmethod
    def _parses(cls, value: str) -> str:
        try:
            split_equation(value)
        except ValueError as error:
            raise problem(f"{shown(value)} cannot be trained on: {error}.") from None
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
        extra: dict[str, Any] = dict(self.model_extra or {})
        return extra

    def build(self) -> Graph:
        graph = GraphBuilder("x")
        einsum = Einsum(name="einsum", equation=self.equation, sizes=self.sizes())
        return graph.build(graph.call(einsum, graph.input("x")))

    def input_shapes(self) -> dict[str, Shape | None]:
        x, _, _ = split_equation(self.equation)
        return {"x": tuple(self.sizes()[index] for index in x[1:])}
