"""Rate: how often a unit fails, as the literature writes it: ``6.5 per 1000 node-days``."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from simdp.errors import shown
from simdp.spec import PositiveSeconds, form_of, problem
from simdp.units import NUMBER_PATTERN

EXAMPLE = 'write for example "6.5 per 1000 node-days"'

_WRITTEN = re.compile(
    rf"\s*(?P<count>{NUMBER_PATTERN})\s+per\s+(?P<number>{NUMBER_PATTERN})?\s*"
    r"(?:(?P<unit>[a-z]+)-)?(?P<time>[a-z]+)\s*",
    re.ASCII,
)


class FailureRate(NamedTuple):
    """How often one unit fails.

    Attributes
    ----------
    text : str
        As it was written.
    per_second : float
        Failures of one unit [1/s].
    unit : str or None
        Of what, if that was written: ``"node"``.
    """

    text: str
    per_second: float
    unit: str | None


def parse_rate(given: object) -> FailureRate:
    """Read a rate; a number of failures alone, or over a number alone, is refused."""
    if isinstance(given, FailureRate):
        return given
    match = _WRITTEN.fullmatch(given) if isinstance(given, str) and len(given) <= 100 else None
    if match is None:
        raise problem(f"{shown(given)} is not a number of failures per time; {EXAMPLE}.")
    count = float(match["count"])
    seconds = form_of(PositiveSeconds).validate_python(f"{match['number'] or 1} {match['time']}")
    if not 0 < count < float("inf"):
        raise problem(f"{given} is out of range; it must be > 0 and finite.")
    return FailureRate(match[0].strip(), count / seconds, match["unit"])


Rate = Annotated[
    FailureRate,
    PlainValidator(parse_rate),
    PlainSerializer(lambda rate: rate.text, return_type=str),
    WithJsonSchema(
        {
            "title": "failures per time",
            "type": "string",
            "pattern": rf"^\s*{NUMBER_PATTERN}\s+per\s+({NUMBER_PATTERN})?\s*([a-z]+-)?[a-z]+\s*$",
        }
    ),
]
