"""Prediction intervals.

Intervals of constants tell what the fitted tables leave open. They cannot tell what was not looked
at: another collective has paths of its own, more nodes share switches. How far such predictions
were off is in `SPREAD`, from the tables of ``scenarios/validation/nccl-tests`` that no constant was
fitted to (``python -m benchmarks.novelty`` finds them again).

As `simdp.studies.intervals` for collectives: a model that no constant was fitted to has
another share of its step beside which gradients travel, and other work on the host; more nodes
share switches. It shows where a step waits for the network, and so a spread is that of the part of
a step that communication leaves exposed. `SPREAD` is from the points of ``scenarios/validation``
that no constant was fitted to (``python -m benchmarks.new_steps`` finds them again).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import exp, hypot, inf, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.cluster.hardware import DEVICES, Calibration, read_machine
from simdp.collectives.costs import Cost, Wiring
from simdp.collectives.costs.nccl import PAYLOAD, Efficiencies, NcclCost, pooled, share_of
from simdp.engine.compute.profile_times import is_measured_on
from simdp.errors import ScenarioError
from simdp.phrases import problems
from simdp.reports.captions import model_name
from simdp.scenario import Scenario
from simdp.scenario.overrides import set_key
from simdp.scenario.placement import wiring_of
from simdp.scenario.remarks import replaced_parts
from simdp.studies.variants import value_at, with_values
from simdp.workload.compute import FromProfile

# Intervals ----------------------------------------------------------------------------------------

NORMAL_90 = 1.645
"""Standard deviations on either side that hold 90 % of a normal distribution."""

ROUNDING = 1e-9
"""By which a value may lie outside its interval."""

IDLE = {
    "one node": ("cluster.inter_node.",),
    "one rank": ("cluster.inter_node.", "cluster.link.", "collectives."),
}
"""Constants that decide nothing where there is one node, or one rank."""


class Variant(NamedTuple):
    """A constant, and the scenarios with either end of its interval."""

    key: str
    low: Scenario
    high: Scenario


class Interval(NamedTuple):
    """The 90 % interval of a simulated time [s]."""

    low: float
    high: float


class Known(NamedTuple):
    """How well some constants are known.

    Attributes
    ----------
    place : str
        Where that stands; a scenario's own are ``OWN``.
    calibration : Calibration
        The constants' intervals, and what they were fitted to.
    replaced : tuple of str
        Parts of the machine that the scenario has in another form, and whose constants are left
        out of the intervals: ``intra``, ``inter``, ``device``; ``cost`` where links are played.
    """

    place: str
    calibration: Calibration
    replaced: tuple[str, ...] = ()

    def only(self, keys: Collection[str]) -> Known:
        """The same with some constants alone, and without what all of them leave unexplained."""
        intervals = {k: ends for k, ends in self.calibration.intervals.items() if k in keys}
        update = {"intervals": intervals, "residual": 0.0}
        return self._replace(calibration=self.calibration.model_copy(update=update))

    def without(self, keys: Collection[str]) -> Known:
        """The same without some constants, and without what all of them leave unexplained."""
        whole = {key.rpartition(".")[0] for key in keys}  # shares of all protocols together
        intervals = {
            key: ends
            for key, ends in self.calibration.intervals.items()
            if key not in keys and key not in whole
        }
        update = {"intervals": intervals, "residual": 0.0}
        return self._replace(calibration=self.calibration.model_copy(update=update))

    def with_replaced(self, parts: Collection[str]) -> Known:
        """The same for a scenario that writes some parts of the machine anew."""
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

POOL = "list constants"
"""Place of what is known of every cluster of a class."""

COST = "collectives.cost."

OF_PART = {
    "intra": tuple(
        COST + key for key in ("efficiency.intra", "hop.intra", "nvls_", "host_bandwidth", "peer")
    ),
    "inter": tuple(
        COST + key
        for key in ("efficiency.inter", "hop.inter", "flow_bandwidth", "two_nodes", "network")
    ),
    "device": ("cluster.device",),
    "cost": (COST,),
}
"""Keys of the constants that were fitted to a part of a machine, by what they begin with."""


def machine_calibration(name: str | None, base: Path) -> list[Known]:
    """What is known of a machine's constants; nothing where none were fitted."""
    found = None if name is None else read_machine(name, base).calibration
    return [] if name is None or found is None else [Known(name, found)]


def variants(scenario: Scenario, known: Sequence[Known]) -> list[Variant]:
    """Make the scenarios with the ends of every interval that bears on a point.

    Parameters
    ----------
    scenario : Scenario
        One point.
    known : sequence of Known
        The first that knows a constant counts. A machine's constant is passed over where the
        scenario has another value in its place.

    Raises
    ------
    ScenarioError
        If an interval of the scenario's own has no such key, or does not hold its value.
    """
    cluster = scenario.cluster
    idle = IDLE["one rank"] if cluster.world_size == 1 else ()
    idle = idle or (IDLE["one node"] if cluster.num_nodes == 1 else ())
    raw = scenario.resolved()
    found: dict[str, Variant] = {}
    for place, calibration, _ in known:
        own = place == OWN
        for key, ends in calibration.intervals.items():
            is_there = own or place == POOL or value_at(raw, key) is not None
            if key.startswith(idle) or key in found or not is_there:
                continue
            where = f"{place}.intervals.{key}"
            low, high = (with_values(scenario, raw, {key: end}, where) for end in ends)
            ends_hold = is_between(*(value_at(one, key) for one in (low, scenario, high)))
            if place == POOL or ends_hold:
                found[key] = Variant(key, low, high)
            elif own:
                raise ScenarioError(
                    [
                        f"{where}: {ends[0]} ... {ends[1]} does not hold the "
                        "scenario's value; correct one of them."
                    ]
                )
    return list(found.values())


def cost_variants(cost: Cost, known: Sequence[Known]) -> list[tuple[Cost, Cost]]:
    """Make the costs with the ends of every interval of a machine that bears on one.

    Parameters
    ----------
    cost : Cost
        A constant for which it has another value than the machine is passed over.
    known : sequence of Known
        What is known of the machine's constants.
    """
    raw, found = cost.model_dump(mode="json"), []
    for place, calibration, _ in known:
        for key, ends in calibration.intervals.items():
            inside = key.removeprefix(COST)
            if inside == key or (place != POOL and value_at(cost, inside) is None):
                continue
            low, high = (_with_constant(cost, raw, inside, end, f"{place}: {key}") for end in ends)
            ends_hold = is_between(*(value_at(one, inside) for one in (low, cost, high)))
            if place == POOL or ends_hold:
                found.append((low, high))
    return found


def _with_constant(cost: Cost, raw: dict[str, Any], key: str, value: Any, where: str) -> Cost:
    changed = copy.deepcopy(raw)
    set_key(changed, key, value)
    try:
        return type(cost).model_validate(changed)
    except ValidationError as error:
        raise ScenarioError([f"{where}: {p.line}" for p in problems(error, changed)]) from None


def residual(known: Sequence[Known]) -> float:
    """Standard deviation of what the fits of constants leave unexplained; relative."""
    return sqrt(sum(one.calibration.residual**2 for one in known))


def spread(time: float, ends: Sequence[tuple[float, float]], rest: float) -> Interval:
    """Put the effects of constants on a time together, as if they were independent.

    Parameters
    ----------
    time : float
        With every constant at its value [s].
    ends : sequence of (float, float)
        With one constant at either end of its 90 % interval [s].
    rest : float
        Relative standard deviation of everything else.

    Returns
    -------
    Interval
        Down and up, each the root of the squares of the changes to that side, and of the rest's.
    """
    square = (NORMAL_90 * rest * time) ** 2
    down = sum(min(0.0, low - time, high - time) ** 2 for low, high in ends)
    up = sum(max(0.0, low - time, high - time) ** 2 for low, high in ends)
    return Interval(max(time - sqrt(down + square), 0.0), time + sqrt(up + square))


def is_between(low: Any, value: Any, high: Any) -> bool:
    """Whether a number lies between two ends, in whichever order these are."""
    if not all(isinstance(one, int | float) for one in (low, value, high)):
        return False
    low, high = min(low, high), max(low, high)
    slack = ROUNDING * max(abs(low), abs(high))
    return bool(low - slack <= value <= high + slack)


Seconds = Callable[[Sequence[Scenario]], Sequence[float]]
"""Simulates scenarios [s]."""


def interval(time: float, scenario: Scenario, known: Sequence[Known], seconds: Seconds) -> Interval:
    """Find the 90 % interval of a time.

    Parameters
    ----------
    time : float
        Of the scenario [s].
    scenario : Scenario
        One point.
    known : sequence of Known
        How well its constants are.
    seconds : callable
        Simulates others.
    """
    return interval_of_pairs(time, pairs_of(scenario, known), known, seconds)


def pairs_of(scenario: Scenario, known: Sequence[Known]) -> list[tuple[Scenario, Scenario]]:
    """The scenarios of `variants`, without their keys."""
    return [(one.low, one.high) for one in variants(scenario, known)]


def interval_of_pairs(
    time: float,
    pairs: Sequence[tuple[Scenario, Scenario]],
    known: Sequence[Known],
    seconds: Seconds,
) -> Interval:
    """As `interval`, with pairs of scenarios that have something at either end of its interval."""
    each = seconds([*(low for low, _ in pairs), *(high for _, high in pairs)])
    ends = list(zip(each[: len(pairs)], each[len(pairs) :], strict=True))
    return spread(time, ends, residual(known))


# Unmeasured ---------------------------------------------------------------------------------------

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


# Novelty ------------------------------------------------------------------------------------------

LARGE, MIDDLE = 1 << 20, 1 << 16
"""Sizes from which wires rule, and from which the choice of a protocol does [bytes]."""

NOVELTY_SPREAD = {
    "size": {"large": 0.10, "middle": 0.35, "small": 0.06},
    "collective": {"large": 0.35, "middle": 0.37, "small": 0.74},
    "nodes": {"large": 0.19, "middle": 0.38, "small": 0.26},
    "network": {"large": 0.35, "middle": 0.62, "small": 0.62},
    "cluster": {"large": 0.35, "middle": 0.68, "small": 0.55},
    "both": {"large": 0.48, "middle": 1.08, "small": 0.98},
}
"""Standard deviations of logarithms, by what is new: what it takes to have 90 % of the errors
inside, less what is new beside it. ``size``, which always is: 50 tables of 22 clusters. ``nodes``:
17 tables of 4 clusters. ``collective``: 5 tables of 2 clusters; ``both``, another collective on
other nodes, comes on top: 6 tables of 2 clusters. ``network``: between nodes, where all tables are
of one; no table of ours tells: large sizes have the spread that shares of network cards have over
clusters (0.35), smaller ones that of new nodes, and more. ``cluster``: 78 tables, each predicted
without its site, beside the spread of the pool's shares."""


def news(known: Sequence[Known], collective: str, num_nodes: int) -> tuple[str, ...]:
    """Tell what a prediction has that is new to what its constants were fitted to.

    Arguments as for `what_is_new`; the whole cluster is new where none was fitted on it.
    """
    if is_unmeasured(known):
        return ("cluster",)
    return novelty_of(tables_of(known), collective, num_nodes)


def novelty_of(
    tables: Mapping[str, Sequence[int]], collective: str, num_nodes: int
) -> tuple[str, ...]:
    """Tell what a prediction has that no fitted table had; keys of `SPREAD`.

    Parameters
    ----------
    tables : mapping of str to sequence of int
        Of the machine's calibration; one without any tells nothing.
    collective : str
        What is predicted.
    num_nodes : int
        Between how many nodes.
    """
    if not tables:
        return ()
    everywhere = {nodes for each in tables.values() for nodes in each}
    new = [] if collective in tables else ["collective"]
    if num_nodes > 1 and max(everywhere) == 1:
        new.append("network")
    elif num_nodes not in (tables.get(collective) or everywhere):
        new.append("nodes")
    return tuple(new)


def tables_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """The tables to which constants were fitted, of all that is known."""
    found: dict[str, list[int]] = {}
    for one in known:
        for collective, nodes in one.calibration.tables.items():
            found.setdefault(collective, []).extend(nodes)
    return found


def extrapolated(new: Sequence[str], nbytes: float) -> float:
    """Standard deviation of the logarithm that a size [bytes] and what is new add to a time."""
    size = "large" if nbytes >= LARGE else "middle" if nbytes >= MIDDLE else "small"
    both = ["both"] if "collective" in new and "nodes" in new else []
    return hypot(*(NOVELTY_SPREAD[each][size] for each in ("size", *new, *both)))


def told(
    time: float,
    ends: Sequence[tuple[float, float]],
    known: Sequence[Known],
    new: Sequence[str],
    nbytes: float,
) -> Interval:
    """The 90 % interval of a collective's time [s].

    Parameters
    ----------
    time, ends
        As `simdp.studies.intervals.spread` has them.
    known : sequence of Known
        How well the machine's constants are.
    new : sequence of str
        As from `what_is_new`.
    nbytes : float
        Size of the buffer [bytes].
    """
    return widened(time, spread(time, ends, residual(known)), extrapolated(new, nbytes))


def widened(time: float, interval: Interval, deviation: float) -> Interval:
    """Widen the 90 % interval of a time [s] by another, independent cause of error.

    Parameters
    ----------
    time, interval
        As `simdp.studies.intervals.spread` has them.
    deviation : float
        Standard deviation of the logarithm of the time.
    """
    if not deviation or not time:
        return interval
    reach = NORMAL_90 * deviation
    down = hypot(log(time / interval.low), reach) if interval.low else inf
    return Interval(time * exp(-down), time * exp(hypot(log(interval.high / time), reach)))


# New steps ----------------------------------------------------------------------------------------

SPREAD = {
    "model": 0.21,
    "nodes": 0.16,
    "network": 0.35,
    "device": 0.21,
    "precision": 0.21,
    "cluster": 0.6,
}
"""Standard deviations of the logarithm of a step, for a step that is all exposed communication.
``model``: 279 points of 3 clusters without RDMA and NVLink, ResNet-18 and YOLOv3. ``nodes`` and
``network``: as of large collectives, since the steps at hand (27 of one cluster, which need 0.1;
and 5 that hide all they send) tell less. ``device`` and ``precision``, which change how long
gradients have to travel beside, as a model does: as of a model. ``cluster``: beside the spread of
the pool's shares, of 1,050 steps of 19 sites, each predicted without its own."""

LEAST = 0.03
"""The same of what is new, however little of the step is communication: of 131 points of 14
clusters with a new model, which wait 1 % of their steps, 95 % lie inside with it."""


SOFTWARE = {"cluster": 0.055, "device": 0.055}
"""The same where the whole cluster is new, or its devices: hooks, launches, jitter and what kernels
take from each other make steps of boxes with NVLink 5 to 6 % longer than a cluster that is written
by hand."""

BY_DATA_SHEET = 0.24
"""Standard deviation of the logarithm of compute that the catalogue's figures tell alone: of 67
steps of MPT, 125M to 30B, on 8 A100 or H100 (scenarios/validation/mosaic), samples of 512 to 65,536
tokens, by catalogue devices in place of that machine's."""


def steps_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """Models, and on how many nodes each, to whose steps constants were fitted."""
    found: dict[str, list[int]] = {}
    for one in known:
        for model, nodes in one.calibration.steps.items():
            found.setdefault(model, []).extend(nodes)
    return found


def what_is_new(
    steps: Mapping[str, Sequence[int]], model: str, num_nodes: int, world_size: int
) -> tuple[str, ...]:
    """Tell what a prediction has that no fitted step had; keys of `SPREAD`.

    Parameters
    ----------
    steps : mapping of str to sequence of int
        As from `steps_of`; one without any tells nothing.
    model : str
        What is trained.
    num_nodes, world_size : int
        On how many nodes and ranks; one rank has nothing new.
    """
    if not steps or world_size == 1:
        return ()
    everywhere = {nodes for each in steps.values() for nodes in each}
    new = [] if model in steps else ["model"]
    return (*new, *more_nodes(steps.get(model) or everywhere, everywhere, num_nodes))


def more_nodes(seen: Collection[int], everywhere: Collection[int], num_nodes: int) -> list[str]:
    """Whether there are more nodes than constants were fitted to, or a network where none was.

    Parameters
    ----------
    seen, everywhere : collection of int
        Numbers of nodes of what is like the prediction, and of all that was fitted.
    num_nodes : int
        Of the prediction.
    """
    if not everywhere:
        return []
    if num_nodes > 1 and max(everywhere) == 1:
        return ["network"]
    return ["nodes"] if num_nodes > max(seen) else []


def new_of(scenario: Scenario, known: Sequence[Known]) -> tuple[str, ...]:
    """As `what_is_new`, of a scenario's step."""
    cluster = scenario.cluster
    if cluster.world_size == 1:
        return ()
    if is_unmeasured(known):
        return ("cluster",)
    if steps := steps_of(known):
        name = name_of(scenario)
        new = list(what_is_new(steps, name, cluster.num_nodes, cluster.world_size))
    else:  # of the network tables of collectives tell as much
        tables = {nodes for each in tables_of(known).values() for nodes in each}
        new = more_nodes(tables, tables, cluster.num_nodes)
    new += ["device"] * any("device" in one.replaced for one in known)
    new += ["precision"] * has_new_precision(scenario, known)
    return tuple(new)


def precision_of(scenario: Scenario) -> str:
    """The dtype that products of a scenario's step are computed in."""
    workload = scenario.workload
    return workload.precision.low or workload.dtype


def has_new_precision(scenario: Scenario, known: Sequence[Known]) -> bool:
    """Whether constants were fitted to steps, and to none of this precision."""
    fitted = {dtype for one in known for dtype in one.calibration.precisions}
    return bool(fitted) and precision_of(scenario) not in fitted


def name_of(scenario: Scenario) -> str:
    """Name the model that a scenario trains."""
    return model_name({"model": scenario.workload.model.model_dump(mode="json")})


def further(new: Sequence[str], exposed: float) -> float:
    """Standard deviation of the logarithm that new things add to a step's time.

    Parameters
    ----------
    new : sequence of str
        As from `what_is_new`.
    exposed : float
        The part of the step that communication takes which no compute hides, from 0 to 1.
    """
    return hypot(*(max(SPREAD[each] * exposed, SOFTWARE.get(each, LEAST)) for each in new))


def step_interval(
    metrics: Mapping[str, Any],
    scenario: Scenario,
    known: Sequence[Known],
    seconds: Callable[[Sequence[Scenario]], Sequence[float]],
) -> Interval:
    """Find the 90 % interval of a step's time [s].

    Parameters
    ----------
    metrics : mapping
        Of the step.
    scenario, known, seconds
        As `simdp.studies.intervals.interval` has them.
    """
    time = float(metrics["step_time_s"])
    known = with_pool(known, scenario)
    found = interval(time, scenario, known, seconds)
    return widened(time, found, deviation(metrics, scenario, known))


def deviation(metrics: Mapping[str, Any], scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by all that its constants' intervals do not hold.

    Parameters
    ----------
    metrics, scenario
        As for `step_interval`.
    known : sequence of Known
        With what the pool knows.
    """
    more = further(new_of(scenario, known), exposed_part(metrics, scenario))
    return hypot(more, by_data_sheet(metrics, scenario, known), by_scaling(metrics, scenario))


def by_data_sheet(metrics: Mapping[str, Any], scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by compute that nobody has measured.

    Of devices of the catalogue; those that a scenario describes itself are as it says. What a
    device reaches in one precision tells no more of another than its data sheet.
    """
    of_devices = any("cluster.device" in key for one in known for key in one.calibration.intervals)
    names = {device.name for device in scenario.cluster.devices()}
    fitted = of_devices and not has_new_precision(scenario, known)
    told = scenario.workload.compute.kind != "roofline" or fitted
    time = float(metrics["step_time_s"])
    if not known or told or not names & set(DEVICES.names()) or not time:
        return 0.0
    return BY_DATA_SHEET * float(metrics["compute_s"] + metrics["update_s"]) / time


def by_scaling(metrics: Mapping[str, Any], scenario: Scenario) -> float:
    """Standard deviation of a step's logarithm by compute that was measured on another device.

    What a kernel reaches of one device's figures, it may reach more or less of on another: both
    ends of the ratio are off as data sheets are.
    """
    time = float(metrics["step_time_s"])
    if not is_scaled(scenario):
        return 0.0
    compute = float(metrics["compute_s"] + metrics["update_s"])
    return BY_DATA_SHEET * compute / time if time else 0.0


def is_scaled(scenario: Scenario) -> bool:
    """Whether compute was measured, but on another device."""
    spec = scenario.workload.compute
    return isinstance(spec, FromProfile) and not all(
        is_measured_on(spec, each) for each in scenario.cluster.devices()
    )


def exposed_part(metrics: Mapping[str, Any], scenario: Scenario) -> float:
    """The part of a step that communication adds to it, from 0 to 1.

    It is what no compute hides; and of what compute hides, the time by which it is longer than
    without: while both are under way, compute takes ``1 + compute_slowdown`` times as long.
    """
    time = float(metrics["step_time_s"])
    if not time:
        return 0.0
    slowdown = scenario.cluster.overheads.compute_slowdown
    exposed, waited = float(metrics["exposed_comm_s"]), float(metrics["wait_s"])
    hidden = max(float(metrics["comm_s"]) - exposed, 0.0)
    stretched = hidden * slowdown / (1.0 + slowdown)
    return min((exposed + waited + stretched) / time, 1.0)
