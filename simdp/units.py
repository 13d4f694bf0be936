"""Quantities at the border: ``"25 GB/s"`` in YAML and on plots, plain SI floats inside.

Pint checks the dimensions, with a registry of just the units that a cluster needs: in Pint's own
registry a bit has no dimension, so that ``5 / s`` would pass for a bandwidth. Loading Pint takes as
long as simulating a step, so that the most common units are tabulated here.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any, NamedTuple

from simdp.errors import UnitError, shown

_DEFINITIONS = """
pico- = 1e-12 = p-
nano- = 1e-9 = n-
micro- = 1e-6 = µ- = μ- = u-
milli- = 1e-3 = m-
kilo- = 1e3 = k- = K-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
exa- = 1e18 = E-
kibi- = 2**10 = Ki-
mebi- = 2**20 = Mi-
gibi- = 2**30 = Gi-
tebi- = 2**40 = Ti-
second = [time] = s = sec
minute = 60 * second = min
hour = 3600 * second = h = hr
day = 86400 * second = d
week = 604800 * second
byte = [information] = B
bit = byte / 8 = b
flop = [computation] = FLOP
sample = [sample]
joule = [energy] = J
watt = joule / second = W
USD = [money]
"""

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.ASCII)
MAX_LENGTH = 100
"""Characters of a quantity."""

_UNIT = re.compile(r"[A-Za-zµμ]{1,12}(\s*/\s*[A-Za-zµμ]{1,12})?")


class Dimension(NamedTuple):
    """Dimension of a quantity: its SI unit, an example for messages, the units to print it in."""

    unit: str
    example: str
    printed: dict[str, float]


_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}

DIMENSIONS: dict[str, Dimension] = {
    "time": Dimension("s", "5 us", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    "data size": Dimension("B", "25 MiB", {**{f"{p}B": s for p, s in _SI.items()}, **_BINARY}),
    "bandwidth": Dimension("B/s", "25 GB/s", {f"{p}B/s": s for p, s in _SI.items()}),
    "compute rate": Dimension("FLOP/s", "19.5 TFLOP/s", {f"{p}FLOP/s": s for p, s in _SI.items()}),
    "number of operations": Dimension("FLOP", "20 MFLOP", {f"{p}FLOP": s for p, s in _SI.items()}),
    "throughput": Dimension("samples/s", "620 samples/s", {"samples/s": 1.0}),
    "power": Dimension("W", "700 W", {f"{p}W": s for p, s in _SI.items() if s < 1e9}),
    "price": Dimension("USD/s", "2.5 USD/h", {"USD/s": 1.0, "USD/h": 1 / 3600}),
    "money": Dimension("USD", "10000 USD", {"USD": 1.0}),
}


COMMON = {("Gbit/s", "B/s"): 1.25e8} | {
    (unit, dimension.unit): size
    for dimension in DIMENSIONS.values()
    for unit, size in dimension.printed.items()
}
"""What Pint answers for the units that are printed, and for network cards': factors to SI units."""


_PER_SECOND = re.compile(r"([kMGT]?)([bB])ps")
"""How network cards are often sold: bits, or bytes, per second."""


@cache
def _registry() -> Any:
    import pint

    registry: Any = pint.UnitRegistry(None)
    registry.load_definitions(_DEFINITIONS.strip().splitlines())
    return registry


@cache
def _scale(unit: str, si_unit: str) -> float | None:
    """Factor from ``unit`` to the SI unit, or None where the dimensions differ."""
    if (unit, si_unit) in COMMON:
        return COMMON[unit, si_unit]
    registry = _registry()
    try:
        given, wanted = registry.parse_units(unit), registry.parse_units(si_unit)
    except Exception as error:  # Pint raises many kinds for one cause: an unknown name
        raise LookupError(unit) from error
    if given.dimensionality != wanted.dimensionality:
        return None
    factor, _ = registry.get_base_units(given)
    base, _ = registry.get_base_units(wanted)
    return float(factor / base)


def parse(text: object, dimension: str, example: str | None = None) -> float:
    """Read a quantity with its unit.

    Parameters
    ----------
    text : object
        Text in the scenario, for example ``"25 GB/s"``.
    dimension : str
        A key of `DIMENSIONS`.
    example : str, optional
        For errors, in place of the dimension's: ``"320 ms"``.

    Returns
    -------
    float
        The value in SI units (s, byte, byte/s, FLOP/s, FLOP, samples/s, W), and in USD and USD/s.

    Raises
    ------
    UnitError
        If there is no unit, an unknown one, or one of another dimension.
    """
    wanted = DIMENSIONS[dimension]
    write = f'write for example "{example or wanted.example}"'
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise UnitError(f"{shown(text)} is not a {dimension}; {write}.")
    if isinstance(text, int | float):
        text = str(text)
    return _parsed(text, dimension, example)


@lru_cache(maxsize=4096)
def _parsed(text: str, dimension: str, example: str | None = None) -> float:
    wanted = DIMENSIONS[dimension]
    write = f'write for example "{example or wanted.example}"'
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise UnitError(f"{shown(text)} is not a number with a unit; {write}.")
    number, unit = match.groups()
    if not unit:
        if example is not None:
            write = f'write for example "{number} {example.split()[-1]}"'
        elif dimension == "time":
            write = f'write "{number} s", "{number} ms" or "{number} us"'
        raise UnitError(f"{text} has no unit; {write}.")
    try:
        if not _UNIT.fullmatch(unit):
            raise LookupError(unit)
        scale = _scale(unit, wanted.unit)
    except LookupError:
        per_second = _PER_SECOND.fullmatch(unit) if dimension == "bandwidth" else None
        if dimension == "data size" and re.fullmatch("[kKMGT]i?", unit):
            write = f'write "{number} {unit[0].upper()}iB" or "{number} {unit[0]}B"'
        if dimension == "time" and unit in ("m", "M"):
            write = f'write "{number} min" or "{number} ms"'
        if per_second is not None:
            prefix, of = per_second.groups()
            write = f'write "{number} {prefix}{"bit" if of == "b" else "B"}/s"'
        raise UnitError(f"{text!r} has an unknown unit {unit!r}; {write}.") from None
    if scale is None:
        raise UnitError(f"{text!r} is not a {dimension}; {write}.")
    value = float(number)
    # Multiply or divide by an integer where that is exact: 5 us is 5 / 1e6, not 5 * 1e-6.
    inverse = round(1 / scale) if scale < 1 else 0
    return value / inverse if inverse and abs(inverse * scale - 1) < 1e-9 else value * scale


def format_quantity(value: float, dimension: str) -> str:
    """Write a quantity with the unit that makes it shortest and still reads back exactly.

    Parameters
    ----------
    value : float
        The value in SI units.
    dimension : str
        A key of `DIMENSIONS`.

    Returns
    -------
    str
        For example ``"25 GB/s"``; `parse` gives back the same float.
    """
    return _shortest(repr(float(value)), dimension)


@lru_cache(maxsize=4096)
def _shortest(written: str, dimension: str) -> str:
    value = float(written)
    candidates = [f"{written} {DIMENSIONS[dimension].unit}"]
    for unit, scale in DIMENSIONS[dimension].printed.items():
        if abs(value / scale) <= 1e15:
            text = f"{value / scale:.12g} {unit}"
            if parse(text, dimension) == value:
                candidates.append(text)
    # Among the shortest, a number that does not begin with "0.".
    return min(candidates, key=lambda text: (len(text), text.startswith(("0.", "-0."))))


NUMBER_PATTERN = r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""A number of 0 or more, as a regular expression that JSON Schema knows as well."""

_NOT_ZERO = r"(?!\s*\+?[0.]+([eE]|[^0-9.eE]))"


def quantity_pattern(dimension: str, zero: bool = True) -> str:
    """Regular expression of the texts that `parse` accepts: a number of 0 or more, and a unit.

    Parameters
    ----------
    dimension : str
        A key of `DIMENSIONS`.
    zero : bool
        Whether 0 is allowed.
    """
    units = r"\s*/\s*".join(map(_spellings, DIMENSIONS[dimension].unit.split("/")))
    return rf"^{'' if zero else _NOT_ZERO}\s*{NUMBER_PATTERN}\s*{units}\s*$"


def _spellings(unit: str) -> str:
    """Everything that measures the same as a unit, with and without a prefix."""
    prefixes, names = list[str](), dict[str, str]()  # each name, and its unit
    for line in _DEFINITIONS.strip().splitlines():
        name, value, *others = line.split(" = ")
        base = next((names[word] for word in value.split() if word in names), name)
        if name.endswith("-"):
            prefixes += [spelled.removesuffix("-") for spelled in (name, *others)]
        else:
            names |= dict.fromkeys((name, *others), base)
    wanted = names.get(unit) or names[unit.removesuffix("s")]
    alike = [name for name, base in names.items() if base == wanted]
    plural = "|".join(f"{name}s?" for name in alike if len(name) > 1)
    return rf"({'|'.join(prefixes)})?({'|'.join([plural, *(n for n in alike if len(n) == 1)])})"


def parse_percent(text: object) -> float:
    """Read a share: ``"2 %"`` is 0.02.

    Raises
    ------
    UnitError
        If it is not a number with ``%``, of 0 or more.
    """
    match = None
    if isinstance(text, str) and len(text) <= MAX_LENGTH:
        match = _NUMBER.fullmatch(text)
    if match is None or match[2] != "%" or not 0 <= float(match[1]) < float("inf"):
        raise UnitError(f'{shown(text)} is not a share of 0 % or more; write for example "2 %".')
    return float(match[1]) / 100


def format_percent(share: float) -> str:
    """Write a share so that it reads back: 0.02 is ``"2 %"``."""
    short = f"{share * 100:.12g} %"
    return short if parse_percent(short) == share else f"{share * 100!r} %"
