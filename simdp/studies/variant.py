"""Variant: a scenario with other settings, for a short look at times or memory alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simdp.errors import ScenarioError
from simdp.scenario import Scenario, checked
from simdp.scenario.overrides import override_all


def variant(scenario: Scenario, settings: Mapping[str, Any], steps: int) -> Scenario | None:
    """Change some settings of one point, and leave numbers out.

    Parameters
    ----------
    scenario : Scenario
        What it sweeps, measured and injected is left out.
    settings : dict
        Values by dotted key.
    steps : int
        How many of them are looked at.

    Returns
    -------
    Scenario or None
        None where it cannot have these settings.
    """
    raw = scenario.resolved()
    for key in ("sweep", "measured"):
        raw.pop(key, None)
    for key in ("epochs", "inject"):
        raw["workload"].pop(key, None)
    settings = {**settings, "workload.steps": steps, "numerics": False}
    try:
        return checked(override_all(raw, settings, scenario.base), scenario.base)
    except ScenarioError:
        return None
