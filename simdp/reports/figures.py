"""Formats of values, and typed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import NamedTuple

UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
LONG_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
WIDTH = 80  # columns of a terminal
# units of long times, each with the least multiple that uses it
DURATIONS = (("days", 86400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0), ("s", 1.0, 1.0))
ENERGIES = (("GWh", 1e6), ("MWh", 1e3), ("kWh", 1.0), ("Wh", 1e-3), ("mWh", 1e-6))
SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class TableCell(str):
    """Text of a table's cell, with the value that sorts its column."""

    value: float | None  # in SI units; None: sort by the text
    number: float | None = None  # in the unit of the text

    def __new__(cls, text: str, value: float | None = None) -> TableCell:
        made = super().__new__(cls, text)
        made.value = value
        return made


def figure(
    value: float | None, digits: str = ".4g", unit: str = "", scale: float = 1.0
) -> TableCell:
    """Write a figure with its unit; its value is rounded as shown, None is a dash.

    ``digits`` is a format such as ``",.0f"``, ``unit`` follows the figure with its blank, and
    ``scale`` is the SI units in one of it.
    """
    if value is None:
        return TableCell("-")
    text = f"{value:{digits}}"
    made = TableCell(f"{text}{unit}")
    if isfinite(value):
        made.number = float(text.replace(",", ""))
        made.value = made.number * scale
    return made


def seconds(value: float | None) -> TableCell:
    """Write a time with four digits in a fitting unit."""
    if not value:
        return TableCell("-") if value is None else TableCell("0", 0.0)
    unit, scale = unit_of([value])
    return figure(value / scale, ".4g", f" {unit}", scale)


def signed_seconds(value: float, least: float) -> TableCell:
    """Write a time with its sign; 0 up to ``least``."""
    if abs(value) <= least:
        return TableCell("0", 0.0)
    unit, scale = unit_of([abs(value)])
    return figure(value / scale, "+.4g", f" {unit}", scale)


def long_unit(seconds: float) -> tuple[str, float]:
    """Choose the unit of a job's time, from days to seconds, and its seconds."""
    return next(((unit, s) for unit, s in LONG_UNITS if seconds >= 1.5 * s), LONG_UNITS[-1])


def long_time(seconds: float | None) -> TableCell:
    """Write a job's time with four digits in a fitting unit."""
    unit, scale = long_unit(seconds or 0.0)
    return figure(None if seconds is None else seconds / scale, ".4g", f" {unit}", scale)


def duration(value: float | None, like: float | None = None) -> TableCell:
    """Write a long or short time in a fitting unit, or in the unit of ``like``."""
    if value is None:
        return TableCell("-")
    large = value if like is None else like
    for unit, size, least in DURATIONS:
        if large >= least * size:
            return three_digits(value / size, f" {unit}", size)
    if not value:
        return TableCell("0", 0.0)
    scale, unit = (1e-3, "ms") if large >= 1e-3 else (1e-6, "us")
    return figure(value / scale, ".3g", f" {unit}", scale)


def three_digits(value: float | None, unit: str = "", scale: float = 1.0) -> TableCell:
    """Write three digits, or all before the point."""
    return figure(value, ",.0f" if value is not None and value >= 1000 else ".3g", unit, scale)


def money(value: float | None) -> TableCell:
    """Write US dollars with three digits."""
    return three_digits(value, " USD")


def energy(kwh: float | None) -> TableCell:
    """Write an energy with three digits in a fitting unit."""
    if kwh is None:
        return TableCell("-")
    unit, size = next((unit_size for unit_size in ENERGIES if kwh >= unit_size[1]), ENERGIES[-1])
    return figure(kwh / size, ".3g", f" {unit}", size)


def host_need(needed: float, there: float | None) -> str:
    """Write the host memory that a node needs for offloaded tensors, and has, both in bytes."""
    has = "" if there is None else f", {nbytes(there)} are there"
    return f"needs {about(needed)} of host memory{has}"


def about(value: float) -> TableCell:
    """Write a size with two digits."""
    return nbytes(float(f"{value:.2g}"))


def nbytes(value: float | None) -> TableCell:
    """Write a size with three digits in a fitting unit."""
    for unit, scale in SIZES:
        if value is not None and value >= scale:
            return figure(value / scale, ".3g", f" {unit}", scale)
    return figure(value, ".0f", " B")


def number(value: float | None, digits: str = ".4g") -> TableCell:
    """Write a number; a dash for None."""
    return figure(value, digits)


def large_number(value: float | None) -> TableCell:
    """Write four digits, or a large number with thousands separators."""
    return figure(value, ",.0f" if value is not None and value >= 1e4 else ".4g")


def short(value: float | None) -> TableCell:
    """Write a large number in thousands or millions."""
    for letter, scale in (("M", 1e6), ("k", 1e3)):
        if value is not None and value >= scale:
            return figure(value / scale, ".4g", f" {letter}", scale)
    return number(value)


def percent(value: float | None, digits: str = ".1f") -> TableCell:
    """Write a share in percent."""
    return figure(None if value is None else 100 * value, digits, " %", 0.01)


def share(value: float, step_time: float) -> TableCell:
    """Write a time's share of a step."""
    return percent(value / step_time if step_time else None)


def interval(ends: Sequence[float] | None, scale: float) -> TableCell:
    """Write both ends of an interval of times, three digits each, in a unit of ``scale`` [s]."""
    if ends is None:
        return TableCell("-")
    low, high = (figure(end / scale, ".0f" if end / scale >= 100 else "#.3g") for end in ends)
    return TableCell(f"{low}-{high}", low.value)


def speedup(value: float | None, first: float | None, is_best: bool = False) -> TableCell:
    """Write a throughput as a multiple of the first, with a star at the best point."""
    if not value or not first:
        return TableCell("- ")
    return figure(value / first, ".3g", f"x{'*' if is_best else ' '}")


def unit_of(
    values: Iterable[float], units: Sequence[tuple[str, float]] = UNITS
) -> tuple[str, float]:
    """Choose one unit for all times of a table, by the largest."""
    largest = max(values, default=0.0)
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def digits_of(largest: float) -> str:
    """Choose the decimals that give the largest number four digits."""
    return f".{max(3 - len(str(int(largest))) + 1, 0)}f"


def span(ranks: Sequence[int]) -> str:
    """Write neighbouring ranks: ``"3"``, ``"0-7"``."""
    return str(ranks[0]) if ranks[0] == ranks[-1] else f"{ranks[0]}-{ranks[-1]}"


def sentence(text: str, end: str = "") -> str:
    """Write a text with a capital letter."""
    return text[:1].upper() + text[1:] + end


def consecutive(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Merge consecutive numbers into runs of first and last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


# formats of values by unit
WRITERS: dict[str, Callable[[float | None], str]] = {
    "s": seconds,
    "bytes": nbytes,
    "USD": money,
    "kWh": energy,
    "share": percent,
    "per_s": large_number,
    "number": large_number,
    "": large_number,
}


class Row(NamedTuple):
    """A fact with a name, for the terminal and the page."""

    key: str  # identifies the row in code; never shown
    label: str  # leading blanks mark a part of the row above; empty continues that row
    value: float | str | None  # a figure, or text
    unit: str = ""  # of a figure; a key of `WRITERS`

    @property
    def text(self) -> str:
        """Write the value."""
        value = self.value
        return str(value) if isinstance(value, str) else WRITERS[self.unit](value)
