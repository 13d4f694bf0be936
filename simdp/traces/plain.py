"""Plain values: what documents of others may hold, read with care."""

from __future__ import annotations

from typing import Any

FAR = 2**62
"""Beyond it no count, number or time lies."""


def text(value: Any, otherwise: str = "") -> str:
    """Take a text."""
    return value if isinstance(value, str) else otherwise


def number(value: Any) -> int | None:
    """Take a whole number; None for all else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and -FAR < value < FAR else None


def quantity(value: Any, unit: float) -> float | None:
    """Take a number that is not negative, in units of ``unit``; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < FAR:
        return None
    return value * unit


def mapping(value: Any) -> dict[Any, Any]:
    """Take a dictionary; an empty one for all else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any, limit: int = 2**20) -> list[Any]:
    """Take a list or a tuple, as far as a limit; an empty one for all else."""
    return list(value[:limit]) if isinstance(value, list | tuple) else []
