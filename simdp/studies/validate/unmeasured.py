"""Unmeasured: what is known of a cluster before anybody has measured it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import exp
from typing import Any

from simdp.cluster.machine import Calibration
from simdp.collectives.costs import Cost, Wiring
from simdp.collectives.costs.nccl import NcclCost
from simdp.collectives.costs.pool import PAYLOAD, pooled
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of
from simdp.studies.validate.intervals import COST, NORMAL_90, POOL, Known

MOST = 1.0
"""No share of a bandwidth is larger."""

NVLS = 0.17
"""Spread of NVLS's share over sites: 0.67, 0.68, 0.70 and 0.71 of four H100 boxes would be less,
and more of a switch that is not H100's."""


def with_pool(known: Sequence[Known], scenario: Scenario) -> list[Known]:
    """Add what the pool knows of a point to what its machine, or the scenario itself, does."""
    return [*known, *known_of_cost(scenario.collectives.cost, wiring_of(scenario.cluster))]


def known_of_cost(cost: Cost, wiring: Wiring, without: Collection[str] = ()) -> list[Known]:
    """What the pool knows of the shares of bandwidth that a cost does not give.

    Parameters
    ----------
    cost : Cost
        Only NCCL's model has any.
    wiring : Wiring
        Between which ranks; its classes count where the cost names none.
    without : collection of str
        Machines that the pool must not know.

    Returns
    -------
    list of Known
        At most one.
    """
    if not isinstance(cost, NcclCost) or wiring.world_size == 1:
        return []
    intervals: dict[str, list[Any]] = {}
    for place, used, found in (
        ("intra", wiring.local_size > 1, ("peer", cost.peer or wiring.peer)),
        ("inter", wiring.num_nodes > 1, ("network", cost.network or wiring.network)),
    ):
        given = getattr(cost.efficiency, place)
        if not used or any(getattr(given, protocol) is not None for protocol in PAYLOAD):
            continue
        spread = pooled(*found, "flow" if found[1] == "tcp" else "share", without).spread
        shares = {protocol: cost.share(place, protocol, wiring) for protocol in PAYLOAD}
        intervals[f"{COST}efficiency.{place}"] = _ends(shares, spread)
    if not intervals:
        return []
    if "nvls" in cost.algorithms and "nvls_efficiency" not in cost.model_fields_set:
        share = cost.nvls_efficiency
        intervals[f"{COST}nvls_efficiency"] = [
            each["nvls"] for each in _ends({"nvls": share}, NVLS)
        ]
    return [Known(POOL, Calibration(data="python -m simdp list constants", intervals=intervals))]


def _ends(shares: dict[str, float], spread: float) -> list[dict[str, float]]:
    """Both ends of 90 % intervals of shares that are off together."""
    reach = exp(NORMAL_90 * spread)
    return [
        {name: min(share * factor, max(share, MOST)) for name, share in shares.items()}
        for factor in (1 / reach, reach)
    ]


def is_unmeasured(known: Sequence[Known]) -> bool:
    """Whether no constant of the collectives was fitted on the cluster itself."""
    places = {place for place, one in known if any(key.startswith(COST) for key in one.intervals)}
    return places == {POOL}
