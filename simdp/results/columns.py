"""Columns: many points as one table of plain values, a row for each, for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simdp.errors import ScenarioError
from simdp.results.metrics import ORDER

Columns = dict[str, list[Any]]
"""Values by column, as many in each; None where one does not apply."""

LARGEST = ("bytes_sent_per_rank", "peak_memory_bytes")
"""Lists over ranks, of which a row has the largest value."""

LAST = ("loss", "lr", "grad_norm", "loss_scale")
"""Lists over steps, of which a row has the last value, as ``last_loss``."""

FAILED = "failed"
"""The column of why a point has no result."""


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Lay rows out in columns, each of one type; ``failed`` comes last.

    Parameters
    ----------
    rows : iterable of mapping
        What a point sets, by dotted key, and its figures, as from `figures_of`; columns are in the
        order in which they come up.
    """
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row if name != FAILED)
    found = {name: _of_one_type([row.get(name) for row in listed]) for name in names}
    return found | {FAILED: [row.get(FAILED) for row in listed]}


def figures_of(
    metrics: Mapping[str, Any], cost: Mapping[str, Any] | None, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Figures of a point by name: what is inside others has a dotted one, lists have one value.

    Parameters
    ----------
    metrics, cost, target : mapping
        As of a `Result`.
    """
    found: dict[str, Any] = {}
    for name in ORDER:
        value = metrics.get(name)
        if isinstance(value, list):
            if name in LARGEST:
                found[name] = max(value, default=None)
            elif name in LAST:
                found[f"last_{name}"] = value[-1] if value else None
        elif value is not None:
            found |= dict(_flat(name, value))
    return found | dict(_flat("cost", cost or {})) | dict(_flat("target", target or {}))


def as_dataframe(columns: Columns) -> Any:
    """Columns as a pandas DataFrame.

    Raises
    ------
    ScenarioError
        If pandas is missing.
    """
    try:
        import pandas  # an extra
    except ImportError:
        raise ScenarioError(
            ["to_dataframe: needs pandas; pip install 'simdp[table]', or use columns()."]
        ) from None
    return pandas.DataFrame(columns)


def _flat(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif not isinstance(value, list):
        yield name, value


def _of_one_type(values: Sequence[Any]) -> list[Any]:
    """Values as they are, where one type holds all of them; else as text, as JSON has it."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        return list(values)
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if isinstance(value, str | None) else json.dumps(value) for value in values]
