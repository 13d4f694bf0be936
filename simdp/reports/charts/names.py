"""Names of points and of keys in charts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from simdp.keys import short_key, written

MAX_NAME = 40  # letters of the longest name; of a longer one the keys are cut, then the rest
MIN_KEY = 6  # least letters of a key


# axis labels of keys whose own name would be unclear or lacks its unit
KEY_NAMES = {
    "alpha": "Latency",
    "async_launch": "Asynchronous launch",
    "bucket_cap": "Bucket cap",
    "devices_per_node": "Node size [GPUs]",
    "global_batch": "Global batch [samples]",
    "grad_accum": "Gradient accumulation [micro-steps]",
    "links_per_node": "NICs per node",
    "local_steps": "Local steps [steps between averages]",
    "lr": "Learning rate",
    "microbatch": "Micro-batch [samples per GPU]",
    "world_size": "World size [GPUs]",
}


def key_label(key: str, scenario: Mapping[str, object]) -> str:
    """Write the axis label of a swept key: ``"World size [GPUs]"``, ``"Slowdown of rank 3 [x]"``.

    ``key`` is dotted; an entry of a list, such as a straggler, is named by its kind or rank.
    """
    *path, last = key.removesuffix(".kind").split(".")
    if last.isdecimal():
        return f"{_in_words(path[-1] if path else last)} {last}"
    if not (path and path[-1].isdecimal()):
        return KEY_NAMES.get(last, _in_words(last))
    entry: Any = scenario
    for part in path:
        place = int(part) if part.isdecimal() and isinstance(entry, list) else part
        try:
            entry = entry[place]
        except (KeyError, IndexError, TypeError):
            return f"{_in_words(last)} of {path[-2]} {path[-1]}"
    kind = entry.get("kind", "") if isinstance(entry, Mapping) else str(entry)
    rank = entry.get("rank") if isinstance(entry, Mapping) else None
    whose = f"rank {rank}" if rank is not None else str(kind).replace("_", " ")
    if last == "factor":
        return f"Slowdown of {whose} [x]"
    return f"{_in_words(last)} of {whose or f'{path[-2]} {path[-1]}'}"


def _in_words(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def wrapped(text: str, limit: int = MAX_NAME) -> str:
    """Wrap a long name, behind commas if possible; its lines stay."""
    if "\n" in text:
        return "\n".join(wrapped(line, limit) for line in text.split("\n"))
    lines = [""]
    for piece in text.replace(", ", ",\0").split("\0"):
        if lines[-1] and len(f"{lines[-1]} {piece}") > limit:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    return "\n".join(part for line in lines for part in textwrap.wrap(line, limit) or [line])


def evenly(count: int, limit: int) -> list[int]:
    """Choose at most ``limit`` of ``count`` positions evenly, with the first and the last."""
    if count <= limit:
        return list(range(count))
    if limit < 2:
        return list(range(limit))
    return [i * (count - 1) // (limit - 1) for i in range(limit)]


class Swept(Protocol):
    """A point of a sweep."""

    @property
    def set(self) -> dict[str, Any]:
        """Settings by key."""


def point_names(points: Sequence[Swept], leave_out: str = "", limit: int = MAX_NAME) -> list[str]:
    """Name points by the keys that differ: ``"all_reduce: ring"``.

    ``leave_out`` is a key that an axis shows. Names have at most ``limit`` letters.
    """
    keys = [
        key
        for key in (points[0].set if points else {})
        if key != leave_out and len({repr(point.set.get(key)) for point in points}) > 1
    ]
    return [
        _name([(short_key(key), written(point.set[key])) for key in keys], limit)
        for point in points
    ]


def _name(pairs: list[tuple[str, str]], limit: int) -> str:
    """Join keys and values, and cut the longest keys first, since values distinguish points.

    A single key is dropped if its value would be cut otherwise.
    """
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    while True:
        text = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
        longest = max(range(len(keys)), key=lambda i: len(keys[i]), default=0)
        if len(text) <= limit or len(keys[longest]) <= MIN_KEY:
            return cut(text if len(text) <= limit or len(values) > 1 else values[0], limit)
        keys[longest] = keys[longest].rstrip("…")[:-1] + "…"


def cut(text: str, limit: int = MAX_NAME) -> str:
    """Cut a name to a number of letters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def differ(values: Sequence[float], least: float, unknown: bool) -> bool:
    """Return whether finite values differ by a part of the largest; ``unknown`` if one is not."""
    array = np.array(values)
    if not np.isfinite(array).all():
        return unknown
    return bool(np.ptp(array) > least * np.abs(array).max())
