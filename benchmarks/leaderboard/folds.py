"""Folds: which points an entrant may see when it is asked for which others.

``calibrated``
    All points of a cluster that nothing was fitted to, by those of role calibration.
``model``, ``kind``, ``nodes``, ``collective``
    All points of a model, of a kind of models, on a number of nodes, or of a collective, of a
    cluster that has several of them.
``cluster``
    All points of a site, where machines may share one.

What does not lie in the fold may be seen if its role is calibration, or if it is a size of a table
that no constant was fitted to (but not under ``calibrated``); of the same site only the cluster's
own. What one device takes is given (``micro_step_s``), and so are the points that it, or what
kernels reach on a device, was found from, of role ``given``, which nobody is asked for. These are
the rules by which ``python -m simdp validate`` and its ``--leave-out`` fit simdp's own constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.leaderboard.points import Point, question, settings
from simdp.studies.validate.folds import LABELS

RULES = ("calibrated", "model", "kind", "nodes", "collective", "cluster")

TITLES = {
    "calibrated": "nothing left out: the points that no constant was fitted to",
    "model": "a model left out",
    "kind": "a kind of models left out",
    "nodes": "a number of nodes left out",
    "collective": "a collective left out",
    "cluster": "a cluster left out, with its site",
}


class Asked(NamedTuple):
    """All that an entrant is told.

    Attributes
    ----------
    rule, fold : str
        Which.
    shown : tuple of Point
        With ``measured_s`` and ``role``.
    questions : tuple of Point
        Without.
    """

    rule: str
    fold: str
    shown: tuple[Point, ...]
    questions: tuple[Point, ...]


class Fold(NamedTuple):
    """What is left out together, and what may be seen."""

    rule: str
    name: str
    shown: tuple[Point, ...]
    left_out: tuple[Point, ...]

    def asked(self) -> Asked:
        """What an entrant is told; nothing of it has the settings of what it is asked.

        Raises
        ------
        ValueError
            If an entrant would be shown what it is asked.
        """
        for point in alike(self.shown, self.left_out):
            raise ValueError(f"fold {self.name}: shows {point['id']}, which it asks for.")
        questions = tuple(question(point) for point in self.left_out)
        return Asked(self.rule, self.name, self.shown, questions)


UNITS: dict[str, Callable[[Point], Any]] = {
    "model": lambda point: point.get("model"),
    "kind": lambda point: point.get("family"),
    "nodes": lambda point: point["nodes"],
    "collective": lambda point: point.get("collective"),
}
"""What of a point is left out; None where it has nothing of the kind."""


def folds(points: Sequence[Point], rule: str) -> list[Fold]:
    """Cut the points by a rule."""
    groups: dict[Any, list[Point]] = {}
    for point in points:
        groups.setdefault(_group(point, rule), []).append(point)
    names = {point["cluster"] for point in points}
    several = {
        name for name in names if sum(cluster == name for cluster, what in groups if what) > 1
    }
    made = []
    for (where, what), group in groups.items():
        if rule in UNITS and (what is None or where not in several):
            continue
        left_out = tuple(point for point in group if _is_asked(point, rule))
        if left_out:
            name = where if what is None else f"{_said(rule, what)} on {where}"
            made.append(Fold(rule, name, _shown(points, group, left_out, rule), left_out))
    return made


def _group(point: Point, rule: str) -> tuple[str, Any]:
    if rule == "cluster":
        return point["site"], None
    return point["cluster"], UNITS[rule](point) if rule in UNITS else None


def _said(rule: str, what: Any) -> str:
    return LABELS[rule](what)


def _is_asked(point: Point, rule: str) -> bool:
    return point["role"] != "given" and (rule != "calibrated" or point["role"] == "predicted")


def _shown(
    points: Iterable[Point], group: Sequence[Point], left_out: Sequence[Point], rule: str
) -> tuple[Point, ...]:
    inside = {point["id"] for point in group} if rule != "calibrated" else set()
    clusters = {point["cluster"] for point in group}
    sites = {point["site"] for point in group}
    seen = [
        point
        for point in points
        if (point["cluster"] in clusters or point["site"] not in sites)
        and (point["role"] == "given" or (point["id"] not in inside and may_be_seen(point, rule)))
    ]
    leaks = {point["id"] for point in alike(seen, left_out)}
    return tuple(point for point in seen if point["id"] not in leaks)


def alike(shown: Iterable[Point], left_out: Sequence[Point]) -> Iterator[Point]:
    """Points that have the settings of one that is left out, their cluster among them."""
    clusters = {point["cluster"] for point in left_out}
    secret = {settings(point) for point in left_out}
    for point in shown:
        if point["cluster"] in clusters and settings(point) in secret:
            yield point


def may_be_seen(point: Point, rule: str) -> bool:
    """Whether a point that is not left out may be shown."""
    open_table = point["kind"] == "collective" and not point["fitted"] and rule != "calibrated"
    return point["role"] == "calibration" or open_table
