"""The figures of NCCL's own tuner, which NCCL uses to choose an algorithm and a protocol.

A collective takes the least of all algorithms and protocols: a latency by hops, and its bytes over
a bandwidth. Nothing is fitted: latencies, shares and limits are NCCL's constants. They are made to
compare, and are known to be too short for small messages. Steps are composed of them as in
`benchmarks.leaderboard.adapters.astra_sim`: a collective per bucket or block beside backward.

References
----------
github.com/NVIDIA/nccl @ 5067397 (2.30.7), ``src/graph/tuning.cc``, ``src/graph/topo.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log2
from typing import NamedTuple

from benchmarks.leaderboard.adapters.astra_sim import overlapped
from benchmarks.leaderboard.adapters.base import Adapter, Answer
from benchmarks.leaderboard.folds import Asked
from benchmarks.leaderboard.points import Point

US, GB = 1e-6, 1e9
PROTOCOLS = ("ll", "ll128", "simple")

BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
"""Latency of an algorithm by protocol [us]."""

HOP = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "net": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
}
"""Latency of a hop over a kind of link, by protocol [us]."""

NVLS, NVLS_TREE = 25.0, 20.9
"""Latency of NVLS inside a node, and of a hop of its tree between nodes [us]."""

OVERHEAD, PLATEAU = (1.0, 1.0, 3.0), 1.4
"""Least latency of a hop inside one of several nodes by protocol [us]; ring's factor from 64 bytes
per channel and rank."""

TREE_SHARES = {
    "ll": (*(1.0,) * 4, 0.9, 0.8, *(0.7,) * 4, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "ll128": (*(1.0,) * 5, 0.9, *(0.8,) * 3, 0.7, *(0.6,) * 6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "simple": (
        *(*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4),
        *(0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
"""What a tree reaches of its bandwidth by powers of two from 64 bytes; 1 beyond, 0.9 for Simple."""


class Generation(NamedTuple):
    """Constants of a generation of devices; bandwidths in GB/s."""

    nvlink: float  # all links of a device
    channels: int
    ll: float  # most of LL in a node
    ll128: float  # most of LL128 per channel
    tree: tuple[float, float, float]  # most of a tree per channel on 1, 2, and more nodes
    nvls: float = 0.0  # what a switch reduces or copies for a device


VOLTA = Generation(120, 12, 39, 20, (26.5, 18.5, 10.0))
AMPERE = Generation(240, 24, 87.7, 20, (24.0, 23.6, 17.8))
HOPPER = Generation(370, 16, 141, 36.7, (38.7, 41.4, 36.0), 8 * 40 * 0.85 * 7 / 8)
BLACKWELL = Generation(722, 32, 282, 40, (70.0, 42.8, 24.0), 8 * 80 * 0.74 * 7 / 8)

GENERATIONS = {
    **dict.fromkeys(("v100", "t4", "quadro", "rtx2080ti"), VOLTA),
    **dict.fromkeys(("a100", "a10g", "rtx3090", "rtxa6000"), AMPERE),
    **dict.fromkeys(("l4", "l40s", "rtx4090", "rtx6000ada"), AMPERE),
    **dict.fromkeys(("h100", "h200"), HOPPER),
    **dict.fromkeys(("b200", "gb200", "rtx5090"), BLACKWELL),
}
"""By the name of the device up to its first hyphen; Ada's constants are Ampere's."""

LL_BETWEEN = (39.0, 20.4)
"""Most of LL between two nodes, and between more [GB/s]."""

PCIE, NET = 12 / 15.75, 12 / 12.5
"""What NCCL's search reckons with of a PCIe link, and of a network card."""

RANKS_OF_NVLS = 4
"""Ranks of a node from which NVLS counts here: nodes of H100 and later with a switch."""


class Ways:
    """Times of a collective of one point by algorithm and protocol."""

    def __init__(self, point: Point, name: str, nbytes: float, of: Generation) -> None:
        self.name, self.nbytes, self.of = name, nbytes, of
        self.n, self.nodes, self.local = point["ranks"], point["nodes"], point["ranks_per_node"]
        self.is_nvlink = point["peer"] == "nvlink"
        inside = (point["intra_bandwidth"] or 0.0) / GB
        self.inside = min(inside, of.nvlink) if self.is_nvlink else PCIE * inside
        between = NET * (point["inter_bandwidth"] or 0.0) / GB
        speeds = [self.inside] * (self.local > 1) + [between] * (self.nodes > 1)
        self.bus = min(speeds)
        self.link = "nvlink" if self.is_nvlink else "pcie"
        self.steps = {"all_reduce": 2 * (self.n - 1), "broadcast": self.n, "reduce": self.n}.get(
            name, self.n - 1
        )

    def seconds(self) -> float:
        """The least time [s]."""
        return min(self._ways())

    def _ways(self) -> Iterator[float]:
        for place, protocol in enumerate(PROTOCOLS):
            if protocol == "ll128" and not self.is_nvlink:
                continue
            yield self.ring(place)
            if self.name == "all_reduce":
                yield self.tree(place)
        has_nvls = self.of.nvls and self.is_nvlink and self.local >= RANKS_OF_NVLS
        if has_nvls and (self.nodes == 1 or self.name == "all_reduce"):
            yield self._nvls()

    def ring(self, place: int) -> float:
        """Time of a ring in a protocol by its place in `PROTOCOLS` [s]."""
        protocol = PROTOCOLS[place]
        most = self.of.ll if self.nodes == 1 else LL_BETWEEN[self.nodes > 2]
        bus = {
            "ll": min(most, 0.5 * self.bus),
            "ll128": min(0.92 * self.bus, self.of.channels * self.of.ll128),
            "simple": self.bus,
        }[protocol]
        inside, between = HOP[self.link]["ring"][place], HOP["net"]["ring"][place]
        if self.local == 1:
            between = HOP["net"]["tree"][place]
        latency = BASE["ring"][place]
        if self.name in ("broadcast", "reduce"):
            latency += between if self.nodes > 1 else inside
        else:
            crossings = (2 if self.name == "all_reduce" else 1) * (self.nodes - 1)
            hop = max(inside, OVERHEAD[place]) if self.nodes > 1 else inside
            latency += (self.steps - crossings) * hop + crossings * between
        many = self.nbytes / (self.of.channels * self.n) >= 64
        if protocol == "simple" and self.name == "all_reduce" and self.nodes > 1 and many:
            latency *= PLATEAU
        return US * latency + self.nbytes * self.steps / (self.n * bus * GB)

    def tree(self, place: int) -> float:
        """Time of a double tree in a protocol by its place in `PROTOCOLS` [s]."""
        protocol = PROTOCOLS[place]
        most = self.of.channels * self.of.tree[min(self.nodes, 3) - 1]
        bus = {
            "ll": min(self.bus / 3.8, self.of.ll),
            "ll128": min(self.bus * (7 / 9 if self.nodes == 1 else 120 / 128), most),
            "simple": min(0.92 * self.bus, most),
        }[protocol]
        number = max(floor(log2(max(self.nbytes, 64.0) / 64)), 0)
        shares = TREE_SHARES[protocol]
        last = 0.9 if protocol == "simple" else 1.0
        share = shares[number] if number < len(shares) else last
        hops = (self.local - 1) * HOP[self.link]["tree"][place]
        hops += floor(log2(self.nodes)) * HOP["net"]["tree"][place]
        return US * (BASE["tree"][place] + 2 * hops) + self.nbytes / (0.5 * share * bus * GB)

    def _nvls(self) -> float:
        if self.nodes > 1:
            bus = self.bus * (2 if self.nodes == 2 else 1)
            latency = NVLS + 2 * floor(log2(self.nodes)) * NVLS_TREE
            return US * latency + self.nbytes / (0.5 * bus * GB)
        bus = self.of.nvls
        bus *= 2 if self.name == "all_reduce" else (self.local - 1) / self.local
        return US * NVLS + self.nbytes * self.steps / (self.n * bus * GB)


NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def collective(point: Point, name: str, nbytes: float) -> float | None:
    """Time of a collective [s]; None where the tuner has none."""
    generation = GENERATIONS.get(str(point["device"]).partition("-")[0])
    if generation is None or name not in NAMES or point["ranks"] == 1 or nbytes <= 0:
        return None
    return Ways(point, name, nbytes, generation).seconds()


class NcclTuner(Adapter):
    """See the module."""

    name = "NCCL's tuner"
    about = (
        "the least of NCCL's latencies and bandwidths by algorithm and protocol, as its tuner has "
        "them; collectives of a step overlapped with backward as for ASTRA-sim. Fits nothing"
    )
    missing = (
        "launches, copies, the rise of bandwidth with size, sockets, contention, all_to_all and "
        "send; steps of other strategies than DDP, Horovod, Apex and FSDP"
    )

    def answers(self, asked: Asked) -> list[Answer | None]:
        """The tuner's time, point by point."""
        times = [self._time(point, asked.shown) for point in asked.questions]
        return [None if time is None else Answer(time) for time in times]

    def _time(self, point: Point, shown: Sequence[Point]) -> float | None:
        def seconds(name: str, nbytes: float) -> float | None:
            return collective(point, name, nbytes)

        return overlapped(point, shown, seconds)
