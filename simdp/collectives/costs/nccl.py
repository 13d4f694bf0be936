"""NCCL: what a collective costs by the structure of NCCL's own model.

Of every algorithm and protocol that may serve it, the fastest counts. Each takes::

    launch + base + hypot(latency, wire) + 2 sqrt(ramp wire)

``latency`` is the number of hops that wait for one another, times a hop's time, inside nodes and
between them; ``wire`` is what the busiest device or node sends, over the share of its bandwidth
that payload gets. Chunks are cut into slices so that the next hop begins while the rest of a chunk
is still on the wire: latency and wire overlap, and the larger rules. The last term is the ramp of
middle sizes, which fill neither all channels nor their pipelines. With ``stages: summed`` one host
thread copies for every stage in turn, so that wires and latencies add up.

The constants are NVIDIA's, as NCCL 2.30.7 has them (github.com/NVIDIA/nccl, src/graph/tuning.cc);
two that it does not have say where they come from. A calibration replaces what it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import hypot, inf, sqrt
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from simdp.collectives.costs.base import Cost
from simdp.collectives.costs.ways import WAYS, Way
from simdp.collectives.costs.wiring import Wiring
from simdp.spec import Bandwidth, Float, Int, Seconds, Spec

Algorithm = Literal["ring", "tree", "nvls"]
Protocol = Literal["ll", "ll128", "simple"]
Efficiency = Annotated[Float, Field(gt=0, le=4)]

PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")

MAX_KNOWN = 4096
"""Choices that a cost remembers: far more than a run has sizes, and a megabyte."""

HOP_OVER_ALPHA = {
    "intra": {"ll": 0.6 / 3.4, "ll128": 1.9 / 3.4, "simple": 1.0},
    "inter": {"ll": 2.7 / 14, "ll128": 4.0 / 14, "simple": 1.0},
}
"""Published hops of rings over those of Simple, which catalogue links have as their alpha."""

TREE_OVER_RING = {
    "intra": {"ll": 1.0, "ll128": 1.25 / 1.9, "simple": 4.0 / 3.4},
    "inter": {"ll": 5.0 / 2.7, "ll128": 8.5 / 4.0, "simple": 1.0},
}
"""Published hops of trees over those of rings."""


class Choice(NamedTuple):
    """What serves a collective.

    Attributes
    ----------
    algorithm, protocol : str
        As NCCL calls them; ``p2p`` stands for grouped sends, ``none`` for a single rank.
    seconds : float
        How long it takes [s].
    """

    algorithm: str
    protocol: str
    seconds: float


def _one_for_all(value: Any) -> Any:
    """``0.4 ms``, written without protocols, is the value of every protocol."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return dict.fromkeys(PROTOCOLS, value) if plain else value


class Base(Spec):
    """Time before the first hop, by protocol; NCCL's base latencies of rings.

    Attributes
    ----------
    ll, ll128, simple : float
        Of this protocol [s].
    """

    ll: Seconds = 6.6e-6
    ll128: Seconds = 14e-6
    simple: Seconds = 8.4e-6


class HopTimes(Spec):
    """Time of a hop, by protocol.

    Attributes
    ----------
    ll, ll128, simple : float or None
        Of this protocol [s]; None: the link's alpha, times NCCL's ratio to Simple.
    """

    ll: Seconds | None = None
    ll128: Seconds | None = None
    simple: Seconds | None = None


AnyHopTimes = Annotated[HopTimes, BeforeValidator(_one_for_all, Seconds | HopTimes)]


class Hops(Spec):
    """Time of a hop; one value serves every protocol.

    Attributes
    ----------
    intra, inter : HopTimes
        Inside a node, and between nodes [s].
    """

    intra: AnyHopTimes = HopTimes()
    inter: AnyHopTimes = HopTimes()


class IntraEfficiencies(Spec):
    """Share of a device's bandwidth that payload gets, by protocol.

    NCCL plans with 20 of NVLink's 25 GB/s and 12 of the 15.75 GB/s of PCIe 3: 0.8. LL128 carries
    120 of 128 bytes and gets 0.92 of that. LL carries half, and is held to 39, 87.7 and 141 GB/s
    on V100, A100 and H100, which is 0.29 of their NVLinks.

    Attributes
    ----------
    ll, ll128, simple : float
        With this protocol.
    """

    ll: Efficiency = 0.29
    ll128: Efficiency = 0.74
    simple: Efficiency = 0.8


class InterEfficiencies(Spec):
    """Share of a node's network cards that payload gets, by protocol.

    NCCL plans with 12 of 12.5 GB/s; 0.92 of that with LL128, a half with LL.

    Attributes
    ----------
    ll, ll128, simple : float
        With this protocol.
    """

    ll: Efficiency = 0.48
    ll128: Efficiency = 0.88
    simple: Efficiency = 0.96


class Efficiencies(Spec):
    """Share of the bandwidth that payload gets; one value serves every protocol.

    Attributes
    ----------
    intra : IntraEfficiencies
        Of a device's bandwidth inside its node.
    inter : InterEfficiencies
        Of the bandwidth of a node's network cards.
    """

    intra: Annotated[
        IntraEfficiencies, BeforeValidator(_one_for_all, Efficiency | IntraEfficiencies)
    ] = IntraEfficiencies()
    inter: Annotated[
        InterEfficiencies, BeforeValidator(_one_for_all, Efficiency | InterEfficiencies)
    ] = InterEfficiencies()


class NcclCost(Cost):
    """NCCL's own model: the fastest of its algorithms and protocols, with published constants.

    Attributes
    ----------
    launch : float
        Before everything else [s]. NCCL's constants lack 5 to 15 us against nccl-tests with one
        process per GPU: 10 us.
    base : Base
        Before the first hop, by protocol [s].
    hop : Hops
        Time of a hop, by place and protocol [s].
    efficiency : Efficiencies
        Share of the bandwidth, by place and protocol.
    ramp : float
        Time constant of the ramp [s]. An estimate: of 65 public tables of nccl-tests 25 determine
        it, most of them between 1 and 11 us.
    tree_efficiency : float
        Bandwidth of trees over that of rings: NCCL's 0.92, times its correction of 0.5 to 0.6 for
        buffers of 32 KiB to 2 MiB.
    algorithms, protocols : tuple of str
        What NCCL may choose. NVLS, which NVSwitch has from H100 on, must be added; LL128 needs
        NVLink.
    nvls_hop, nvls_efficiency : float
        Latency of NVLS inside a node [s], and its share of a device's bandwidth: NCCL plans with
        476 GB/s of bus bandwidth for 8 H100 of 450 GB/s each.
    stages : {"overlapped", "summed"}
        Whether the way through a node and the way between nodes are used at once (GPUDirect,
        peer-to-peer), or one host thread copies for both (sockets): 1/B = 1/B_intra + 1/B_inter.
    flow_bandwidth : float or None
        What one TCP flow carries [bytes/s]; with ``flows_per_pair`` of them between two nodes.
    flows_per_pair : int
        NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD, over all channels.
    two_nodes : float
        Share of these flows that two nodes have which are each other's only neighbour: both
        directions of a ring lie between them.
    host_bandwidth : float or None
        What a node's devices can send together through host memory or a shared PCIe root
        [bytes/s]; each gets an equal part.
    """

    kind: Literal["nccl"] = "nccl"

    launch: Seconds = 10e-6
    base: Annotated[Base, BeforeValidator(_one_for_all, Seconds | Base)] = Base()
    hop: Hops = Hops()
    efficiency: Efficiencies = Efficiencies()
    ramp: Seconds = 3e-6
    tree_efficiency: Efficiency = 0.5
    algorithms: tuple[Algorithm, ...] = Field(("ring", "tree"), min_length=1)
    protocols: tuple[Protocol, ...] = Field(PROTOCOLS, min_length=1)
    nvls_hop: Seconds = 25e-6
    nvls_efficiency: Efficiency = 0.68
    stages: Literal["overlapped", "summed"] = "overlapped"
    flow_bandwidth: Bandwidth | None = None
    flows_per_pair: Int = Field(1, ge=1, le=1024)
    two_nodes: Float = Field(1.0, gt=0, le=4)
    host_bandwidth: Bandwidth | None = None

    @cached_property
    def known(self) -> dict[tuple[str, float, Wiring], Choice]:
        """What was asked before, up to `MAX_KNOWN`; no part of the value."""
        return {}

    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        return self.choice(collective, nbytes, wiring).seconds

    def problem_with(self, collective: str, wiring: Wiring) -> str | None:
        if wiring.world_size == 1 or any(True for _ in self.ways(collective, wiring)):
            return None
        return f"cost nccl has no algorithm for {collective}; add ring to its algorithms"

    def choice(self, collective: str, nbytes: float, wiring: Wiring) -> Choice:
        """Tell which algorithm and protocol serve a collective, and its time.

        Arguments as for `seconds`.

        Raises
        ------
        ValueError
            If none of the algorithms serves it.
        """
        key = (collective, nbytes, wiring)
        found = self.known.get(key)
        if found is None:
            if wrong := self.problem_with(collective, wiring):
                raise ValueError(wrong)
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            every = self.choices(collective, nbytes, wiring)
            found = self.known[key] = min(every, key=lambda choice: choice.seconds)
        return found

    def choices(self, collective: str, nbytes: float, wiring: Wiring) -> Iterator[Choice]:
        """Everything that could serve a collective, and how long each would take."""
        if wiring.world_size == 1:
            yield Choice("none", "none", 0.0)
            return
        for algorithm, protocol, way in self.ways(collective, wiring):
            seconds = self._time(algorithm, protocol, way, nbytes, wiring)
            yield Choice(algorithm, protocol, seconds)

    def ways(self, collective: str, wiring: Wiring) -> Iterator[tuple[str, str, Way]]:
        """Algorithms and protocols that may serve a collective, and what each sends."""
        for algorithm, making in WAYS[collective].items():
            if algorithm != "p2p" and algorithm not in self.algorithms:
                continue
            way = making(wiring)
            if way is not None:
                for protocol in ("simple",) if algorithm == "nvls" else self.protocols:
                    yield algorithm, protocol, way

    def way(self, collective: str, nbytes: float, wiring: Wiring) -> Way:
        """What the algorithm sends that serves a collective; arguments and errors as `choice`."""
        chosen = self.choice(collective, nbytes, wiring).algorithm
        return next(way for name, _, way in self.ways(collective, wiring) if name == chosen)

    def hop_time(self, where: str, algorithm: str, protocol: str, alpha: float) -> float:
        """Time of a hop, ``intra`` or ``inter``, over a link of latency ``alpha`` [s]."""
        if algorithm == "nvls" and where == "intra":
            return self.nvls_hop
        given = getattr(getattr(self.hop, where), protocol)
        hop = alpha * HOP_OVER_ALPHA[where][protocol] if given is None else given
        return float(hop * TREE_OVER_RING[where][protocol] if algorithm == "tree" else hop)

    def host_share(self, wiring: Wiring) -> float:
        """What the host lets each device of a node send [bytes/s]; infinite without a limit."""
        return inf if self.host_bandwidth is None else self.host_bandwidth / wiring.local_size

    def flow_share(self, wiring: Wiring) -> float:
        """What its flows let a node send [bytes/s]; infinite without a limit."""
        if self.flow_bandwidth is None:
            return inf
        shared = self.two_nodes if wiring.num_nodes == 2 else 1.0
        return self.flow_bandwidth * self.flows_per_pair * shared

    def _time(self, algorithm: str, protocol: str, way: Way, nbytes: float, w: Wiring) -> float:
        latency = way.intra_hops * self.hop_time("intra", algorithm, protocol, w.intra_alpha)
        latency += way.inter_hops * self.hop_time("inter", algorithm, protocol, w.inter_alpha)
        share = self.tree_efficiency if algorithm == "tree" else 1.0
        intra = nbytes * way.intra_sent / (share * self._intra(algorithm, protocol, w))
        inter = nbytes * way.inter_sent / (share * self._inter(protocol, w))
        if self.stages == "summed":
            wire, both = intra + inter, latency + intra + inter
        else:
            wire = max(intra, inter)
            both = hypot(latency, wire)
        base = float(getattr(self.base, protocol))
        return self.launch + base + both + 2 * sqrt(self.ramp * wire)

    def _intra(self, algorithm: str, protocol: str, w: Wiring) -> float:
        if algorithm == "nvls":
            return self.nvls_efficiency * w.intra_bandwidth
        bandwidth = float(getattr(self.efficiency.intra, protocol)) * w.intra_bandwidth
        return min(bandwidth, self.host_share(w))

    def _inter(self, protocol: str, w: Wiring) -> float:
        bandwidth = float(getattr(self.efficiency.inter, protocol)) * w.inter_bandwidth
        return min(bandwidth, self.flow_share(w))
