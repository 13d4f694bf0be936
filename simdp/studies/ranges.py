"""Ranges as they are written on the command line: of sizes, and of world sizes."""

from __future__ import annotations

from simdp.errors import ScenarioError, UnitError
from simdp.results.nccl_tests import MAX_NBYTES
from simdp.units import format_quantity, parse

MAX_WORLD_SIZE = 2**20
"""The most ranks of a cluster."""


def parse_sizes(text: str) -> list[int]:
    """Read sizes: ``"25 MB"``, ``"1KiB:1GiB"`` by doubling, or ``"1KiB:1GiB:4"``.

    Parameters
    ----------
    text : str
        One size, or the first, the last, and the factor from one to the next.

    Returns
    -------
    list of int
        Sizes [bytes], the last one only if the factor hits it.

    Raises
    ------
    ScenarioError
        If a size has no unit or is none, or the range is reversed.
    """
    parts = text.split(":")
    if len(parts) > 3 or "," in text:
        raise _wrong_size(text, "is not FIRST:LAST:FACTOR; write for example 1KiB:1GiB:2.")
    first, last = _size(text, parts[0]), _size(text, parts[min(1, len(parts) - 1)])
    if last < first:
        raise _wrong_size(
            text, f"is reversed; write {parts[1].strip()}:{parts[0].strip()} for rising sizes."
        )
    factor = parts[2].strip() if len(parts) == 3 else "2"
    if not (factor.isascii() and factor.isdecimal()) or int(factor) < 2:
        raise _wrong_size(text, f"has the factor {factor!r}; give a whole number of 2 or more.")
    sizes = [first]
    while sizes[-1] * int(factor) <= last:
        sizes.append(sizes[-1] * int(factor))
    return sizes


def _size(whole: str, text: str) -> int:
    try:
        value = parse(text.strip(), "data size")
    except UnitError as error:
        raise _wrong_size(whole, str(error)) from None
    if not 1 <= value <= MAX_NBYTES:
        most = format_quantity(MAX_NBYTES, "data size")
        raise _wrong_size(whole, f"{text.strip()} is out of range; give 1 B ... {most}.")
    if value != int(value):
        raise _wrong_size(whole, f"{text.strip()} is not a whole number of bytes; round it.")
    return int(value)


def _wrong_size(text: str, why: str) -> ScenarioError:
    return ScenarioError([f"--sizes {text}: {why}"])


def parse_world_sizes(text: str) -> list[int]:
    """Read world sizes: ``"8"``, ``"2,4,8"``, or ``"2:64"`` by doubling.

    Returns
    -------
    list of int
        Rising; the end of a range only if doubling hits it.

    Raises
    ------
    ScenarioError
        If they are no whole numbers from 1 on, or do not rise.
    """
    doubling = ":" in text
    try:
        values = [int(part) for part in text.split(":" if doubling else ",")]
    except ValueError:
        values = []
    if not values or (doubling and len(values) != 2):
        raise _wrong_world_size(text, "is not 8, 2,4,8 or 2:64.")
    for value in values:
        if not 1 <= value <= MAX_WORLD_SIZE:
            raise _wrong_world_size(text, f"{value} is out of range; give 1 ... {MAX_WORLD_SIZE}.")
    if values != sorted(values) or len({*values}) < len(values):
        raise _wrong_world_size(text, "does not rise; write each once, the smallest first.")
    if not doubling:
        return values
    first, last = values
    return [first << k for k in range((last // first).bit_length())]


def _wrong_world_size(text: str, why: str) -> ScenarioError:
    return ScenarioError([f"--world-size {text}: {why}"])


def parse_counts(option: str, text: str) -> list[int]:
    """Read whole numbers of 1 or more: ``"1,2,8"``.

    Parameters
    ----------
    option : str
        Where they stand, for messages.
    text : str
        What was typed.

    Raises
    ------
    ScenarioError
        If one of them is none.
    """
    counts = [part.strip() for part in text.split(",")]
    wrong = [part for part in counts if not (part.isascii() and part.isdecimal() and int(part))]
    if wrong:
        raise ScenarioError(
            [f"{option} {text}: {wrong[0]!r} is no whole number of 1 or more; write 1,2,8."]
        )
    return [int(part) for part in counts]
