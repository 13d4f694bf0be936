"""Percent, the type of fields that hold a share: ``2 %`` in YAML, 0.02 inside."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from simdp.errors import UnitError
from simdp.spec import problem
from simdp.units import NUMBER_PATTERN, format_percent, parse_percent


def _share(text: object) -> float:
    try:
        return parse_percent(text)
    except UnitError as error:
        raise problem(str(error)) from None


Percent = Annotated[
    float,
    PlainValidator(_share),
    PlainSerializer(format_percent),
    WithJsonSchema(
        {"title": "share", "type": "string", "pattern": rf"^\s*{NUMBER_PATTERN}\s*%\s*$"}
    ),
]
