"""TextModel: base of the models that take tokens x, each at one of a fixed number of places."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field, model_validator

from simdp.spec import Float, Int, problem
from simdp.workload.layers import Parameter
from simdp.workload.layers.base import Shape
from simdp.workload.layers.parameter import Initial, constant
from simdp.workload.models.base import Model
from simdp.workload.models.file_names import FileNames


class TextModel(Model):
    """Weights start as transformers': normal, biases at 0, norms at 1.

    Attributes
    ----------
    vocab_size : int
        How many different tokens there are.
    initializer_range : float
        Standard deviation of the weights at the start.
    sequence_length : int or None
        Tokens of a sample; by default those of the data, or `usual_length` of them.
    """

    file_names: ClassVar[FileNames] = FileNames(
        ignored=(r"^lm_head\.weight$", r"rotary_emb\.inv_freq$", r"\.attention\.(masked_)?bias$")
    )

    trunk: ClassVar[str] = ""
    """Leads the names of parameters that transformers fills before it constructs the head."""

    vocab_size: Int = Field(ge=1, le=10**9)
    initializer_range: Float = Field(0.02, ge=0)
    sequence_length: Int | None = Field(None, ge=1, le=10**8)

    @property
    @abstractmethod
    def num_places(self) -> int:
        """Tokens of the longest sample that the position embedding knows."""

    @property
    @abstractmethod
    def usual_length(self) -> int:
        """Tokens of a sample where neither the model nor the data say."""

    @model_validator(mode="after")
    def _places_suffice(self) -> Self:
        if (self.sequence_length or 0) > self.num_places:
            raise problem(
                f"sequence_length: {self.sequence_length} tokens are more than the "
                f"{self.num_places} places that the model knows; shorten it or give more places."
            )
        return self

    def std_of(self, name: str) -> float:
        """Standard deviation of a weight at the start; by default the same for all."""
        return self.initializer_range

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 2:
            return replace(parameter.initial, kind="normal", size=self.std_of(parameter.name))
        return constant(0.0) if parameter.name.endswith("bias") else parameter.initial

    def in_trunk(self, name: str) -> bool:
        return name.startswith(self.trunk)

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.sequence_length or self.usual_length,)}

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        if self.sequence_length is not None or len(shapes.get("x", ())) != 1:
            return self
        return self.model_copy(update={"sequence_length": shapes["x"][0]})

    def num_tokens(self, name: str) -> int | None:
        return self.vocab_size
