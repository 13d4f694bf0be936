"""Prediction intervals of collectives and steps.

The interval of a calibration covers the constants that were fitted. A prediction may also differ
from the fitted tables or steps: another collective, more nodes, another model or device.
`NOVELTY_SPREAD` (collectives) and `SPREAD` (steps) hold the errors of such predictions, measured on
tables and points of ``scenarios/validation`` that no constant was fitted to; ``python -m
benchmarks.novelty`` and ``python -m benchmarks.new_steps`` measure them again.

A new model or more nodes change how long a step waits for the network, so that the spread of a step
is multiplied by the exposed share of communication.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import exp, hypot, inf, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.arrays import grouped
from simdp.cluster import Cluster
from simdp.cluster.hardware import (
    DEVICES,
    Calibration,
    Contention,
    Device,
    FlashEfficiency,
    read_machine,
)
from simdp.collectives.costs import Cost, Wiring
from simdp.collectives.costs.nccl import PAYLOAD, Efficiencies, NcclCost, pooled, share_of
from simdp.engine.compute.profile_times import is_measured_on
from simdp.errors import ScenarioError
from simdp.reports.captions import model_name
from simdp.results.metrics import Metrics
from simdp.scenario.overrides import set_key
from simdp.scenario.placement import wiring_of
from simdp.scenario.remarks import replaced_parts
from simdp.scenario.root import Scenario
from simdp.spec import problems
from simdp.studies.variants import value_at, with_values
from simdp.workload.compute import FromMeasurements, FromProfile
from simdp.workload.layers.attention import BACKWARD_PRODUCTS
from simdp.workload.layers.base import Family

# Intervals ----------------------------------------------------------------------------------------

NORMAL_90 = 1.645
"""Standard deviations on either side of the mean that hold 90 % of a normal distribution."""

ROUNDING = 1e-9  # relative tolerance of `is_between`

MEMORY_INTERVALS = {"allocated": (-0.02, 0.07), "reserved": (-0.08, 0.09)}
"""Measured over simulated peaks of memory, less one, that hold 90 %: each of the sources
ResNet-152, litgpt, torchtitan, fsdp_qlora and ViT-H/14 by the errors of the others
(scenarios/validation/memory)."""

IDLE = {
    "one node": ("cluster.inter_node.",),
    "one rank": ("cluster.inter_node.", "cluster.link.", "collectives."),
}
"""Leading parts of keys that have no effect on one node, or on one rank."""


class Variant(NamedTuple):
    """A constant's key, and the scenarios with either end of its interval."""

    key: str
    low: Scenario
    high: Scenario


class Interval(NamedTuple):
    """The 90 % interval of a simulated time [s]."""

    low: float
    high: float


class Known(NamedTuple):
    """Constants with known uncertainty."""

    place: str
    """Source: a machine, `POOL`, or `OWN` for the scenario's own calibration."""
    calibration: Calibration
    """The constants' intervals and the fitted tables and steps."""
    replaced: tuple[str, ...] = ()
    """Parts of the machine that the scenario replaces, whose constants are left out: ``intra``,
    ``inter``, ``device``; ``cost`` where links are simulated."""

    def only(self, keys: Collection[str]) -> Known:
        """Keep only the intervals of some keys, with a residual of 0."""
        intervals = {k: ends for k, ends in self.calibration.intervals.items() if k in keys}
        update = {"intervals": intervals, "residual": 0.0}
        return self._replace(calibration=self.calibration.model_copy(update=update))

    def without(self, keys: Collection[str]) -> Known:
        """Drop the intervals of some keys, with a residual of 0."""
        whole = {key.rpartition(".")[0] for key in keys}  # shares of all protocols together
        intervals = {
            key: ends
            for key, ends in self.calibration.intervals.items()
            if key not in keys and key not in whole
        }
        update = {"intervals": intervals, "residual": 0.0}
        return self._replace(calibration=self.calibration.model_copy(update=update))

    def with_replaced(self, parts: Collection[str]) -> Known:
        """Drop the constants of parts that the scenario replaces."""
        if not parts:
            return self
        gone = tuple(key for part in parts for key in OF_PART[part])
        intervals = {
            key: ends
            for key, ends in self.calibration.intervals.items()
            if not key.startswith(gone)
        }
        calibration = self.calibration.model_copy(update={"intervals": intervals})
        return Known(self.place, calibration, tuple(sorted({*self.replaced, *parts})))


OWN = "measured.calibration"

POOL = "list constants"  # place of constants that are pooled over all clusters of a class

COST, DEVICE = "collectives.cost.", "cluster.device."

OF_PART = {
    "intra": tuple(
        COST + key for key in ("efficiency.intra", "hop.intra", "nvls_", "host_bandwidth", "peer")
    ),
    "inter": tuple(
        COST + key
        for key in (
            "efficiency.inter",
            "hop.inter",
            "flow_bandwidth",
            "nodes_exponent",
            "two_nodes",
            "network",
        )
    ),
    "device": ("cluster.device",),
    "cost": (COST,),
}
"""Leading parts of the keys of constants that were fitted to each part of a machine."""


def machine_calibration(name: str | None, base: Path) -> list[Known]:
    """Return the calibration of a machine; empty where it has none."""
    calibration = None if name is None else read_machine(name, base).calibration
    return [] if name is None or calibration is None else [Known(name, calibration)]


def variants(scenario: Scenario, known: Sequence[Known]) -> list[Variant]:
    """Make the scenarios with the ends of every interval that affects a point.

    The first entry of ``known`` with a constant counts. A machine's constant is skipped where the
    scenario overrides its value.

    Raises
    ------
    ScenarioError
        If a key of the scenario's own intervals does not exist, or its interval excludes the value.
    """
    cluster = scenario.cluster
    idle = IDLE["one rank"] if cluster.world_size == 1 else ()
    idle = idle or (IDLE["one node"] if cluster.num_nodes == 1 else ())
    raw = scenario.resolved()
    variant_of: dict[str, Variant] = {}
    for place, calibration, _ in known:
        own = place == OWN
        for key, ends in calibration.intervals.items():
            is_there = own or place == POOL or value_at(raw, key) is not None
            if key.startswith(idle) or key in variant_of or not is_there:
                continue
            where = f"{place}.intervals.{key}"
            low, high = (with_values(scenario, raw, {key: end}, where) for end in ends)
            ends_hold = is_between(*(value_at(side, key) for side in (low, scenario, high)))
            if place == POOL or ends_hold:
                variant_of[key] = Variant(key, low, high)
            elif own:
                raise ScenarioError(
                    f"{where}: {ends[0]} ... {ends[1]} excludes the "
                    "scenario's value; correct one of them."
                )
    return list(variant_of.values())


def cost_variants(cost: Cost, known: Sequence[Known]) -> list[tuple[Cost, Cost]]:
    """Make the pairs of costs with the ends of every interval that affects a cost.

    A machine's constant is skipped where the cost overrides its value.
    """
    raw, pairs = cost.model_dump(mode="json"), []
    for place, calibration, _ in known:
        for key, ends in calibration.intervals.items():
            inside = key.removeprefix(COST)
            if inside == key or (place != POOL and value_at(cost, inside) is None):
                continue
            low, high = (_with_constant(cost, raw, inside, end, f"{place}: {key}") for end in ends)
            ends_hold = is_between(*(value_at(side, inside) for side in (low, cost, high)))
            if place == POOL or ends_hold:
                pairs.append((low, high))
    return pairs


def _with_constant(cost: Cost, raw: dict[str, object], key: str, value: object, where: str) -> Cost:
    changed = copy.deepcopy(raw)
    set_key(changed, key, value)
    try:
        return type(cost).model_validate(changed)
    except ValidationError as error:
        raise ScenarioError([f"{where}: {p.line}" for p in problems(error, changed)]) from None


def residual(known: Sequence[Known]) -> float:
    """Relative standard deviation that the fits leave unexplained."""
    return sqrt(sum(source.calibration.residual**2 for source in known))


def spread(time: float, ends: Sequence[tuple[float, float]], rest: float) -> Interval:
    """Combine the effects of constants on a time [s] as independent errors.

    Each side of the interval is the root of the squared changes to that side and of the squared
    rest. ``ends`` are the times with one constant at either end of its 90 % interval; ``rest`` is
    the relative standard deviation of all other errors.
    """
    square = (NORMAL_90 * rest * time) ** 2
    down = sum(min(0.0, low - time, high - time) ** 2 for low, high in ends)
    up = sum(max(0.0, low - time, high - time) ** 2 for low, high in ends)
    return Interval(max(time - sqrt(down + square), 0.0), time + sqrt(up + square))


def is_between(low: object, value: object, high: object) -> bool:
    """Whether a number lies between two ends, given in either order."""
    numbers = [number for number in (low, value, high) if isinstance(number, int | float)]
    if len(numbers) < 3:
        return False
    one_end, middle, other_end = numbers
    slack = ROUNDING * max(abs(one_end), abs(other_end))
    return bool(min(one_end, other_end) - slack <= middle <= max(one_end, other_end) + slack)


Seconds = Callable[[Sequence[Scenario]], Sequence[float]]
"""Simulates scenarios; returns their times [s]."""


def interval(time: float, scenario: Scenario, known: Sequence[Known], seconds: Seconds) -> Interval:
    """Compute the 90 % interval of a time [s] from its constants' intervals."""
    return interval_of_pairs(time, pairs_of(scenario, known), known, seconds)


def pairs_of(scenario: Scenario, known: Sequence[Known]) -> list[tuple[Scenario, Scenario]]:
    """Return the scenarios of `variants` as pairs without keys."""
    return [(variant.low, variant.high) for variant in variants(scenario, known)]


def interval_of_pairs(
    time: float,
    pairs: Sequence[tuple[Scenario, Scenario]],
    known: Sequence[Known],
    seconds: Seconds,
) -> Interval:
    """Compute `interval` from given pairs of scenarios, one per constant."""
    times = seconds([*(low for low, _ in pairs), *(high for _, high in pairs)])
    ends = list(zip(times[: len(pairs)], times[len(pairs) :], strict=True))
    return spread(time, ends, residual(known))


# Pooled constants ---------------------------------------------------------------------------------

STRUCTURE = ("kind", "algorithms", "protocols", "stages", "flows_per_pair", "peer", "network")
"""Keys of NCCL's cost that describe the software or hardware: they are set, never fitted."""

OVERHEADS = "cluster.overheads."

STRAGGLERS = "cluster.stragglers."

LISTED = "python -m simdp list constants"

NETWORK_CLASS = f"{COST}network"

MOST = 1.0  # largest share of a bandwidth

NVLS = 0.17
"""Spread of NVLS's share over sites. Four H100 nodes (0.67 to 0.71) suggest less, but all have the
same kind of switch."""


def with_pool(known: Sequence[Known], scenario: Scenario) -> list[Known]:
    """Add the pooled constants that a point uses to those of its machine or of the scenario."""
    called = {name for name, _ in scenario.calls()}
    over_links = not called.isdisjoint(scenario.collectives.over_links or ())
    cost, cluster = scenario.collectives.cost, scenario.cluster
    calibrations = with_pool_of(known, cost, cluster, scenario.base, over_links)
    return [*calibrations, *_guessed_class(scenario, calibrations), *_host_class(scenario)]


HOST_KEY = "workload.host."

SLOWEST_HOST, FASTEST_HOST, NAMED_HOST = 1.28, 2.3, 1.28
"""Factors of host times, up and down, within which 90 % of hosts lie: of a host that is not named
(20 to 59 us per operator: those of ``list hosts``), and of a named class (36 to 59 us)."""


def _host_class(scenario: Scenario) -> list[Known]:
    """Add intervals of host times that the scenario does not give itself."""
    host = scenario.strategy.host_of(scenario.workload, scenario.cluster.world_size)
    given = scenario.workload.host
    faster = FASTEST_HOST if given.name is None else NAMED_HOST
    ends = dict[str, list[Any]]()
    replicates = scenario.strategy.in_one_process
    for key in ("operator", "replicate") if replicates else ("operator",):
        value, own = getattr(host, key), getattr(given, key)
        if value and (own is None or given.name is not None):
            ends[HOST_KEY + key] = [f"{value / faster} s", f"{value * SLOWEST_HOST} s"]
    if not ends:
        return []
    return [Known(POOL, Calibration(data="hosts of python -m simdp list hosts", intervals=ends))]


def _guessed_class(scenario: Scenario, known: Sequence[Known]) -> list[Known]:
    """Add the network's other class as an interval, where no link between nodes has a transport."""
    cost, inter = scenario.collectives.cost, scenario.cluster.inter_node
    wiring = wiring_of(scenario.cluster)
    if not isinstance(cost, NcclCost) or inter is None or wiring.num_nodes == 1:
        return []
    links = inter.links(scenario.cluster.num_nodes)
    is_open = cost.network is None and all(link.transport is None for link in links)
    if not is_open or f"{COST}efficiency.inter" not in (
        key for source in known if source.place == POOL for key in source.calibration.intervals
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
    """Add pooled constants for a cost on a cluster.

    Constants of parts that the cluster replaces are dropped: the pool's class takes their place.
    With ``over_links`` some collectives use simulated links.
    """
    parts = replaced_parts(cluster, base) if known else ()
    if cluster.world_size > 1 and (over_links or not cost.timed) and _have_costs(known):
        parts = (*parts, "cost")
    kept = [
        source if source.place in (OWN, POOL) else source.with_replaced(parts) for source in known
    ]
    return [*kept, *known_of_cost(cost, wiring_of(cluster), replaced=parts)]


def known_of_cost(
    cost: Cost, wiring: Wiring, without: Collection[str] = (), replaced: Collection[str] = ()
) -> list[Known]:
    """Return the pool's intervals, at most one `Known`, of shares that a cost does not give.

    Only NCCL's model has shares of bandwidth. The wiring's classes count where the cost names none.
    ``without`` lists machines to exclude from the pool, ``replaced`` the places, ``intra`` and
    ``inter``, whose shares the cost gives for other hardware.
    """
    if not isinstance(cost, NcclCost):
        return []
    if wiring.world_size == 1:  # no transfers, so no constants
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
            share_end["nvls"] for share_end in _ends({"nvls": share}, NVLS)
        ]
    return [Known(POOL, Calibration(data=LISTED, intervals=intervals))]


def _places(cost: NcclCost, w: Wiring) -> Iterator[tuple[str, float, tuple[str, str]]]:
    """Yield each place of transfers, its bandwidth [bytes/s] and its class in the pool."""
    if w.local_size > 1:
        yield "intra", w.intra_bandwidth, ("peer", cost.peer or w.peer)
    if w.num_nodes > 1:
        yield "inter", w.inter_bandwidth, ("network", cost.network or w.network)


def _ends(shares: dict[str, float], spread: float) -> list[dict[str, float]]:
    """Both ends of the 90 % intervals of fully correlated shares."""
    reach = exp(NORMAL_90 * spread)
    return [
        {name: min(share * factor, max(share, MOST)) for name, share in shares.items()}
        for factor in (1 / reach, reach)
    ]


def is_unmeasured(known: Sequence[Known]) -> bool:
    """Whether no constant of the collectives was fitted on the cluster itself.

    Also true where the scenario replaces the machine's links, or simulates links where a cost was
    fitted.
    """
    if any(not {"intra", "inter", "cost"}.isdisjoint(source.replaced) for source in known):
        return True
    return {source.place for source in known if _have_costs([source])} == {POOL}


def _have_costs(known: Sequence[Known]) -> bool:
    """Whether any of the constants belongs to the collectives' cost."""
    return any(key.startswith(COST) for source in known for key in source.calibration.intervals)


def as_unmeasured(scenario: Scenario) -> tuple[Scenario, list[Known]]:
    """Remove the constants that were fitted to a scenario's cluster; values of its class remain.

    Those of its device are the catalogue's.

    The machine's site is left out of the pool. Returns the scenario, and the pool's intervals for
    it.
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
        others = [s for index, s in enumerate(cluster.stragglers) if str(index) not in fitted]
        update["stragglers"] = others
    if (device := _of_data_sheet(scenario, keys)) is not None:
        update["device"] = device
    stripped = scenario.model_copy(update={"cluster": cluster.model_copy(update=update)})
    if not isinstance(cost, NcclCost):
        return stripped, []
    wiring = wiring_of(cluster)
    without = [cluster.machine] if cluster.machine else []
    free = {*NcclCost.model_fields}.difference(STRUCTURE)  # not those of a class from outside
    fields = [key for key in type(cost).model_fields if key not in free]  # without cached values
    kept = type(cost).model_validate({key: getattr(cost, key) for key in fields})
    known = known_of_cost(kept, wiring, without)
    shares = {
        place: {name: share_of(*of_class, name, bandwidth, without) for name in PAYLOAD}
        for place, bandwidth, of_class in _places(kept, wiring)
    }
    bare = kept.model_copy(update={"efficiency": Efficiencies.model_validate(shares)})
    collectives = scenario.collectives.model_copy(update={"cost": bare})
    return stripped.model_copy(update={"collectives": collectives}), known


def _of_data_sheet(scenario: Scenario, keys: Sequence[str]) -> Device | None:
    """Return the device with the catalogue's values of fitted constants, each as one number.

    None if no constant of the device was fitted, or the catalogue lacks it.
    """
    device = scenario.cluster.device
    fitted = [key.removeprefix(DEVICE) for key in keys if key.startswith(DEVICE)]
    if not fitted or not isinstance(device, Device) or device.name not in DEVICES.names():
        return None
    listed = Device.model_validate(DEVICES.figures(device.name))
    values = {name: getattr(listed, name) for name in fitted}
    if isinstance(values.get("efficiency"), dict):
        values["efficiency"] = values["efficiency"][precision_of(scenario)]
    flash = values.get("flash_efficiency")
    if isinstance(flash, FlashEfficiency):
        seconds = 1 / flash.forward + BACKWARD_PRODUCTS / flash.backward
        values["flash_efficiency"] = (1 + BACKWARD_PRODUCTS) / seconds
    return device.model_copy(update=values)


def fitted_keys(scenario: Scenario) -> list[str]:
    """Keys of the fitted constants of a scenario and of its machine's calibration."""
    known = machine_calibration(scenario.cluster.machine, scenario.base)
    if scenario.measured is not None and scenario.measured.calibration is not None:
        known.append(Known(OWN, scenario.measured.calibration))
    return list(dict.fromkeys(key for source in known for key in source.calibration.intervals))


# New collectives ----------------------------------------------------------------------------------

LARGE, MIDDLE = 1 << 20, 1 << 16
"""Sizes from which bandwidth, and from which the choice of a protocol dominates [bytes]."""

NOVELTY_SPREAD = {
    "size": {"large": 0.10, "middle": 0.35, "small": 0.06},
    "collective": {"large": 0.35, "middle": 0.37, "small": 0.74},
    "nodes": {"large": 0.19, "middle": 0.38, "small": 0.26},
    "network": {"large": 0.35, "middle": 0.62, "small": 0.62},
    "cluster": {"large": 0.35, "middle": 0.68, "small": 0.55},
    "both": {"large": 0.48, "middle": 1.08, "small": 0.98},
}
"""Standard deviations of the logarithm of a time, by the property that is new: the value that puts
90 % of the errors inside, without the other entries that apply. ``size``, which always applies: 50
tables of 22 clusters. ``nodes``: 17 tables of 4 clusters. ``collective``: 5 tables of 2 clusters;
``both``, another collective on other nodes, is added to these: 6 tables of 2 clusters. ``network``,
between nodes where all tables have one node, has no table: large sizes take the spread of the NICs'
shares over clusters (0.35), smaller ones more than new nodes. ``cluster``: 78 tables, each
predicted without its site, in addition to the spread of the pool's shares."""


def collective_novelty(known: Sequence[Known], collective: str, num_nodes: int) -> tuple[str, ...]:
    """List the new properties of a collective; ``cluster`` where none was fitted on it."""
    if is_unmeasured(known):
        return ("cluster",)
    return novelty_of(tables_of(known), collective, num_nodes)


def novelty_of(
    tables: Mapping[str, Sequence[int]], collective: str, num_nodes: int
) -> tuple[str, ...]:
    """List the properties of a collective that no fitted table has; keys of `NOVELTY_SPREAD`.

    ``tables`` are the node counts of the machine's calibration by collective; without any, nothing
    is new.
    """
    if not tables:
        return ()
    everywhere = {nodes for node_counts in tables.values() for nodes in node_counts}
    new = [] if collective in tables else ["collective"]
    if num_nodes > 1 and max(everywhere) == 1:
        new.append("network")
    elif num_nodes not in (tables.get(collective) or everywhere):
        new.append("nodes")
    return tuple(new)


def tables_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """Return all tables that constants were fitted to: node counts by collective."""
    return _all_nodes(source.calibration.tables for source in known)


def _all_nodes(fits: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    return grouped((name, count) for nodes in fits for name in nodes for count in nodes[name])


def collective_novelty_spread(new: Sequence[str], nbytes: float) -> float:
    """Standard deviation of the logarithm of a time, by size [bytes] and new properties."""
    size = "large" if nbytes >= LARGE else "middle" if nbytes >= MIDDLE else "small"
    both = ["both"] if "collective" in new and "nodes" in new else []
    return hypot(*(NOVELTY_SPREAD[name][size] for name in ("size", *new, *both)))


def collective_interval(
    time: float,
    ends: Sequence[tuple[float, float]],
    known: Sequence[Known],
    new: Sequence[str],
    nbytes: float,
) -> Interval:
    """Compute the 90 % interval of a collective's time [s]; ``new`` is a `collective_novelty`."""
    inside = spread(time, ends, residual(known))
    return widened(time, inside, collective_novelty_spread(new, nbytes))


def widened(time: float, interval: Interval, deviation: float) -> Interval:
    """Widen the 90 % interval of a time [s] by an independent error.

    ``deviation`` is the standard deviation of the time's logarithm.
    """
    if not deviation or not time:
        return interval
    reach = NORMAL_90 * deviation
    down = hypot(log(time / interval.low), reach) if interval.low else inf
    return Interval(time * exp(-down), time * exp(hypot(log(interval.high / time), reach)))


# New steps ----------------------------------------------------------------------------------------

SPREAD = {
    "model": 0.21,
    "kind": 0.21,
    "nodes": 0.16,
    "network": 0.35,
    "device": 0.21,
    "precision": 0.21,
    "cluster": 0.6,
}
"""Standard deviations of the logarithm of a step that is all exposed communication, by the property
that is new. ``model``: 279 points of 3 clusters without RDMA and NVLink, ResNet-18 and YOLOv3.
``kind``, a kind of models instead of a model: as of a model, see `SOFTWARE`.
``nodes`` and ``network``: as of large collectives, since the steps at hand (27 of one cluster,
which need 0.1; and 5 that hide all communication) are too few. ``device`` and ``precision`` change
how much communication is hidden, as a model does: as of a model. ``cluster``, in addition to the
spread of the pool's shares: 1,050 steps of 19 sites, each predicted without its own."""

LEAST = 0.03
"""Least standard deviation of a new property, for steps with little communication: with it, 95 % of
131 points of 14 clusters with a new model, which wait 1 % of their steps, lie inside; and 90 % of
116 points of 6 clusters without any fitted step (83 % without it)."""


SOFTWARE = {"cluster": 0.055, "device": 0.055, "kind": 0.045}
"""Least standard deviation of a new cluster or device: hooks, launches, jitter and contention
between kernels make steps of nodes with NVLink 5 to 6 % longer than those of a cluster written by
hand. ``kind``: 245 steps of 14 clusters, each predicted without its kind of models, with the values
of the other clusters: 91 % of the points lie inside, 89 % on average over clusters, with a median
width of 1.12."""

BY_DATA_SHEET = 0.24
"""Standard deviation of the logarithm of compute that is predicted from the catalogue alone: 67
steps of MPT, 125M to 30B, on 8 A100 or H100 (scenarios/validation/mosaic), samples of 512 to 65,536
tokens, by catalogue devices in place of that machine's."""


def steps_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """Return the steps that constants were fitted to: node counts by model."""
    return _all_nodes(source.calibration.steps for source in known)


def step_novelty(
    steps: Mapping[str, Sequence[int]], model: str, num_nodes: int, world_size: int
) -> tuple[str, ...]:
    """List the properties of a step that no fitted step has; keys of `SPREAD`.

    ``steps`` are as from `steps_of`; without any, and on one rank, nothing is new.
    """
    if not steps or world_size == 1:
        return ()
    everywhere = {nodes for node_counts in steps.values() for nodes in node_counts}
    new = [] if model in steps else ["model"]
    return (*new, *more_nodes(steps.get(model) or everywhere, everywhere, num_nodes))


@cache
def family_of(model: str) -> Family:
    """Kind of a preset, see `ModelGraph.family`; ``unknown`` for any other name."""
    from simdp.workload.models import PRESETS, read_model

    return read_model(model).graph.family if model in PRESETS.names() else "unknown"


def as_kind(new: Sequence[str], family: Family, fitted: Collection[Family]) -> list[str]:
    """Replace ``model`` by ``kind`` where no fitted model is of a step's family."""
    is_kind = fitted and "unknown" not in (family, *fitted) and family not in fitted
    return ["kind" if name == "model" and is_kind else name for name in new]


def more_nodes(seen: Collection[int], everywhere: Collection[int], num_nodes: int) -> list[str]:
    """Return ``nodes`` beyond the fitted node counts, ``network`` where only one node was fitted.

    ``seen`` are the node counts of the fits that match the prediction, ``everywhere`` those of all.
    """
    if not everywhere:
        return []
    if num_nodes > 1 and max(everywhere) == 1:
        return ["network"]
    return ["nodes"] if num_nodes > max(seen) else []


def scenario_novelty(scenario: Scenario, known: Sequence[Known]) -> tuple[str, ...]:
    """List the properties of a scenario's step that no fitted step has; keys of `SPREAD`."""
    cluster = scenario.cluster
    if cluster.world_size == 1:
        return ()
    if is_unmeasured(known):
        return ("cluster",)
    if steps := steps_of(known):
        new = list(step_novelty(steps, name_of(scenario), cluster.num_nodes, cluster.world_size))
        new = as_kind(new, scenario.workload.graph.family, {family_of(model) for model in steps})
    else:  # for the network, tables of collectives count too
        tables = {nodes for node_counts in tables_of(known).values() for nodes in node_counts}
        of_machine = any(source.place not in (OWN, POOL) for source in known)
        new = ["model"] * (of_machine and not fits_devices(known))
        new += more_nodes(tables, tables, cluster.num_nodes)
    new += ["device"] * any("device" in source.replaced for source in known)
    new += ["precision"] * has_new_precision(scenario, known)
    return tuple(new)


def precision_of(scenario: Scenario) -> str:
    """Return the dtype of a scenario's matrix products."""
    workload = scenario.workload
    return workload.precision.low or workload.dtype


def has_new_precision(scenario: Scenario, known: Sequence[Known]) -> bool:
    """Whether constants were fitted to steps, but to none of this precision."""
    fitted = {dtype for source in known for dtype in source.calibration.precisions}
    return bool(fitted) and precision_of(scenario) not in fitted


def name_of(scenario: Scenario) -> str:
    """Name the model of a scenario."""
    return model_name({"model": scenario.workload.model.model_dump(mode="json")})


def step_novelty_spread(new: Sequence[str], exposed: float) -> float:
    """Standard deviation of the logarithm of a step's time by new properties.

    ``exposed`` is the share of the step that is exposed communication, 0 to 1.
    """
    return hypot(*(max(SPREAD[name] * exposed, SOFTWARE.get(name, LEAST)) for name in new))


def step_interval(
    metrics: Metrics,
    scenario: Scenario,
    known: Sequence[Known],
    seconds: Callable[[Sequence[Scenario]], Sequence[float]],
) -> Interval:
    """Compute the 90 % interval of a step's time [s] with ``metrics``; else as `interval`."""
    time = float(metrics.step_time_s)
    known = with_pool(known, scenario)
    ends = interval(time, scenario, known, seconds)
    return widened(time, ends, deviation(metrics, scenario, known))


def deviation_of(low: float, high: float) -> float:
    """Standard deviation of a logarithm by the ends of its 90 % interval."""
    return log(high / low) / (2 * NORMAL_90)


def deviation(metrics: Metrics, scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by errors outside its constants' intervals.

    ``known`` includes the pool's constants.
    """
    more = step_novelty_spread(scenario_novelty(scenario, known), exposed_part(metrics, scenario))
    return hypot(more, by_data_sheet(metrics, scenario, known), by_scaling(metrics, scenario))


def by_data_sheet(metrics: Metrics, scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by compute that is predicted from data sheets.

    0 for devices that the scenario describes itself. Measurements in one precision do not apply to
    another.
    """
    names = {device.name for device in scenario.cluster.devices()}
    fitted = fits_devices(known) and not has_new_precision(scenario, known)
    measured = scenario.workload.compute.source != "roofline" or fitted
    time = float(metrics.step_time_s)
    if not known or measured or not names & set(DEVICES.names()) or not time:
        return 0.0
    return BY_DATA_SHEET * float(metrics.compute_s + metrics.update_s) / time


def fits_devices(known: Sequence[Known]) -> bool:
    """Whether a device's constants were fitted, which takes steps."""
    return any(key.startswith(DEVICE) for source in known for key in source.calibration.intervals)


def by_scaling(metrics: Metrics, scenario: Scenario) -> float:
    """Standard deviation of a step's logarithm by compute that was measured on another device.

    The share of the peak that a kernel reaches differs between devices: both ends of the ratio are
    as uncertain as data sheets.
    """
    time = float(metrics.step_time_s)
    if not is_scaled(scenario):
        return 0.0
    compute = float(metrics.compute_s + metrics.update_s)
    return BY_DATA_SHEET * compute / time if time else 0.0


def is_scaled(scenario: Scenario) -> bool:
    """Whether compute was measured, but on another device."""
    spec, devices = scenario.workload.compute, scenario.cluster.devices()
    if isinstance(spec, FromMeasurements):
        points = [point for device in devices for point in spec.of_device(device.name)]
        return any(point.measured_on not in (None, point.device) for point in points)
    return isinstance(spec, FromProfile) and not all(is_measured_on(spec, gpu) for gpu in devices)


def _mean_slowdown(metrics: Metrics, scenario: Scenario) -> float:
    """Relative increase of compute time beside a step's collectives, at their mean bandwidth."""
    rule = scenario.cluster.overheads.compute_slowdown
    if not isinstance(rule, Contention):
        return rule
    steps = float(metrics.simulated_s) / float(metrics.step_time_s)
    seconds = float(metrics.comm_s) * steps
    sent = max(metrics.bytes_sent_per_rank, default=0.0)
    bandwidth = sent / seconds if seconds else 0.0
    return rule.slowdown(scenario.cluster.devices()[0], bandwidth, bandwidth)


def exposed_part(metrics: Metrics, scenario: Scenario) -> float:
    """Share of a step that communication adds to it, 0 to 1.

    Exposed communication and waiting, plus the slowdown of the compute that hides the rest:
    overlapped compute takes ``1 + compute_slowdown`` times as long.
    """
    time = float(metrics.step_time_s)
    if not time:
        return 0.0
    slowdown = _mean_slowdown(metrics, scenario)
    exposed, waited = float(metrics.exposed_comm_s), float(metrics.wait_s)
    hidden = max(float(metrics.comm_s) - exposed, 0.0)
    stretched = hidden * slowdown / (1.0 + slowdown)
    return min((exposed + waited + stretched) / time, 1.0)
