"""Texts and options of a plan's result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import hypot

import numpy as np

from simdp.errors import ScenarioError
from simdp.reports.figures import percent
from simdp.reports.plan_table import why_not
from simdp.results.comparison import NOISE
from simdp.results.metrics import bill, energy_range
from simdp.results.plan import GOALS, Option
from simdp.scenario.root import Scenario
from simdp.studies.plan.request import (
    LIMITED,
    PlanRequest,
    catalogue_clusters,
    chance,
    factors_of,
    has_figure,
)
from simdp.studies.plan.search import LIMITS, NUM_BEST, Player, Search, SearchedPoint

# Reasons ------------------------------------------------------------------------------------------

ADJECTIVES = {"cheapest": "cheaper", "fastest": "faster", "greenest": "greener"}

TERMS = {
    "compute": ("compute_s", "update_s"),
    "exposed communication": ("exposed_comm_s",),
    "waiting for slower ranks": ("wait_s",),
    "other work": ("other_s",),
}
"""Parts of a step, by name."""


def why_best(best: Option, other: Option | None, goal: str) -> str:
    """Explain why an option is better than the next: GPU hours, price and parts of a step."""
    if other is None:  # see `why_alone`
        return ""
    mine, theirs = best.value(GOALS[goal]), other.value(GOALS[goal])
    assert mine is not None
    assert theirs is not None
    if not theirs or theirs <= mine:
        return f"as good as the next one: {other.label}"
    noise = NOISE * hypot(mine * best.mean_error, theirs * other.mean_error)
    if theirs - mine <= noise:
        return (
            "no difference from the next one beyond the noise of the simulated jobs: "
            f"{percent(1 - mine / theirs, '.3g')} {ADJECTIVES[goal]}, {_gpu_hours(best, other)}"
        )
    reasons = [
        f"{percent(1 - mine / theirs, '.3g')} {ADJECTIVES[goal]} than the next",
        _gpu_hours(best, other),
    ]
    saved = {
        name: _share(other, keys) * other.gpu_hours - _share(best, keys) * best.gpu_hours
        for name, keys in TERMS.items()
    }
    name = max(saved, key=lambda key: saved[key])
    if saved[name] > 0 and 2 * saved[name] > other.gpu_hours - best.gpu_hours > 0:
        hours = [_share(option, TERMS[name]) * option.gpu_hours for option in (best, other)]
        mine, others = hours
        reasons.append(f"most of the difference is {name}: {mine:.3g} in place of {others:.3g}")
    return "; ".join(reasons)


def why_alone(num_points: int, num_simulated: int, pruned: Mapping[str, int]) -> str:
    """Explain why no option comes next, by what became of the other points."""
    if num_points == 1:
        return "the only point"
    more = num_simulated - 1
    simulated = f"{more:,} simulated {'miss' if more > 1 else 'misses'} the limits or memory"
    reasons = ", ".join(filter(None, [simulated if more else "", why_not(pruned)]))
    return f"the only one left of {num_points:,} points: {reasons}"


def _gpu_hours(best: Option, other: Option) -> str:
    hours = f"{best.gpu_hours:.3g} GPU hours in place of {other.gpu_hours:.3g}"
    prices = [
        None
        if option.cost_usd is None or not option.gpu_hours
        else f"{option.cost_usd / option.gpu_hours:.3g}"
        for option in (best, other)
    ]
    if prices[0] is None or prices[1] is None:
        return hours
    if prices[0] == prices[1]:
        return f"{hours}, each {prices[0]} USD"
    return f"{hours}, at {prices[0]} in place of {prices[1]} USD per GPU hour"


def _share(option: Option, keys: Sequence[str]) -> float:
    seconds = sum(option.shares.get(key.removesuffix("_s"), 0.0) for key in keys)
    return seconds / option.step_time_s if option.step_time_s else 0.0


def why_on_front(option: Option, front: Sequence[Option]) -> str:
    """Explain why an option is on the front."""
    reasons = []
    if option.finish_s == min(other.finish_s for other in front):
        reasons.append("the fastest")
    costs = [other.cost_usd for other in front if other.cost_usd is not None]
    if costs and option.cost_usd == min(costs):
        reasons.append("the cheapest")
    if option.peak_memory_bytes == min(other.peak_memory_bytes for other in front):
        reasons.append("the least memory")
    if reasons:
        return ", ".join(reasons)
    faster = [other for other in front if other.finish_s <= option.finish_s and other is not option]
    saves = []
    if all(_cost(option) < _cost(other) for other in faster):
        saves.append("cheaper")
    if all(option.peak_memory_bytes < other.peak_memory_bytes for other in faster):
        saves.append("smaller")
    return f"{' and '.join(saves) or 'cheaper or smaller'} than all that are faster"


def _cost(option: Option) -> float:
    return float("inf") if option.cost_usd is None else option.cost_usd


def order(best: Sequence[Option], goal: str) -> str:
    """State how certain the order of the best is, by the 90 % intervals of steps."""
    if len(best) < 2:
        return ""
    first, *others = best
    if first.low_s is None or first.high_s is None:
        return "unknown: the best one's machine is not calibrated"
    unsure = []
    for place, other in enumerate(others, 2):
        if other.low_s is None or other.high_s is None:
            return f"unknown: the machine of number {place} is not calibrated"
        worst = first.high_s / first.step_time_s * (first.value(GOALS[goal]) or 0.0)
        if other.low_s / other.step_time_s * (other.value(GOALS[goal]) or 0.0) <= worst:
            unsure.append(str(place))
    if not unsure:
        return "sure: its 90 % interval ends before those of the next ones begin"
    same = [o for o in others if o.set.get("cluster.machine") == first.set.get("cluster.machine")]
    shared = (
        "; errors of the same machine are mostly shared, so that the order is surer than that"
        if len(same) == len(others)
        else ""
    )
    return f"not sure: its 90 % interval overlaps with that of number {', '.join(unsure)}{shared}"


# Options and notes --------------------------------------------------------------------------------

MAX_INTERVALS = 50  # most options of the front that get intervals


NO_FIGURE = {
    "cost_usd": "these devices have no price; add cluster.price: 2 USD/h, or choose others.",
    "energy_kwh": "these devices have no power; add cluster.power: {rest: 80 W, busy: "
    "700 W}, or choose others.",
}
"""Errors by field of an option that needs a price or power."""


def check_figures(search: Search, request: PlanRequest) -> None:
    """Raise a ScenarioError if no point has a figure for the goal or a limit."""
    fields = {f"--for {request.goal}": GOALS[request.goal]}
    fields |= {f"--{name}": LIMITS[name] for name in request.limits}
    there = search.bounds.is_possible
    problems = [
        f"{option}: {NO_FIGURE[field]}"
        for option, field in fields.items()
        if field in NO_FIGURE and not np.isfinite(search.least(field)[there]).any()
    ]
    if problems:
        raise ScenarioError(problems)


def check_nearest_figures(search: Search, request: PlanRequest, nearest: SearchedPoint) -> None:
    """Raise a ScenarioError if options within the limits have no figure for the goal."""
    field = GOALS[request.goal]
    missed = search.misses(nearest.number, nearest.option)
    if nearest.option.value(field) is None and not missed:
        label = nearest.option.label or "the scenario"
        raise ScenarioError(
            f"--for {request.goal}: {label} meets the limits, but {NO_FIGURE[field]}"
        )


class PlanReport:
    """Makes the options and notes of a plan's result."""

    def __init__(self, search: Search, player: Player, request: PlanRequest) -> None:
        self._search, self._player, self._request = search, player, request
        self._left_out = 0

    def best(self) -> list[Option]:
        """The best options with their intervals."""
        points = self._search.meeting()[:NUM_BEST]
        self._player.find_intervals([point.number for point in points])
        options = []
        for place, point in enumerate(points):
            later = points[place + 1].option if place + 1 < len(points) else None
            why = why_best(point.option, later, self._request.goal) if place == 0 or later else ""
            options.append(self.completed(point, why))
        return options

    def front(self) -> list[Option]:
        """The front, with intervals of its first options."""
        points = self._search.front()
        self._left_out = max(len(points) - MAX_INTERVALS, 0)
        self._player.find_intervals([point.number for point in points[:MAX_INTERVALS]])
        options = [point.option for point in points]
        return [self.completed(point, why_on_front(point.option, options)) for point in points]

    def nearest(self, point: SearchedPoint) -> Option:
        """The option that misses the limits least, with its interval."""
        self._player.find_intervals([point.number])
        return self.completed(point, self.misses_in_words(point))

    def completed(self, point: SearchedPoint, why: str) -> Option:
        """Complete an option with its interval, probabilities and reason."""
        option, player, limits = point.option, self._player, self._request.limits
        completed = replace(option, why=why, misses=self._search.misses(point.number, option))
        luck = player.simulated[point.number].luck
        by_luck = chance(option, limits, luck)
        if point.number not in player.intervals:
            return replace(completed, chance_by_luck=by_luck, chance_to_meet=by_luck)
        ends = player.intervals[point.number]
        low, high = (None, None) if ends is None else (option.step_time_s * e for e in ends)
        meets = chance(option, limits, factors_of(luck, ends))
        completed = replace(completed, low_s=low, high_s=high)
        return replace(completed, chance_by_luck=by_luck, chance_to_meet=meets)

    def misses_in_words(self, point: SearchedPoint) -> str:
        """Describe the limits that an option misses."""
        misses = self._search.misses(point.number, point.option)
        if not misses:
            return "meets them"
        sentence = "misses " + ", ".join(
            f"{name} by {100 * (over - 1):.3g} %" for name, over in misses.items()
        )
        sure = self._request.sure
        if sure is None or not any(name in LIMITED for name in misses):
            return sentence
        return f"{sentence} at the time that it does not exceed with {percent(sure, '.3g')}"

    def binding(self, nearest: SearchedPoint | None) -> str | None:
        """The limit that is missed most, or that excludes the best better option."""
        search = self._search
        if nearest is not None:
            missed = search.misses(nearest.number, nearest.option)
            return max(missed, key=lambda name: missed[name], default=None)
        field = GOALS[self._request.goal]
        best = search.meeting()[0].option.value(field)
        gains: dict[str, float] = {}
        for name in self._request.limits:
            other = search.without(name)
            value = None if other is None else other.option.value(field)
            if best is not None and value is not None and value < best:
                gains[name] = best - value
        return max(gains, key=lambda name: gains[name], default=None)

    def _energy_note(self) -> list[str]:
        """Note how much the best option's energy depends on the power of waiting devices."""
        meeting = self._search.meeting()
        if not meeting or not (self._request.goal == "greenest" or self._request.energy):
            return []
        point = self._player.simulated[meeting[0].number]
        metrics = point.metrics
        parts = metrics.busy_s, metrics.waiting_s, metrics.other_s
        rates = point.whole.cluster.rates()
        ends, mean = energy_range(rates, *parts), bill(rates, *parts).energy_kwh
        if ends is None or not mean:
            return []
        less, more = percent(1 - ends[0] / mean, ".3g"), percent(ends[1] / mean - 1, ".3g")
        return [
            f"what a waiting GPU draws is not known well: number 1 may take {less} less or {more} "
            "more energy; give cluster.power.waiting"
        ]

    def _left_out_devices(self) -> Iterator[str]:
        """Name the devices that have no price, or no power, where the goal or a limit needs it."""
        request, bounds = self._request, self._search.bounds
        clusters = [(place.scenario.cluster, place.rates) for place in bounds.clusters]
        if request.choices.keys() != bounds.space.choices.keys():  # the catalogue's, by default
            clusters += [(candidate, candidate.rates()) for candidate in catalogue_clusters()]
        fields = {GOALS[request.goal], *(LIMITS[name] for name in request.limits)}
        for goal, what in (("cheapest", "price"), ("greenest", "power")):
            known, unknown = dict[str, None](), dict[str, None]()
            for cluster, rates in clusters:
                kinds = known if has_figure(rates, goal) else unknown
                kinds |= dict.fromkeys(device.name for device in cluster.devices() if device.name)
            if GOALS[goal] in fields and (missing := sorted(unknown.keys() - known.keys())):
                yield f"left out for want of a {what}: {', '.join(missing)}; give cluster.{what}"

    def notes(self, scenario: Scenario) -> list[str]:
        """Notes on the result."""
        notes = []
        if scenario.target is None:
            notes.append("no target: times, money and energy are those of a million samples")
        strategies = [point.whole.strategy for point in self._player.simulated.values()]
        kinds = dict.fromkeys(way.kind for way in strategies if way.steps_together > 1)
        if kinds:
            notes.append(f"steps of {', '.join(kinds)} are means over whole periods")
        if self._request.limits.keys() & LIMITED.keys() and None in self._player.intervals.values():
            notes.append(
                "where the machine is not calibrated, chances count the luck of runs alone"
            )
        if self._left_out:
            notes.append(
                f"90 % intervals are of the best and of the first {MAX_INTERVALS} of the front"
            )
        notes += self._energy_note()
        notes += self._left_out_devices()
        if any(option.cost_usd is None for option in self._search.options.values()):
            notes.append("some devices have no price; see cluster.price")
        return notes
