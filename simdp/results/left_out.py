"""Left out: what was measured beside what constants predict that were fitted without it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import exp, log
from typing import Any

from simdp.results.validation import (
    CollectiveComparison,
    Comparison,
    StepComparison,
    Validation,
    summary,
)


@dataclass(frozen=True)
class Place:
    """What was left out for a point, and what it is beside that.

    Attributes
    ----------
    fold : str or None
        Which fold; None where nothing could be left out.
    counts : bool
        Whether it is predicted: a step that the workload was made to meet is not.
    fitted : float
        Time by the machine's own entry [s].
    """

    fold: str | None
    counts: bool
    fitted: float


@dataclass(frozen=True)
class Fold:
    """What the points of a fold say that were left out.

    Attributes
    ----------
    name : str
        What was left out, of which cluster.
    kind : {"steps", "collectives"}
        Of what.
    num_points : int
        Predicted ones, which alone count below.
    mean_error, worst_error : float
        Of the time, absolute.
    tau : float or None
        Kendall's rank correlation of steps; None for collectives, and where no pair differs.
    inside : float
        Share of the measured times inside their 90 % interval.
    width : float or None
        Factor from the prediction to an end of its interval, the geometric mean; None where an
        interval reaches 0.
    fit_error : float
        Mean error of the same points with the machine's own constants.
    large_error : float or None
        Of collectives of 64 MiB and more, the mean.
    """

    name: str
    kind: str
    num_points: int
    mean_error: float
    worst_error: float
    tau: float | None
    inside: float
    width: float | None
    fit_error: float
    large_error: float | None


@dataclass(frozen=True)
class Means:
    """Means over the folds of a kind; attributes as of `Fold`."""

    kind: str
    num_folds: int
    num_points: int
    mean_error: float
    inside: float
    width: float | None
    fit_error: float


@dataclass(frozen=True)
class LeftOut:
    """Everything that ``python -m simdp validate --leave-out`` found.

    Attributes
    ----------
    by : str
        What was left out: ``model``, ``nodes``, ``collective`` or ``cluster``.
    whole : Validation
        Of all points; those of a fold as they are predicted without it.
    of_points, of_rows : tuple of Place
        Beside its points and its rows.
    """

    by: str
    whole: Validation
    of_points: tuple[Place, ...]
    of_rows: tuple[Place, ...]

    @cached_property
    def validation(self) -> Validation:
        """Only what was left out and is predicted."""
        points = [p for p, at in zip(self.whole.points, self.of_points, strict=True) if _in(at)]
        rows = [row for row, at in zip(self.whole.rows, self.of_rows, strict=True) if _in(at)]
        clusters = {one.cluster for one in (*points, *rows)}
        return replace(
            self.whole,
            points=tuple(points),
            rows=tuple(rows),
            noise={name: noise for name, noise in self.whole.noise.items() if name in clusters},
            excluded=(),
        )

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """Steps first, then collectives, each in the order of the scenarios."""
        both = (
            ("steps", self.whole.points, self.of_points),
            ("collectives", self.whole.rows, self.of_rows),
        )
        found = []
        for kind, points, places in both:
            groups: dict[str, list[tuple[Comparison, Place]]] = {}
            for point, place in zip(points, places, strict=True):
                if place.fold is not None and place.counts:
                    groups.setdefault(place.fold, []).append((point, place))
            found += [self._fold(name, kind, group) for name, group in groups.items()]
        return tuple(found)

    def means(self) -> list[Means]:
        """Over the folds of steps, and over those of collectives, where there are any."""
        found = []
        for kind in ("steps", "collectives"):
            folds = [fold for fold in self.folds if fold.kind == kind]
            if folds:
                widths = [fold.width for fold in folds if fold.width is not None]
                found.append(
                    Means(
                        kind=kind,
                        num_folds=len(folds),
                        num_points=sum(fold.num_points for fold in folds),
                        mean_error=_mean([fold.mean_error for fold in folds]),
                        inside=_mean([fold.inside for fold in folds]),
                        width=exp(_mean([log(width) for width in widths])) if widths else None,
                        fit_error=_mean([fold.fit_error for fold in folds]),
                    )
                )
        return found

    def to_json(self) -> str:
        """Write validation.json."""
        whole = self.validation.plain()
        whole |= {
            "leave_out": self.by,
            "folds": [asdict(fold) for fold in self.folds],
            "means": [asdict(one) for one in self.means()],
            "points": _plain(self.whole.points, self.of_points),
            "collective_points": _plain(self.whole.rows, self.of_rows),
            "excluded": [asdict(one) for one in self.whole.excluded],
        }
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"

    def _fold(self, name: str, kind: str, group: Sequence[tuple[Comparison, Place]]) -> Fold:
        points = [point for point, _ in group]
        noise = max(self.whole.noise[point.cluster] for point in points)
        found = summary(name, points, noise)
        assert found.mean_error is not None
        assert found.worst_error is not None
        assert found.inside is not None
        fitted = [abs(place.fitted / point.measured - 1) for point, place in group]
        return Fold(
            name=name,
            kind=kind,
            num_points=found.num_predicted,
            mean_error=found.mean_error,
            worst_error=found.worst_error,
            tau=found.tau,
            inside=found.inside,
            width=_width(points),
            fit_error=_mean(fitted),
            large_error=found.large_error,
        )


def _in(place: Place) -> bool:
    return place.fold is not None and place.counts


def _width(points: Sequence[Comparison]) -> float | None:
    if any(point.low <= 0 or point.high <= 0 for point in points):
        return None
    return exp(_mean([log(point.high / point.low) / 2 for point in points]))


def _plain(
    points: Sequence[StepComparison] | Sequence[CollectiveComparison], places: Sequence[Place]
) -> list[dict[str, Any]]:
    return [
        {**point.plain(), "fold": place.fold, "fitted_s": place.fitted}
        for point, place in zip(points, places, strict=True)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
