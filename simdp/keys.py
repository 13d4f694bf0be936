"""Dotted keys of scenarios: old names, which keep working with advice, and short forms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

# Old names ----------------------------------------------------------------------------------------

KEYS = {
    ("recovery", "up"): "rejoin",
    ("failures", "comeback"): "mean_downtime",
    ("levels", "survives"): "tolerates",
    ("host", "ahead"): "async_launch",
    ("stragglers", "lasting_part"): "persistent_variance",
}
"""Keys of scenarios that changed, by the key that holds them and their old name."""


class OldKeyWarning(FutureWarning):
    """A scenario, setting or machine file has a key under its old name."""


def old_keys(new: str) -> list[str]:
    """Old names of a key."""
    return [old for (_, old), name in KEYS.items() if name == new]


def advise_key(parent: str, old: str, new: str) -> None:
    """Warn that a key is old."""
    text = f"{parent}.{old} is now {parent}.{new}; the old key will be removed."
    warnings.warn(text, OldKeyWarning, stacklevel=1)


def current_key(key: str, advises: bool = True) -> str:
    """A dotted key with the current name of its last part; warns where that is another one."""
    *parents, last = key.split(".")
    words = [word for word in parents if not word.isdecimal()]
    new = KEYS.get((words[-1], last)) if words else None
    if new is None:
        return key
    if advises:
        advise_key(words[-1], last, new)
    return ".".join([*parents, new])


def with_current_keys(value: object, advises: bool = True, parent: str = "") -> Any:
    """Copy plain data, such as a sweep or a saved scenario, with current names of all keys.

    Parameters
    ----------
    value : object
        Mappings, whose keys may be dotted, lists and plain values.
    advises : bool
        Whether to warn of old keys.
    parent : str
        The key that holds it.

    Raises
    ------
    ValueError
        If a mapping has a key under both names.
    """
    if isinstance(value, list):
        return [with_current_keys(inner, advises, parent) for inner in value]
    if not isinstance(value, Mapping):
        return value
    renamed: dict[Any, Any] = {}
    for key, inner in value.items():
        dotted = f"{parent}.{key}" if parent else str(key)
        new = current_key(dotted, advises).removeprefix(f"{parent}.")
        if new != str(key) and new in value:
            raise ValueError(f"{key} and {new} are the same key; keep {new}.")
        words = [word for word in dotted.split(".") if not word.isdecimal()]
        renamed[new if isinstance(key, str) else key] = with_current_keys(
            inner, advises, words[-1] if words else parent
        )
    return renamed


# Short forms --------------------------------------------------------------------------------------

PLAIN_KEYS = ("strategy", "strategy.kind")  # keys whose values need no key in a label


def short_key(key: str) -> str:
    """Shorten a dotted key to a clear end: ``all_reduce``, ``stragglers.0``."""
    parts = key.removesuffix(".kind").split(".")
    return ".".join(parts[-2:]) if parts[-1].isdecimal() else parts[-1]


MAX_WRITTEN = 16  # entries of a list shown in a label


def written(value: object) -> str:
    """Format a value in short: ``{kind: fsdp, units: whole}`` is ``fsdp(units=whole)``."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, dict):
        rest = [f"{key}={written(inner)}" for key, inner in value.items() if key != "kind"]
        return str(value.get("kind", "")) + (f"({', '.join(rest)})" if rest else "")
    if isinstance(value, list):
        some = [written(inner) for inner in value[:MAX_WRITTEN]]
        if len(value) > MAX_WRITTEN:
            some.append(f"... ({len(value):,})")
        return "[" + ", ".join(some) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_settings(chosen: Mapping[str, object]) -> str:
    """Format all settings of a point: ``cluster.world_size=8, strategy=ddp``."""
    return ", ".join(f"{key}={written(value)}" for key, value in chosen.items())
