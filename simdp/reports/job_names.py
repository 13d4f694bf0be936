"""Names of the points of a job's sweep: what they set, without what does not tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simdp.results.comparison import short_key, written
from simdp.results.job import Job


def cells(points: Sequence[Job], key: str) -> list[str]:
    """The values of a key, of which options go that all values of one kind have alike."""
    values = [point.set[key] for point in points]
    return [written(_short(value, values)) for value in values]


def names(points: Sequence[Job]) -> list[str]:
    """What each point is called; empty names where there is one."""
    keys = list(points[0].set)
    columns = [cells(points, key) for key in keys]
    if len(keys) == 1 and isinstance(points[0].set[keys[0]], Mapping):
        return columns[0]
    lead = [short_key(key) for key in keys]
    rows = zip(*columns, strict=True) if keys else [()] * len(points)
    return [
        ", ".join(f"{key}: {value}" for key, value in zip(lead, row, strict=True)) for row in rows
    ]


def _short(value: Any, values: Sequence[Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    alike = [v for v in values if isinstance(v, Mapping) and v.get("kind") == value.get("kind")]
    return {
        key: of
        for key, of in value.items()
        if key == "kind" or any(other.get(key) != of for other in alike)
    }
