"""Keys: in which keys two scenarios with every default spelled out differ."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simdp.scenario.machines import MACHINE
from simdp.scenario.overrides import Raw

Place = tuple[str | int, ...]

NOT_A_CAUSE = ("name", "sweep", "measured")
"""Keys of which no figure depends."""

OF_THE_JOB = ("world_size", "ranks_per_device")
"""Keys of a cluster that no machine brings; some bring stragglers."""

AS_ONE = (("workload", "model"), ("workload", "compute"))
"""Mappings that are one key where more than one of theirs differs: what a name stood for."""


@dataclass(frozen=True)
class Leaf:
    """A place that differs; None where a scenario has nothing there."""

    place: Place
    a: Any
    b: Any


@dataclass(frozen=True)
class Differing:
    """One thing that was changed.

    Attributes
    ----------
    key : str
        Dotted.
    a, b : value
        What stands there.
    leaves : tuple of Leaf
        All places that go with it.
    """

    key: str
    a: Any
    b: Any
    leaves: tuple[Leaf, ...]


def differing(a: Raw, b: Raw) -> list[Differing]:
    """Say in what two resolved scenarios differ, in the order of the first.

    A kind or a name with other options is one key, and so is a machine with all that it brings.
    """
    leaves = [leaf for leaf in _walk(a, b, ()) if leaf.place[0] not in NOT_A_CAUSE]
    groups: dict[str, list[Leaf]] = {}
    machine_a, machine_b = ((raw.get("cluster") or {}).get("machine") for raw in (a, b))
    for leaf in leaves:
        place = leaf.place
        if machine_a != machine_b and _is_brought(place):
            place = tuple(MACHINE.split("."))
        place = next((one for one in AS_ONE if place[: len(one)] == one), place)
        groups.setdefault(".".join(map(str, place)), []).append(leaf)
    found = []
    for key, each in groups.items():
        place = tuple(key.split("."))
        if key == MACHINE:
            found.append(Differing(key, machine_a, machine_b, tuple(each)))
        elif len(each) == 1:
            (leaf,) = each
            found.append(Differing(".".join(map(str, leaf.place)), leaf.a, leaf.b, (leaf,)))
        else:
            parts = {leaf.place[len(place)] for leaf in each}
            before, after = (_only(_at(raw, place), parts) for raw in (a, b))
            found.append(Differing(key, before, after, tuple(each)))
    return found


def _is_brought(place: Place) -> bool:
    if place[0] == "cluster":
        return len(place) > 1 and place[1] not in OF_THE_JOB
    return place[:2] == ("collectives", "cost")


def _at(raw: Any, place: Place) -> Any:
    for part in place:
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw


def _only(value: Any, parts: set[str | int]) -> Any:
    """Of a mapping its kind, and what differs in it."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if key == "kind" or key in parts}


def _walk(a: Any, b: Any, place: Place) -> Iterator[Leaf]:
    if a == b:
        return
    if isinstance(a, dict) and isinstance(b, dict) and _are_alike(a, b, place):
        for key in dict.fromkeys([*a, *b]):
            yield from _walk(a.get(key), b.get(key), (*place, key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _walk(one, other, (*place, number))
    else:
        yield Leaf(place, a, b)


def _are_alike(a: Raw, b: Raw, place: Place) -> bool:
    """Whether two mappings are of one kind, so that it is their options that differ."""
    return not place or all(a.get(key) == b.get(key) for key in ("kind", "name"))


def with_b(raw: Raw, changed: Differing) -> Raw:
    """A's scenario with B's value of one key."""
    return _with(raw, [(leaf.place, leaf.b) for leaf in changed.leaves])


def with_a(raw: Raw, changed: Differing) -> Raw:
    """B's scenario with A's value of one key."""
    return _with(raw, [(leaf.place, leaf.a) for leaf in changed.leaves])


def _with(raw: Raw, values: list[tuple[Place, Any]]) -> Raw:
    made = copy.deepcopy(raw)
    for place, value in values:
        here: Any = made
        for part in place[:-1]:
            here = here[part]
        here[place[-1]] = copy.deepcopy(value)
    return made
