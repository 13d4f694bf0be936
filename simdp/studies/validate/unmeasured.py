"""Unmeasured: what is known of a cluster before anybody has measured it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import exp
from pathlib import Path
from typing import Any

from simdp.cluster import Cluster
from simdp.cluster.machine import Calibration
from simdp.collectives.costs import Cost, Wiring
from simdp.collectives.costs.nccl import Efficiencies, NcclCost
from simdp.collectives.costs.pool import PAYLOAD, pooled, share_of
from simdp.scenario import Scenario
from simdp.scenario.remarks import replaced_parts
from simdp.scenario.wiring import wiring_of
from simdp.studies.validate.intervals import (
    COST,
    NORMAL_90,
    OWN,
    POOL,
    Known,
    machine_calibration,
)

STRUCTURE = ("kind", "algorithms", "protocols", "stages", "flows_per_pair", "peer", "network")
"""What the software on a cluster may do: keys of NCCL's cost that no measurement tells."""

OVERHEADS = "cluster.overheads."

STRAGGLERS = "cluster.stragglers."

LISTED = "python -m simdp list constants"

NETWORK_CLASS = f"{COST}network"

MOST = 1.0
"""No share of a bandwidth is larger."""

NVLS = 0.17
"""Spread of NVLS's share over sites: four H100 boxes, 0.67 to 0.71, would tell of less, but none is
of another switch."""


def with_pool(known: Sequence[Known], scenario: Scenario) -> list[Known]:
    """Add what the pool knows of a point to what its machine, or the scenario itself, does."""
    called = {name for name, _ in scenario.calls()}
    over_links = not called.isdisjoint(scenario.collectives.over_links or ())
    found = with_pool_of(
        known, scenario.collectives.cost, scenario.cluster, scenario.base, over_links
    )
    return [*found, *_guessed_class(scenario, found)]


def _guessed_class(scenario: Scenario, known: Sequence[Known]) -> list[Known]:
    """The other class that a network between nodes may be of, where its links do not name one."""
    cost, inter = scenario.collectives.cost, scenario.cluster.inter_node
    wiring = wiring_of(scenario.cluster)
    if not isinstance(cost, NcclCost) or inter is None or wiring.num_nodes == 1:
        return []
    links = inter.links(scenario.cluster.num_nodes)
    is_open = cost.network is None and all(link.transport is None for link in links)
    if not is_open or f"{COST}efficiency.inter" not in (
        key for one in known if one.place == POOL for key in one.calibration.intervals
    ):
        return []
    other = "rdma" if wiring.network == "tcp" else "tcp"
    ends: list[Any] = [wiring.network, other]
    data = "links between nodes without a transport: the class of their network is a guess"
    return [Known(POOL, Calibration(data=data, intervals={NETWORK_CLASS: ends}))]


def with_pool_of(
    known: Sequence[Known],
    cost: Cost,
    cluster: Cluster,
    base: Path = Path(),
    over_links: bool = False,
) -> list[Known]:
    """As `with_pool`, of a cost on a cluster, and whether links are played beside it.

    Nothing was fitted to a part of the machine that the cluster has in another form: its constants
    are left out, and the pool's class of it takes their place.
    """
    parts = replaced_parts(cluster, base) if known else ()
    if cluster.world_size > 1 and (over_links or not cost.timed) and _have_costs(known):
        parts = (*parts, "cost")
    kept = [one if one.place in (OWN, POOL) else one.with_replaced(parts) for one in known]
    return [*kept, *known_of_cost(cost, wiring_of(cluster), replaced=parts)]


def known_of_cost(
    cost: Cost, wiring: Wiring, without: Collection[str] = (), replaced: Collection[str] = ()
) -> list[Known]:
    """What the pool knows of the shares of bandwidth that a cost does not give.

    Parameters
    ----------
    cost : Cost
        Only NCCL's model has any.
    wiring : Wiring
        Between which ranks; its classes count where the cost names none.
    without : collection of str
        Machines that the pool must not know.
    replaced : collection of str
        Places, ``intra`` and ``inter``, whose shares the cost gives for other hardware.

    Returns
    -------
    list of Known
        At most one.
    """
    if not isinstance(cost, NcclCost):
        return []
    if wiring.world_size == 1:  # of its collectives there is nothing to know
        return [Known(POOL, Calibration(data=LISTED))]
    intervals: dict[str, list[Any]] = {}
    for place, bandwidth, of_class in _places(cost, wiring):
        given = getattr(cost.efficiency, place)
        is_given = any(getattr(given, protocol) is not None for protocol in PAYLOAD)
        if is_given and place not in replaced:
            continue
        constant = "flow" if of_class[1] == "tcp" else "share"
        spread = pooled(*of_class, constant, without).spread
        shares = {name: share_of(*of_class, name, bandwidth, without) for name in PAYLOAD}
        intervals[f"{COST}efficiency.{place}"] = _ends(shares, spread)
    if not intervals:
        return []
    if "nvls" in cost.algorithms and "nvls_efficiency" not in cost.model_fields_set:
        share = cost.nvls_efficiency
        intervals[f"{COST}nvls_efficiency"] = [
            each["nvls"] for each in _ends({"nvls": share}, NVLS)
        ]
    return [Known(POOL, Calibration(data=LISTED, intervals=intervals))]


def _places(cost: NcclCost, w: Wiring) -> Iterator[tuple[str, float, tuple[str, str]]]:
    """Where transfers go: the place, its bandwidth [bytes/s], and its class in the pool."""
    if w.local_size > 1:
        yield "intra", w.intra_bandwidth, ("peer", cost.peer or w.peer)
    if w.num_nodes > 1:
        yield "inter", w.inter_bandwidth, ("network", cost.network or w.network)


def _ends(shares: dict[str, float], spread: float) -> list[dict[str, float]]:
    """Both ends of 90 % intervals of shares that are off together."""
    reach = exp(NORMAL_90 * spread)
    return [
        {name: min(share * factor, max(share, MOST)) for name, share in shares.items()}
        for factor in (1 / reach, reach)
    ]


def is_unmeasured(known: Sequence[Known]) -> bool:
    """Whether no constant of the collectives was fitted on the cluster itself.

    So it is, too, where what joins its devices or its nodes is not the machine's, and where links
    are played whose collectives were fitted.
    """
    if any(not {"intra", "inter", "cost"}.isdisjoint(one.replaced) for one in known):
        return True
    return {one.place for one in known if _have_costs([one])} == {POOL}


def _have_costs(known: Sequence[Known]) -> bool:
    """Whether there are constants of the collectives' cost."""
    return any(key.startswith(COST) for one in known for key in one.calibration.intervals)


def as_unmeasured(scenario: Scenario) -> tuple[Scenario, list[Known]]:
    """Strip a scenario of what was fitted to its cluster: what other sites of its class got stays.

    Parameters
    ----------
    scenario : Scenario
        One point; the site of its machine is left out of the pool.

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
    wiring = wiring_of(cluster)
    without = [cluster.machine] if cluster.machine else []
    kept = NcclCost.model_validate({key: getattr(cost, key) for key in STRUCTURE})
    known = known_of_cost(kept, wiring, without)
    shares = {
        place: {name: share_of(*of_class, name, bandwidth, without) for name in PAYLOAD}
        for place, bandwidth, of_class in _places(kept, wiring)
    }
    bare = kept.model_copy(update={"efficiency": Efficiencies.model_validate(shares)})
    collectives = scenario.collectives.model_copy(update={"cost": bare})
    return stripped.model_copy(update={"collectives": collectives}), known


def fitted_keys(scenario: Scenario) -> list[str]:
    """Keys of the constants that the entry of a scenario's machine, or the scenario, had fitted."""
    known = machine_calibration(scenario.cluster.machine, scenario.base)
    if scenario.measured is not None and scenario.measured.calibration is not None:
        known.append(Known(OWN, scenario.measured.calibration))
    return list(dict.fromkeys(key for one in known for key in one.calibration.intervals))
