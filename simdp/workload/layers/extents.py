"""Extents: fields for one length of each axis of an image, which take one number for all."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from simdp.errors import shown
from simdp.spec import problem

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
