"""Scores: what entrants answered, held against what was measured, by rule and class of point."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from statistics import mean, median
from typing import Any

import simdp
from benchmarks.leaderboard.adapters import Adapter, AdapterError, Answer, checked
from benchmarks.leaderboard.folds import RULES, Fold, folds
from benchmarks.leaderboard.points import FAST, LARGE, SLOW, Point, Points, wires
from simdp.results.validation import TimeComparison, kendall_tau

FILE = Path(__file__).parent / "scores.json"

KINDS = ("steps", "collectives from 1 MiB", "smaller collectives")
CLASSES = (FAST, SLOW)
FIRST = "simdp"

Played = dict[str, tuple[Point, Answer | None]]
"""By id: the point, and what an entrant answered."""


@dataclass(frozen=True)
class Score:
    """Of an entrant, under a rule, on a class of points.

    Attributes
    ----------
    rule, kind, wires, name : str
        Under which rule, on what, over which wires, and whose.
    asked, answered : int
        Points.
    mean_error, median_error, worst_error : float
        Of the points that it answered, absolute, relative to the measured time.
    tau : float or None
        Kendall's rank correlation, the mean over clusters; of collectives over sizes of a cluster.
    inside : float or None
        Share of the measured times in its interval; None where it gives none.
    first_error : float or None
        Mean error of simdp on the points that this entrant answered.
    nearer : tuple of str
        Clusters where its mean error is below simdp's by more than the noise of the data.
    """

    rule: str
    kind: str
    wires: str
    name: str
    asked: int
    answered: int
    mean_error: float
    median_error: float
    worst_error: float
    tau: float | None
    inside: float | None
    first_error: float | None
    nearer: tuple[str, ...]


@dataclass(frozen=True)
class Entrant:
    """Who played; ``failure`` says why it has no scores, if it has none.

    ``failures`` has the reason under each rule where it failed.
    """

    name: str
    about: str
    missing: str
    failures: dict[str, str]


@dataclass(frozen=True)
class Board:
    """All scores, and what they were taken on."""

    points: int
    version: int
    date: str
    digest: str
    simdp: str
    entrants: tuple[Entrant, ...]
    scores: tuple[Score, ...]
    replay_cpu_s: float

    def to_json(self) -> str:
        """Write scores.json; a score a line."""
        plain = asdict(self)
        scores = ",\n".join(json.dumps(one) for one in plain.pop("scores"))
        return json.dumps(plain, indent=1)[:-2] + f',\n "scores": [\n{scores}\n]\n}}\n'


def read(path: Path = FILE) -> Board:
    """Read scores.json."""
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    scores = [Score(**{**one, "nearer": tuple(one["nearer"])}) for one in raw.pop("scores")]
    entrants = [Entrant(**one) for one in raw.pop("entrants")]
    return Board(**raw, entrants=tuple(entrants), scores=tuple(scores))


def played(
    points: Points,
    adapters: Sequence[Adapter],
    replay_cpu_s: float = 0.0,
    rules: Sequence[str] = RULES,
    progress: Callable[[str], None] | None = None,
) -> Board:
    """Ask all entrants under all rules; one that fails under a rule has no scores there."""
    scores: list[Score] = []
    failures: dict[str, dict[str, str]] = {adapter.name: {} for adapter in adapters}
    for rule in rules:
        cut = folds(points.points, rule)
        found: dict[str, Played] = {}
        for adapter in adapters:
            if progress is not None:
                progress(f"{rule}: {adapter.name}")
            try:
                found[adapter.name] = _play(adapter, cut)
            except AdapterError as error:
                failures[adapter.name][rule] = str(error)
        scores += _scores(rule, found, points)
    entrants = [Entrant(one.name, one.about, one.missing, failures[one.name]) for one in adapters]
    return Board(
        len(points.points),
        points.version,
        points.date,
        points.digest,
        simdp.__version__,
        tuple(entrants),
        tuple(scores),
        replay_cpu_s,
    )


def _play(adapter: Adapter, cut: Iterable[Fold]) -> Played:
    found: Played = {}
    for fold in cut:
        answers = checked(adapter, fold.asked())
        for point, answer in zip(fold.left_out, answers, strict=True):
            found[point["id"]] = point, answer
    return found


def _scores(rule: str, found: dict[str, Played], points: Points) -> list[Score]:
    first = found.get(FIRST, {})
    made = []
    for kind in KINDS:
        for which in CLASSES:
            for name, played in found.items():
                mine = [
                    (point, answer)
                    for point, answer in played.values()
                    if kind_of(point) == kind and wires(point) == which
                ]
                if any(answer is not None for _, answer in mine):
                    made.append(_score((rule, kind, which, name), mine, first, points.noise))
    return made


def kind_of(point: Point) -> str:
    """One of `KINDS`."""
    if point["kind"] == "step":
        return KINDS[0]
    return KINDS[1] if point["nbytes"] >= LARGE else KINDS[2]


def _score(
    whose: tuple[str, str, str, str],
    asked: Sequence[tuple[Point, Answer | None]],
    first: Played,
    noise: dict[str, float],
) -> Score:
    mine = [(point, answer) for point, answer in asked if answer is not None]
    errors = [_error(point, answer) for point, answer in mine]
    both = [(point, answer, first[point["id"]][1]) for point, answer in mine if first]
    firsts = [_error(point, answer) for point, _, answer in both if answer is not None]
    ends = [answer for _, answer in mine if answer.low is not None]
    inside = [_is_inside(point, answer) for point, answer in mine if answer.low is not None]
    return Score(
        *whose,
        asked=len(asked),
        answered=len(mine),
        mean_error=_figure(mean(errors)),
        median_error=_figure(median(errors)),
        worst_error=_figure(max(errors)),
        tau=_order(mine, noise),
        inside=_figure(mean(inside)) if len(ends) == len(mine) else None,
        first_error=_figure(mean(firsts)) if firsts else None,
        nearer=_nearer(both, noise) if whose[-1] != FIRST else (),
    )


def _figure(value: float) -> float:
    return float(f"{value:.4g}")


def _error(point: Point, answer: Answer) -> float:
    return abs(float(answer.seconds / point["measured_s"]) - 1)


def _is_inside(point: Point, answer: Answer) -> bool:
    assert answer.low is not None
    assert answer.high is not None
    return bool(answer.low <= point["measured_s"] <= answer.high)


def _nearer(
    both: Iterable[tuple[Point, Answer, Answer | None]], noise: dict[str, float]
) -> tuple[str, ...]:
    errors: dict[str, list[tuple[float, float]]] = {}
    for point, mine, ours in both:
        if ours is not None:
            pair = _error(point, mine), _error(point, ours)
            errors.setdefault(point["cluster"], []).append(pair)
    return tuple(
        name
        for name, pairs in errors.items()
        if mean(b for _, b in pairs) - mean(a for a, _ in pairs) > noise[name]
    )


def _order(mine: Iterable[tuple[Point, Answer]], noise: dict[str, float]) -> float | None:
    """Mean of tau over clusters; pairs of collectives are of one size."""
    groups: dict[tuple[str, int], list[TimeComparison]] = {}
    for point, answer in mine:
        key = point["cluster"], point.get("nbytes", 0)
        groups.setdefault(key, []).append(
            TimeComparison(
                scenario=point["scenario"],
                cluster=point["cluster"],
                set={},
                world_size=point["ranks"],
                role="predicted",
                measured=point["measured_s"],
                simulated=answer.seconds,
                low=nan,
                high=nan,
                note=None,
            )
        )
    taus: dict[str, list[float]] = {}
    for (cluster, _), group in groups.items():
        tau = kendall_tau(group, noise[cluster])
        if tau is not None:
            taus.setdefault(cluster, []).append(tau)
    return _figure(mean(mean(each) for each in taus.values())) if taus else None
