"""Naive predictors, which a simulation should beat: linear scaling, and the formula of a ring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from simdp.collectives.costs.ways import WAYS
from simdp.collectives.costs.wiring import Wiring
from simdp.results.validation import StepComparison
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of


def ring_step_time(point: Scenario, compute: float) -> float:
    """Step time without any overlap: ``compute + 2 (n - 1) / n S / B`` [s].

    Parameters
    ----------
    point : Scenario
        One point; S is the size of its gradients [bytes], and B the slower of what a device can
        send inside its node and what a node can send [bytes/s]. A ring through all ranks crosses
        every link once, a node's cards too.
    compute : float
        Time of the devices' work in a step [s].

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009.
    """
    wiring, workload = wiring_of(point.cluster), point.workload
    elements = sum(tensor.num_elements for tensor in workload.graph.parameters)
    return compute + ring_exchange_time(elements * workload.gradient_itemsize, wiring)


def ring_exchange_time(nbytes: float, wiring: Wiring) -> float:
    """What `ring_step_time` adds for gradients: ``2 (n - 1) / n S / B`` [s; S in bytes]."""
    n = wiring.world_size
    bandwidth = min(wiring.intra_bandwidth, wiring.inter_bandwidth)
    return 2 * (n - 1) / n * nbytes / bandwidth


def ring_collective_time(collective: str, nbytes: float, wiring: Wiring) -> float:
    """Time of the plainest algorithm at the links' own figures: ``hops alpha + sent S / B`` [s].

    Parameters
    ----------
    collective : str
        A key of `simdp.collectives.costs.ways.WAYS`: a ring, or sends where there is none.
    nbytes : float
        Size of the buffer, S [bytes].
    wiring : Wiring
        Between which ranks; of what goes inside nodes and between them, the slower counts.
    """
    way = next(iter(WAYS[collective].values()))(wiring)
    assert way is not None, "rings and sends serve every wiring"
    latency = way.intra_hops * wiring.intra_alpha + way.inter_hops * wiring.inter_alpha
    inside = way.intra_sent / wiring.intra_bandwidth
    return latency + nbytes * max(inside, way.inter_sent / wiring.inter_bandwidth)


def same_work(point: Scenario) -> str:
    """What two points have in common if one is the other on more ranks: machine, device, work."""
    raw = point.resolved()
    cluster = raw["cluster"]
    return json.dumps([cluster.get("machine"), cluster["device"], raw["workload"]])


def add_linear(points: Sequence[StepComparison], work: Sequence[str]) -> list[StepComparison]:
    """Add what linear scaling predicts: the throughput of fewer ranks, times the ranks.

    Parameters
    ----------
    points : sequence of StepComparison
        Of all scenarios.
    work : sequence of str
        What `same_work` says of each.

    Returns
    -------
    list of StepComparison
        It starts from the fewest ranks that did the same work on the cluster; where there are not
        fewer, from the fewest of the scenario. Of these, those of the same scenario go first, then
        those that come first. None stands for points without any below them.
    """
    groups: dict[tuple[str, str], list[StepComparison]] = {}
    for point, key in zip(points, work, strict=True):
        groups.setdefault((point.cluster, key), []).append(point)
        groups.setdefault((point.cluster, f"scenario {point.scenario}"), []).append(point)
    found = []
    for point, key in zip(points, work, strict=True):
        start = _below(point, groups[point.cluster, key])
        start = start or _below(point, groups[point.cluster, f"scenario {point.scenario}"])
        if start is not None:
            per_rank = start.samples / start.measured / start.world_size
            time = point.samples / (per_rank * point.world_size)
            point = replace(point, linear=time)
        found.append(point)
    return found


def _below(point: StepComparison, group: Sequence[StepComparison]) -> StepComparison | None:
    """The fewest ranks of a group, the point's own scenario first; None if there are not fewer."""
    start = min(group, key=lambda one: (one.world_size, one.scenario != point.scenario))
    return start if start.world_size < point.world_size else None
