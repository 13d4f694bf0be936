"""Matching: which point of one result is which of the other's, by what they set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simdp.errors import ScenarioError
from simdp.results.comparison import written
from simdp.scenario.overrides import Raw
from simdp.studies.compare_results.sides import Given

Pairs = list[tuple[int, int]]
"""Numbers of points of A and of B."""

MAX_NAMED = 3
"""Points that a message names."""


def matched(a: Given, b: Given) -> Pairs:
    """Find the points that set the same, in A's order.

    Two single runs match whatever they set. Where the two sweep different keys, a point has for a
    key of the other what its scenario says.

    Raises
    ------
    ScenarioError
        If there are none.
    """
    if len(a.results) == len(b.results) == 1:
        return [(0, 0)]
    sweeps = [given.results[0].set.keys() for given in (a, b)]
    found: Pairs = []
    if sweeps[0] == sweeps[1]:
        found = _same([r.set for r in a.results], [r.set for r in b.results])
    if not found:
        keys = list(dict.fromkeys([*sweeps[0], *sweeps[1]]))
        found = _same(_values(a, keys), _values(b, keys))
    if not found:
        raise ScenarioError(
            [
                f"{a.name} and {b.name}: have no point in common: {_said(a)}, and {_said(b)}; "
                "compare results with a point that sets the same in both."
            ]
        )
    return found


def beside_traces(result: Given, traces: Given) -> tuple[int, list[str]]:
    """Choose the point that a real run is held against: that with as many ranks.

    Returns
    -------
    int, list of str
        Its number, and what is odd about it.

    Raises
    ------
    ScenarioError
        If none or several have as many.
    """
    world, sizes = traces.side.world_size, [point.world_size for point in result.results]
    alike = [number for number, size in enumerate(sizes) if size == world]
    if len(alike) == 1:
        return alike[0], []
    if len(sizes) == 1:
        return 0, [f"{result.name} has {sizes[0]} ranks, and {traces.name} {world}."]
    how = f"has {len(alike)} points" if alike else "has no point"
    raise ScenarioError(
        [
            f"{result.name}: {how} of {world} ranks, as many as {traces.name}: {_said(result)}; "
            "run the one point that it is to be held against."
        ]
    )


def _same(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> Pairs:
    there = {_key(values): number for number, values in reversed(list(enumerate(second)))}
    return [(n, there[_key(v)]) for n, v in enumerate(first) if _key(v) in there]


def _key(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _values(given: Given, keys: Sequence[str]) -> list[dict[str, Any]]:
    """What every point has for some keys, by its scenario with all defaults."""
    found = []
    for number in range(len(given.results)):
        point = given.point(number, given.base)
        found.append({key: value_of(point.raw, key) for key in keys})
    return found


def value_of(raw: Raw, key: str) -> Any:
    """What stands at a dotted key; None where nothing does. Of a kind without options the kind."""
    here: Any = raw
    for part in key.split("."):
        if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, dict):
            here = here.get(part)
        else:
            return None
    return here


def _said(given: Given) -> str:
    """The first points, in short."""
    each = [
        ", ".join(f"{key}={written(value)}" for key, value in point.set.items()) or "no sweep"
        for point in given.results
    ]
    more = f" and {len(each) - MAX_NAMED} more" if len(each) > MAX_NAMED else ""
    return f"{given.name} has {'; '.join(each[:MAX_NAMED])}{more}"
