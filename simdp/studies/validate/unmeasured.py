"""Unmeasured: what is known of a cluster before anybody has measured it."""

from __future__ import annotations

from math import exp
from typing import Any

from simdp.cluster.machine import Calibration
from simdp.collectives.costs.nccl import NcclCost
from simdp.scenario import Scenario
from simdp.studies.calibrate.constants import GIVEN
from simdp.studies.validate.intervals import COST, NORMAL_90, OWN, Known, machine_calibration
from simdp.studies.variants import value_at

STRUCTURE = ("kind", "algorithms", "protocols", "stages", "flows_per_pair")
"""What the software on a cluster may do: keys of NCCL's cost that no measurement tells."""

OVERHEADS = "cluster.overheads."

STRAGGLERS = "cluster.stragglers."


def as_unmeasured(scenario: Scenario, without: str | None) -> tuple[Scenario, list[Known]]:
    """Strip a scenario of what was fitted to its cluster: what is published stays.

    Parameters
    ----------
    scenario : Scenario
        One point.
    without : str or None
        The site whose measurements must not count; None if no other cluster's count either.

    Returns
    -------
    (Scenario, list of Known)
        And how well its constants are known.
    """
    cost, cluster = scenario.collectives.cost, scenario.cluster
    keys = fitted_keys(scenario)
    update: dict[str, Any] = {}
    defaults = type(cluster.overheads)()
    overheads = {
        key.removeprefix(OVERHEADS): getattr(defaults, key.removeprefix(OVERHEADS))
        for key in keys
        if key.startswith(OVERHEADS)
    }
    if overheads:
        update["overheads"] = cluster.overheads.model_copy(update=overheads)
    fitted = {key.split(".")[2] for key in keys if key.startswith(STRAGGLERS)}
    if fitted:
        each = enumerate(cluster.stragglers)
        update["stragglers"] = [one for index, one in each if str(index) not in fitted]
    stripped = scenario.model_copy(update={"cluster": cluster.model_copy(update=update)})
    if not isinstance(cost, NcclCost):
        return stripped, []
    bare = NcclCost.model_validate({key: getattr(cost, key) for key in STRUCTURE})
    collectives = scenario.collectives.model_copy(update={"cost": bare})
    return stripped.model_copy(update={"collectives": collectives}), [_published(bare)]


def fitted_keys(scenario: Scenario) -> list[str]:
    """Keys of the constants that the entry of a scenario's machine, or the scenario, had fitted."""
    known = machine_calibration(scenario.cluster.machine, scenario.base)
    if scenario.measured is not None and scenario.measured.calibration is not None:
        known.append(Known(OWN, scenario.measured.calibration))
    return list(dict.fromkeys(key for _, one in known for key in one.intervals))


def _published(cost: NcclCost) -> Known:
    """How far clusters are from the shares of bandwidth that NVIDIA plans with."""
    intervals, reach = {}, exp(NORMAL_90 * GIVEN)
    for place in ("intra", "inter"):
        share = value_at(cost, f"efficiency.{place}.simple")
        intervals[f"{COST}efficiency.{place}.simple"] = [share / reach, min(share * reach, 4.0)]
    return Known("published", Calibration(data="what NVIDIA publishes", intervals=intervals))
