"""Doubts: what is taken out of a scenario that is not valid, so that the rest can be judged."""

from __future__ import annotations

from typing import Any

from simdp.phrases import Problem


def follows(place: tuple[str, ...], doubts: list[tuple[str, ...]]) -> bool:
    """Whether a problem may come from what was taken out: there, around it, or a field of it."""
    return any(place[: len(doubt)] == doubt or place == doubt[:-1] for doubt in doubts)


def sure(doubts: list[tuple[str, ...]], *places: tuple[str, ...]) -> bool:
    """Whether nothing was taken out at these places, inside them or around them."""
    return not any(
        doubt[: len(place)] == place[: len(doubt)] for doubt in doubts for place in places
    )


def take_out(raw: dict[str, Any], found: Problem) -> tuple[str, ...] | None:
    """Remove what is wrong, and say where that was; an entry of a list takes the list along."""
    place = found.place if found.unknown is None else (*found.place, found.unknown)
    here: Any = raw
    inside, depth = None, 0
    for depth, part in enumerate(place, 1):  # noqa: B007  the depth reached counts
        inside, here = here, here.get(part)
        if not isinstance(here, dict):
            break
    if inside is None or inside.pop(place[depth - 1], None) is None:
        return None
    return place[:depth]
