"""Writes each of pydantic's errors in one line: path, given value, allowed values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.errors import PRECISIONS, close_names, either, full_dtype, shown


class Problem(NamedTuple):
    """One thing that is wrong with a value.

    Attributes
    ----------
    place : tuple of str
        The keys that lead to it.
    line : str
        Place, given value, allowed values.
    unknown : str or None
        The unknown key at that place, if that is the problem.
    """

    place: tuple[str, ...]
    line: str
    unknown: str | None = None


def problems(error: ValidationError, raw: object) -> list[Problem]:
    """Format each of pydantic's errors in one line: place, given value, allowed values.

    Parameters
    ----------
    error : pydantic.ValidationError
        Exception of the validation.
    raw : object
        The validated value; it distinguishes a key from the tag of a union.

    Returns
    -------
    list of Problem
        With lines such as ``"cluster.link.bandwidth: 25 has no unit; write ..."``.
    """
    listed = []
    for found in error.errors():
        place = _place(found["loc"], raw)
        line = f"{'.'.join(place)}: {say(found)}" if place else say(found)
        unknown = str(found["input"]) if found["type"] == "unknown_key" else None
        listed.append(Problem(place, line, unknown))
    return listed


def _place(location: Sequence[int | str], raw: object) -> tuple[str, ...]:
    """Follow a location, leaving out the tags that a union adds to it."""
    parts: list[str] = []
    here = raw
    for step in location:
        if isinstance(here, Mapping):
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        elif here == step or not re.fullmatch(r"\w+", str(step)):
            continue
        parts.append(str(step))
    return tuple(parts)


_PHRASES = {
    "missing": "is required but was not given; add it.",
    **dict.fromkeys(
        ["int_type", "int_parsing", "int_from_float"], "{given} is not a whole number."
    ),
    **dict.fromkeys(["float_type", "float_parsing"], "{given} is not a number."),
    "finite_number": "{given} is not a finite number.",
    **dict.fromkeys(["bool_type", "bool_parsing"], "{given} is not true or false."),
    "string_type": "{given} is not a text.",
    **dict.fromkeys(["list_type", "tuple_type"], "{given} is not a list."),
    "dict_type": "{given} is not a mapping of keys to values.",
    "model_type": "{given} is not a mapping of keys to values.",
    "model_attributes_type": "{given} is not a mapping of keys to values.",
    "greater_than": "{given} is out of range; it must be > {gt}.",
    "greater_than_equal": "{given} is out of range; it must be >= {ge}.",
    "less_than": "{given} is out of range; it must be < {lt}.",
    "less_than_equal": "{given} is out of range; it must be <= {le}.",
    "too_short": "{given} has too few entries; it needs at least {min_length}.",
}


_MISSING = {
    "dataset": "is required but was not given; add one, or write numerics: false at the top of "
    "the file, for times alone."
}
"""Keys that another one makes superfluous."""


def say(found: Any) -> str:
    """Phrase one of pydantic's errors."""
    context = dict(found.get("ctx") or {})
    if "message" in context:
        return str(context["message"])
    given = shown(found["input"])
    phrase = _PHRASES.get(found["type"])
    if found["type"] == "missing":
        phrase = _MISSING.get(found["loc"][-1], phrase)
    if found["type"] == "literal_error":
        return _not_allowed(found["input"], str(context["expected"]), found["loc"])
    if phrase is None:
        return f"{given}: {found['msg']}."
    return phrase.format_map({**context, "given": given})


def _not_allowed(value: object, expected: str, place: Sequence[int | str]) -> str:
    """Refuse a value that is none of a few, with the one that was probably meant."""
    known = re.findall(r"'([^']*)'", expected)
    dtype, close = full_dtype(str(value)), close_names(str(value), known)
    hint = either(map(repr, close))
    if place[-1:] == ("dtype",) and dtype in PRECISIONS and dtype not in known:
        hint = f"precision: {PRECISIONS[dtype]}"
    listed = f". Did you mean {hint}? Known: " if hint else "; known: "
    return f"{shown(value)} is not allowed{listed}{expected}."
