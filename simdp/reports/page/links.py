"""The section of the links: who sends how much over them, and how busy they are."""

from __future__ import annotations

from typing import Any

from simdp.reports.figures import nbytes, percent
from simdp.reports.page.sections import Cell, Graph, Section, Table
from simdp.results.result import Result

LEAD, BETWEEN = "the link from ", " to "


def links(result: Result) -> list[Section]:
    """Make the sections: a graph where the ends of all links are known, and a table."""
    listed: list[dict[str, Any]] = result.network.get("links") or []
    if not listed:
        return []
    said = _said(result, len(listed))
    return [*_graph(listed, said), _table(listed, said)]


def _said(result: Result, num_listed: int) -> str:
    count = result.network.get("num_links_used")
    if count is None:
        return "Links of a device and of a node, as NCCL's model loads them."
    if count <= num_listed:
        return f"All {count} links that are used."
    return f"The {num_listed} busiest of {count:,} links that are used."


def _graph(listed: list[dict[str, Any]], said: str) -> list[Graph]:
    ends = [_ends(str(one["link"])) for one in listed]
    if None in ends:
        return []
    known = [pair for pair in ends if pair is not None]
    nodes = sorted({end for pair in known for end in pair}, key=_natural)
    place = {name: number for number, name in enumerate(nodes)}
    edges = [
        (place[a], place[b], min(float(one["utilization"]), 1.0), _words(one))
        for (a, b), one in zip(known, listed, strict=True)
    ]
    return [Graph("Links by their load", nodes, edges, said=said)]


def _words(one: dict[str, Any]) -> str:
    name = str(one["link"]).removeprefix(LEAD)
    return f"{name}: {nbytes(one['nbytes'])} per step, {percent(one['utilization'])} of the time"


def _ends(name: str) -> tuple[str, str] | None:
    """Read both ends from a link's name; None of what has no two ends."""
    if not name.startswith(LEAD):
        return None
    start, found, end = name.removeprefix(LEAD).partition(BETWEEN)
    return (start, end) if found else None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order names with numbers in them as people do: rank 2 before rank 10."""
    words = name.split()
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


def _table(listed: list[dict[str, Any]], said: str) -> Table:
    rows = [
        (
            str(one["link"]).removeprefix(LEAD),
            Cell(nbytes(one["nbytes"]), float(one["nbytes"])),
            Cell(percent(one["utilization"]), float(one["utilization"])),
        )
        for one in listed
    ]
    return Table(
        "Links in figures",
        ("link", "sent per step", "busy"),
        rows,
        note=f"{said} Busy is the part of its bandwidth that a link's bytes take.",
        folded=True,
    )
