"""Selects the modules that are units of a fully sharded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator

from simdp.errors import shown
from simdp.spec import problem
from simdp.workload import Workload
from simdp.workload.layers.base import ModelGraph

SHOWN = 8
"""Modules that a message lists."""

WORDS = ("blocks", "torchtitan", "whole")


def _word_or_names(value: object) -> object:
    if value in WORDS or isinstance(value, list | tuple):
        return value
    raise problem(
        f"{shown(value)} is not allowed; write {', '.join(WORDS)} or a list of modules' names."
    )


Units = Annotated[
    Literal["blocks", "torchtitan", "whole"] | tuple[str, ...], BeforeValidator(_word_or_names)
]


def names_of(graph: ModelGraph, units: Units) -> tuple[str, ...]:
    """Return names of the modules that are units, without the root."""
    if isinstance(units, tuple):
        paths = list(dict.fromkeys(_paths(graph)))
        return tuple(name for pattern in units for name in _matching(pattern, paths))
    return () if units == "whole" else tuple(block.name for block in graph.blocks)


def _paths(graph: ModelGraph) -> Iterator[str]:
    """Yield names of all modules with parameters."""
    for parameter in graph.parameters:
        parts = parameter.name.split(".")[:-1]
        yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def _matching(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return modules that match a pattern, part by part; a plain name is returned unchecked."""
    if not set(pattern) & set("*?["):
        return [pattern]
    parts = pattern.split(".")
    candidates = [path for path in paths if path.count(".") == pattern.count(".")]
    return [
        path
        for path in candidates
        if all(fnmatchcase(name, part) for name, part in zip(path.split("."), parts, strict=True))
    ]


class UnitModules(NamedTuple):
    """Modules that form a unit."""

    label: str  # names of the modules
    parameters: tuple[str, ...]  # that belong to no other unit
    first: int  # first call that uses it in forward, -1 if unused
    last: int  # and last
    stays: bool = False  # whether backward needs it before all others


def chosen(graph: ModelGraph, units: Units) -> list[UnitModules]:
    """Return the units of a model, the root first.

    torchtitan makes one unit of the layers before all blocks and one of those behind; a parameter
    used on both sides, such as a tied embedding, keeps both in the root.
    """
    root, *blocks = graph.modules(names_of(graph, units))
    users = _users(graph)
    inner = [
        UnitModules(b.name, b.parameters, b.calls[0], b.calls[-1])
        if any(users.get(name) for name in b.parameters)
        else UnitModules(b.name, b.parameters, -1, -1)
        for b in blocks
    ]
    outside = {name: users[name] for name in root.parameters if name in users}
    if units == "torchtitan" and blocks and len(outside) == len(root.parameters):
        begin = min(module.first for module in inner if module.last >= 0)
        before = [name for name, used in outside.items() if used[-1] < begin]
        behind = [name for name, used in outside.items() if used[0] > begin]
        if len(before) + len(behind) == len(outside):
            inner = [*_around(graph, outside, before, False), *inner]
            inner += _around(graph, outside, behind, True)
            return [UnitModules("root", (), -1, -1, True), *inner]
    last = len(graph.calls) - 1 if outside else -1
    return [UnitModules("root", root.parameters, min(last, 0), last, True), *inner]


def _around(
    graph: ModelGraph, users: Mapping[str, Sequence[int]], names: Sequence[str], stays: bool
) -> list[UnitModules]:
    """Return a unit of the parameters used before or behind all blocks, unless there are none."""
    if not names:
        return []
    calls = sorted({call for name in names for call in users[name]})
    label = ", ".join(dict.fromkeys(graph.calls[call].layer.name for call in calls))
    return [UnitModules(label, tuple(names), calls[0], calls[-1], stays)]


def _users(graph: ModelGraph) -> dict[str, list[int]]:
    """Return the calls that use each parameter, in order."""
    users: dict[str, list[int]] = {}
    for number, call in enumerate(graph.calls):
        for parameter in call.layer.parameters():
            users.setdefault(parameter.name, []).append(number)
    return users


def unknown_unit(units: Units, workload: Workload) -> str | None:
    """Refuse a name that matches no module with parameters of its own; or None."""
    graph = workload.graph
    for prefix in units if isinstance(units, tuple) else ():
        names = names_of(graph, (prefix,))
        blocks = {block.name: block for block in graph.modules(names_of(graph, units))}
        if not any(blocks[name].parameters for name in names):
            known = [block.name for block in graph.blocks]
            listed = ", ".join(known[:SHOWN]) + (" ..." if len(known) > SHOWN else "")
            return (
                f"units: no module {prefix!r} has parameters of its own; "
                + (f"the model's blocks: {listed}. " if known else "the model has no blocks. ")
                + "Name modules, or write units: blocks or units: whole."
            )
    return None
