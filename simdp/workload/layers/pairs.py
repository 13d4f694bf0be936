"""Pairs: fields for height and width, which take one number for both."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from simdp.errors import shown
from simdp.spec import problem

Pair = tuple[int, int]
"""In the order height, width."""


class _PairOf:
    """A field that takes a whole number, for both axes, or a pair; or one of some words."""

    def __init__(self, minimum: int, *words: str) -> None:
        self.minimum, self.words = minimum, words

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
        pair = {"type": "array", "items": one, "minItems": 2, "maxItems": 2}
        return {"anyOf": [one, pair, *({"const": word} for word in self.words)]}

    def validate(self, value: Any) -> Any:
        """Make it a pair."""
        if isinstance(value, str) and value in self.words:
            return value
        pair = tuple(value) if isinstance(value, list | tuple) else (value, value)
        if len(pair) != 2 or any(type(n) is not int or n < self.minimum for n in pair):
            words = "".join(f", nor {word!r}" for word in self.words)
            raise problem(
                f"{shown(value)} is neither a whole number >= {self.minimum} nor a pair of them, "
                f"such as [{self.minimum + 1}, {self.minimum + 2}]{words}."
            )
        return pair


def _shortened(value: Any) -> Any:
    return value[0] if value[0] == value[1] else value


Size = Annotated[Pair, _PairOf(1)]
Margin = Annotated[Pair, _PairOf(0)]
Padding = Annotated[Pair | str, _PairOf(0, "same", "valid")]
