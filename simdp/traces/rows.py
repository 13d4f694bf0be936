"""Rows: whole numbers by columns, many of them, without a Python object each."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from simdp.arrays import Ints

BLOCK = 2**14
"""Rows that wait in lists before they become an array."""

FAR = 2**62
"""Numbers beyond it are none that a trace can mean."""

_NUMBER = re.compile(r"-?\d+$")


class Rows:
    """A table of whole numbers that grows.

    Parameters
    ----------
    *columns : str
        Their names.
    """

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self._waiting: list[tuple[int, ...]] = []
        self._blocks: list[Ints] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len + len(self._waiting)

    def add(self, row: tuple[int, ...]) -> None:
        """Add a row."""
        self._waiting.append(row)
        if len(self._waiting) >= BLOCK:
            self._pack()

    def _pack(self) -> None:
        self._blocks.append(np.array(self._waiting, dtype=np.int64))
        self._len += len(self._waiting)
        self._waiting.clear()

    def arrays(self) -> dict[str, Ints]:
        """Give each column; the rows are gone from here afterwards."""
        if self._waiting:
            self._pack()
        whole = np.concatenate(self._blocks) if self._blocks else np.empty((0, len(self.columns)))
        self._blocks.clear()
        self._len = 0
        return {
            name: np.ascontiguousarray(whole[:, i], dtype=np.int64)
            for i, name in enumerate(self.columns)
        }


class Names:
    """Texts by numbers, each kept once."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """Number of a text."""
        return self._codes.setdefault(name, len(self._codes))

    def listed(self) -> tuple[str, ...]:
        """All texts, by their numbers."""
        return tuple(self._codes)


class Places:
    """Threads and processes by numbers: their own, or below -1 where they have none."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def number(self, written: Any) -> int:
        """Number of a thread, ``13544``, ``"13544"`` or ``"stream 7"``."""
        if type(written) is int and -FAR < written < FAR:
            return written
        text = str(written)
        found = _NUMBER.search(text)
        if found and len(found[0]) < 18:
            return int(found[0])
        return self._codes.setdefault(text, -2 - len(self._codes))


def nanoseconds(written: Any) -> int:
    """Read an instant or a duration in microseconds, to the nanosecond.

    Raises
    ------
    ValueError
        If it is no number, or not finite, or beyond all clocks.
    """
    if type(written) is int:
        found = written * 1000
    elif type(written) is str:
        try:
            is_usual = written[-4:-3] == "."
            found = int(written[:-4] + written[-3:]) if is_usual else _decimal(written)
        except ValueError:
            found = _decimal(written)
    else:
        raise ValueError(f"no time: {written!r}")
    if not -FAR < found < FAR:
        raise ValueError(f"no time: {written!r}")
    return found


def _decimal(written: str) -> int:
    try:
        number = Decimal(written)
    except InvalidOperation:
        raise ValueError(f"no time: {written!r}") from None
    if not number.is_finite() or abs(number) > FAR:
        raise ValueError(f"no time: {written!r}")
    return round(number * 1000)


def whole(written: Any, otherwise: int = -1) -> int:
    """Read a whole number; ``otherwise`` stands for all else."""
    if type(written) is int:
        return written if -FAR < written < FAR else otherwise
    if type(written) is str:
        try:
            return int(_decimal(written) // 1000)
        except ValueError:
            return otherwise
    return otherwise
