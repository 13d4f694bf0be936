"""Told: what a plan tells of the points that were simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simdp.errors import ScenarioError
from simdp.results.money import BUSY, REST, WAITING, bill, energy_range
from simdp.results.plan import GOALS, Option
from simdp.scenario import Scenario
from simdp.studies.plan.asked import Asked
from simdp.studies.plan.chances import LIMITED, chance, factors_of
from simdp.studies.plan.playing import Player
from simdp.studies.plan.search import LIMITS, NUM_BEST, Played, Search
from simdp.studies.plan.words import percent, why_best, why_on_front

MAX_INTERVALS = 50
"""Options of the front whose intervals are found."""


UNTOLD = {
    "cost_usd": "nobody says what these devices cost; add cluster.price: 2 USD/h, or choose "
    "others.",
    "energy_kwh": "nobody says what these devices draw; add cluster.power: {rest: 80 W, busy: "
    "700 W}, or choose others.",
}
"""Of what an option has no figure without, and what to do."""


def refuse_untold(search: Search, asked: Asked) -> None:
    """Refuse a goal or a limit of which no point has a figure.

    Raises
    ------
    ScenarioError
        With every one of them.
    """
    fields = {f"--for {asked.goal}": GOALS[asked.goal]}
    fields |= {f"--{name}": LIMITS[name] for name in asked.limits}
    there = search.bounds.is_possible
    found = [
        f"{option}: {UNTOLD[field]}"
        for option, field in fields.items()
        if field in UNTOLD and not np.isfinite(search.least(field)[there]).any()
    ]
    if found:
        raise ScenarioError(found)


def refuse_untold_nearest(search: Search, asked: Asked, nearest: Played) -> None:
    """Refuse a goal of which all that meets the limits has no figure.

    Raises
    ------
    ScenarioError
        If so.
    """
    field = GOALS[asked.goal]
    missed = search.misses(nearest.number, nearest.option)
    if nearest.option.value(field) is None and not missed:
        said = f"{nearest.option.label or 'the scenario'} meets the limits, and {UNTOLD[field]}"
        raise ScenarioError([f"--for {asked.goal}: {said}"])


class Made:
    """Makes what a plan tells of what a search found."""

    def __init__(self, search: Search, player: Player, asked: Asked) -> None:
        self._search, self._player, self._asked = search, player, asked
        self._left_out = 0

    def best(self) -> list[Option]:
        """The best and the next ones, with their intervals."""
        found = self._search.meeting()[:NUM_BEST]
        self._player.find_intervals([one.number for one in found])
        options = []
        for place, one in enumerate(found):
            later = found[place + 1].option if place + 1 < len(found) else None
            why = why_best(one.option, later, self._asked.goal) if place == 0 or later else ""
            options.append(self.told(one, why))
        return options

    def front(self) -> list[Option]:
        """The front, with intervals of its first options."""
        found = self._search.front()
        self._left_out = max(len(found) - MAX_INTERVALS, 0)
        self._player.find_intervals([one.number for one in found[:MAX_INTERVALS]])
        options = [one.option for one in found]
        return [self.told(one, why_on_front(one.option, options)) for one in found]

    def nearest(self, one: Played) -> Option:
        """The option that misses the limits least, with its interval."""
        self._player.find_intervals([one.number])
        return self.told(one, self.misses_in_words(one))

    def told(self, one: Played, why: str) -> Option:
        """An option with its interval, its chances, and why it is listed."""
        option, player, limits = one.option, self._player, self._asked.limits
        misses = self._search.misses(one.number, option)
        found = replace(option, why=why, misses=misses)
        luck = player.simulated[one.number].luck
        by_luck = chance(option, limits, luck)
        if one.number not in player.intervals:
            return replace(found, chance_by_luck=by_luck, chance_to_meet=by_luck)
        ends = player.intervals[one.number]
        low, high = (None, None) if ends is None else (option.step_time_s * e for e in ends)
        meets = chance(option, limits, factors_of(luck, ends))
        return replace(found, low_s=low, high_s=high, chance_by_luck=by_luck, chance_to_meet=meets)

    def misses_in_words(self, one: Played) -> str:
        """How an option misses the limits."""
        found = self._search.misses(one.number, one.option)
        if not found:
            return "meets them"
        said = "misses " + ", ".join(
            f"{name} by {100 * (over - 1):.3g} %" for name, over in found.items()
        )
        sure = self._asked.sure
        if sure is None or not any(name in LIMITED for name in found):
            return said
        return f"{said} at the time that it does not exceed with {percent(sure)}"

    def binding(self, nearest: Played | None) -> str | None:
        """The limit that binds: missed most, or without which there would be a better one."""
        search = self._search
        if nearest is not None:
            missed = search.misses(nearest.number, nearest.option)
            return max(missed, key=lambda name: missed[name], default=None)
        field = GOALS[self._asked.goal]
        best = search.meeting()[0].option.value(field)
        gains: dict[str, float] = {}
        for name in self._asked.limits:
            other = search.without(name)
            value = None if other is None else other.option.value(field)
            if best is not None and value is not None and value < best:
                gains[name] = best - value
        return max(gains, key=lambda name: gains[name], default=None)

    def _energy_note(self) -> list[str]:
        """How far the energy of the best depends on what a waiting device draws."""
        meeting = self._search.meeting()
        if not meeting or not (self._asked.goal == "greenest" or self._asked.energy):
            return []
        point = self._player.simulated[meeting[0].number]
        metrics = point.metrics
        parts = [sum(metrics[key] for key in keys) for keys in (BUSY, WAITING, REST)]
        rates = point.whole.cluster.rates()
        ends, mean = energy_range(rates, *parts), bill(rates, *parts).energy_kwh
        if ends is None or not mean:
            return []
        less, more = percent(1 - ends[0] / mean), percent(ends[1] / mean - 1)
        return [
            f"what a waiting GPU draws is not known well: number 1 may take {less} less or {more} "
            "more energy; give cluster.power.waiting"
        ]

    def notes(self, scenario: Scenario) -> list[str]:
        """What else there is to say."""
        found = []
        if scenario.target is None:
            found.append("no target: times, money and energy are those of a million samples")
        if any(one.whole.strategy.steps_together > 1 for one in self._player.simulated.values()):
            found.append("steps of local_sgd are means over whole periods")
        if self._asked.limits.keys() & LIMITED.keys() and None in self._player.intervals.values():
            found.append(
                "where the machine is not calibrated, chances count the luck of runs alone"
            )
        if self._left_out:
            found.append(
                f"90 % intervals are of the best and of the first {MAX_INTERVALS} of the front"
            )
        found += self._energy_note()
        if any(option.cost_usd is None for option in self._search.options.values()):
            found.append("some devices have no price; see cluster.price")
        return found
