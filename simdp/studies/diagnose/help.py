"""Adds to findings the simulated gain of each remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simdp.errors import ScenarioError
from simdp.results.diagnosis import Finding, Remedy
from simdp.studies.diagnose.verdict import WORTH
from simdp.studies.replay import remedies, replay_of
from simdp.traces import RankTrace

MOST = 2
"""Causes that remedies are simulated for: each replays the job a few times."""


class Helped(NamedTuple):
    """Findings with remedies.

    Attributes
    ----------
    verdict : tuple of Finding
        In their order.
    replayed_s : float or None
        A step of the replay that they were tried on; None without any [s].
    remarks : tuple of str
        What kept remedies from being simulated.
    """

    verdict: tuple[Finding, ...]
    replayed_s: float | None
    remarks: tuple[str, ...]


def with_remedies(
    verdict: Sequence[Finding], traces: Sequence[RankTrace], machine: str | None
) -> Helped:
    """Add remedies to the main causes.

    Parameters
    ----------
    verdict : sequence of Finding
        The main cause first.
    traces, machine
        As for `simdp.studies.diagnose.diagnose`.

    Returns
    -------
    Helped
        With the same findings.
    """
    found = list(verdict)
    worth = [place for place, one in enumerate(found) if one.share >= WORTH]
    listed: dict[int, tuple[Remedy, ...]] = {}
    base: float | None = None
    try:
        for place in worth[:MOST]:
            listed[place] = tuple(remedies(traces, found[place].cause, machine))
        if any(listed.values()):
            played = replay_of(traces, machine=machine).simulate()
            base = float(played.metrics["step_time_s"])
    except ScenarioError as error:
        return Helped(tuple(found), None, (f"No remedies were simulated: {error.problems[0]}",))
    for place, those in listed.items():
        found[place] = replace(found[place], remedies=those)
    return Helped(tuple(found), base, ())
