"""Figures as they are written in tables: times, sizes, shares, and the names of a step's parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PARTS = {
    "compute_s": "compute",
    "update_s": "update",
    "exposed_comm_s": "exposed comm",
    "wait_s": "wait",
    "other_s": "other",
}
"""What a step's time is made of."""

SHORT = {"step_time_s": "step", **PARTS, "exposed_comm_s": "exposed"}
"""Heads of narrow columns."""

UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))

LONG_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))

WIDTH = 80
"""Columns of a terminal."""


def interval(ends: Sequence[float] | None, scale: float) -> str:
    """Write both ends of an interval of times, three digits each, in a unit of ``scale`` [s]."""
    return "-" if ends is None else "-".join(_three(end / scale) for end in ends)


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def seconds(value: float | None) -> str:
    """Write a time with three digits and the unit that suits it."""
    if value is None:
        return "-"
    unit, scale = unit_of([value])
    return f"{value / scale:.4g} {unit}" if value else "0"


def long_unit(seconds: float) -> tuple[str, float]:
    """The unit of a time of a job, from days to seconds, and how many seconds it is."""
    return next(((unit, s) for unit, s in LONG_UNITS if seconds >= 1.5 * s), LONG_UNITS[-1])


def long_time(seconds: float | None) -> str:
    """Write a time of a job with four digits and the unit that suits it."""
    if seconds is None:
        return "-"
    unit, scale = long_unit(seconds)
    return f"{seconds / scale:.4g} {unit}"


def nbytes(value: float) -> str:
    """Write a size with three digits and the unit that suits it."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def number(value: float | None, digits: str = ".4g") -> str:
    """Write a number; a dash for none."""
    return "-" if value is None else f"{value:{digits}}"


def short(value: float | None) -> str:
    """Write a large number in thousands or millions."""
    for letter, scale in (("M", 1e6), ("k", 1e3)):
        if value is not None and value >= scale:
            return f"{value / scale:.4g} {letter}"
    return number(value)


def percent(value: float | None) -> str:
    """Write a part of a whole."""
    return "-" if value is None else f"{100 * value:.1f} %"


def share(value: float, step_time: float) -> str:
    """Write the part of a step that something takes."""
    return percent(value / step_time) if step_time else "-"


def unit_of(values: Iterable[float]) -> tuple[str, float]:
    """Choose one unit for all times of a table, by the largest."""
    largest = max(values, default=0.0)
    return next((unit for unit in UNITS if largest >= unit[1]), UNITS[-1])


def digits_of(largest: float) -> str:
    """As many decimals for all numbers as give the largest four digits."""
    return f".{max(3 - len(str(int(largest))) + 1, 0)}f"


def speedup(value: float | None, first: float | None, is_best: bool = False) -> str:
    """Write how many times as many samples per second there are; a star at the best point."""
    if not value or not first:
        return "- "
    return f"{value / first:.3g}x{'*' if is_best else ' '}"


def consecutive(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Put numbers that follow each other together: the first and the last of each run."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
