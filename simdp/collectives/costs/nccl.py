"""NCCL's cost model, and its constants for clusters without measurements.

``pool.yaml`` holds NCCL's planning figures and the measured share of each site. A class takes the
geometric mean of its sites if that has the smaller error than the published figure, in
leave-one-site-out validation; else the published figure. Its spread bounds the error at another
site.

The fastest algorithm and protocol of the candidates counts. Each takes::

    launch + base + hypot(latency, wire) + 2 sqrt(ramp wire)

``latency`` is the number of dependent hops times a hop's time, inside nodes and between them;
``wire`` is the traffic of the busiest device or node over its bandwidth for payload. Chunks are cut
into slices, so that the next hop begins while the rest of a chunk is on the wire: latency and wire
overlap, and the larger dominates. The last term is the ramp of middle sizes, which fill neither all
channels nor their pipelines. Between more than two nodes every step of a ring takes ``ring_step``
or more, and every further hop of a tree ``tree_step``. With ``stages: summed`` one host thread
copies for every stage in turn, so that wires and latencies add up.

The constants are those of NCCL 2.30.7 (github.com/NVIDIA/nccl, src/graph/tuning.cc); others state
their source, and shares of a bandwidth come from the pool. A calibration replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from math import ceil, exp, hypot, inf, log, log2, sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field

from simdp.arrays import Floats
from simdp.collectives.costs import Cost, Wiring
from simdp.files import read_yaml
from simdp.spec import Bandwidth, Float, Int, Seconds, Spec
from simdp.units import parse

# Pool ---------------------------------------------------------------------------------------------

PEERS = ("nvlink", "pcie", "host")
NETWORKS = ("rdma", "roce", "libfabric", "staged", "tcp")
"""Classes of links between the devices of a node, and between nodes; keys of ``pool.yaml``."""

PAYLOAD = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""Largest payload of a protocol; the rest are flags."""

BEFORE, WEIGHT = 0.3, 2
"""Prior spread of a class, and its weight in sites: shares of a bandwidth spread by 0.17 to 0.35
over sites."""


class Pooled(NamedTuple):
    """A constant of a class."""

    # estimate for a cluster without measurements: a share, or a rate at 50 Gbit/s [bytes/s]
    value: float
    spread: float  # standard deviation of its logarithm, for one further site
    is_published: bool  # whether it is NVIDIA's; else the mean of sites
    sites: dict[str, float]  # value of each site
    about: str  # description of the class


def pooled(place: str, name: str, constant: str, without: Collection[str] = ()) -> Pooled:
    """Return the pooled estimate of a class of `PEERS` or `NETWORKS`.

    ``constant`` is the ``share`` of a bandwidth; or for ``tcp`` the ``flow``, the largest rate of a
    node with cards of `SLOW_CARDS` or less [bytes/s]; `flow_growth` gives that of others. Machines
    in ``without`` are left out, each with its whole site.
    """
    return _pooled(place, name, constant, frozenset(without))


@cache
def _pooled(place: str, name: str, constant: str, without: frozenset[str]) -> Pooled:
    file = _file()
    entry = file[place][name]
    sites = {
        site: exp(np.mean([log(_number(value)) for value in machines.values()]))
        for site, machines in entry[constant].items()
        if without.isdisjoint(machines)
    }
    if constant == "flow":
        cards = entry["cards"]
        sites = {site: flow / flow_growth(_number(cards[site])) for site, flow in sites.items()}
    logs = np.array([log(value) for value in sites.values()])
    published = file["published"][place]["simple"] if constant == "share" else None
    value, kept = _taken(logs, published)
    freedom = len(logs) if kept else max(len(logs) - 1, 0)
    misses = float(np.sum((logs - log(value)) ** 2))
    spread = sqrt((BEFORE**2 * WEIGHT + misses) / (WEIGHT + freedom))
    if not kept:
        spread *= sqrt(1 + 1 / len(logs))
    return Pooled(value, spread, kept, sites, entry["about"])


def _taken(logs: Floats, published: float | None) -> tuple[float, bool]:
    """Return the value of a class, and whether it is the published one."""
    mean = exp(float(logs.mean())) if len(logs) else inf
    if published is None:
        return mean, False
    if len(logs) < 2:
        return published, True
    others = (logs.sum() - logs) / (len(logs) - 1)
    is_nearer = np.abs(logs - others).sum() < np.abs(logs - log(published)).sum()
    return (mean, False) if is_nearer else (published, True)


def share_of(
    place: str, name: str, protocol: str, bandwidth: float, without: Collection[str] = ()
) -> float:
    """Return the share of a bandwidth for a protocol's payload in a class, as of `pooled`.

    ``bandwidth`` is the datasheet's, of all cards of a node together [bytes/s].
    """
    constant = pooled(place, name, "share", without)
    if constant.is_published:
        share = float(_file()["published"][place][protocol])
    else:
        share = constant.value * PAYLOAD[protocol]
    if name != "tcp":
        return share
    flow = pooled(place, name, "flow", without).value * flow_growth(bandwidth)
    return min(share, flow * PAYLOAD[protocol] / bandwidth)


SLOW_CARDS = 6.25e9
"""Bandwidth of a node's cards from which on the rate of its sockets grows [bytes/s]."""


def flow_growth(bandwidth: float) -> float:
    """Return the largest rate of a node's sockets over that with `SLOW_CARDS`.

    It grows as the square root of the bandwidth of its cards [bytes/s]: hosts with faster cards
    are faster. With one site left out, the logarithm of its rate errs by 0.54; without this 0.82.
    """
    return sqrt(max(bandwidth / SLOW_CARDS, 1.0))


def _number(value: str | float) -> float:
    return parse(value, "bandwidth") if isinstance(value, str) else float(value)


@cache
def _file() -> Mapping[str, Any]:
    pool: Mapping[str, Any] = read_yaml(Path(__file__).parent / "pool.yaml")
    return pool


# Ways ---------------------------------------------------------------------------------------------


class AlgorithmTraffic(NamedTuple):
    """Hops and traffic of an algorithm for a collective."""

    # intra_hops, inter_hops: dependent transfers inside nodes and between nodes
    intra_hops: float
    inter_hops: float
    # bytes that the busiest device sends inside its node, as a multiple of the buffer
    intra_sent: float
    inter_sent: float  # bytes that the busiest node sends to others, as a multiple of the buffer
    ring_steps: float = 0.0  # steps of a ring over more than two nodes
    deep_hops: float = 0.0  # hops between nodes of a tree, beyond those of two nodes


def _ring(w: Wiring, rounds: int) -> AlgorithmTraffic:
    """Ring with ``rounds`` of n - 1 steps: two for an all_reduce, one for each of its halves."""
    steps, inter = rounds * (w.world_size - 1), rounds * (w.num_nodes - 1)
    sent = steps / w.world_size
    return AlgorithmTraffic(
        steps - inter,
        inter,
        sent * (w.local_size > 1),
        sent * (w.num_nodes > 1),
        ring_steps=steps * (w.num_nodes > 2),
    )


def _chain(w: Wiring) -> AlgorithmTraffic:
    """A pipeline through every rank, as NCCL's rings for broadcast and reduce."""
    inter = w.num_nodes - 1
    return AlgorithmTraffic(w.world_size - 1 - inter, inter, w.local_size > 1, w.num_nodes > 1)


def _across_trees(w: Wiring) -> float:
    """Bytes of a node up and down the double binary tree, as a multiple of the buffer.

    Every node is a leaf of one tree and inside the other: up half the buffer in each, and down half
    to each of two children. Two nodes have one child between them.
    """
    return {1: 0.0, 2: 1.0}.get(w.num_nodes, 2.0)


def _tree_hops(w: Wiring) -> float:
    """Hops between nodes up and down the double binary tree, as NCCL counts them."""
    return 2.0 * int(log2(w.num_nodes))


def _tree(w: Wiring) -> AlgorithmTraffic:
    """A double binary tree of nodes, each node a chain; up, then down."""
    across = _tree_hops(w)
    inside = 2.0 * (w.local_size > 1)
    return AlgorithmTraffic(
        2 * (w.local_size - 1), across, inside, _across_trees(w), deep_hops=max(across - 2, 0.0)
    )


def _nvls_all_reduce(w: Wiring) -> AlgorithmTraffic | None:
    """The switch adds: a device sends the buffer, and its share of the sums."""
    if w.local_size == 1:
        return None
    sent = (w.local_size + 1) / w.local_size
    across = _tree_hops(w)
    return AlgorithmTraffic(1, across, sent, _across_trees(w), deep_hops=max(across - 2, 0.0))


def _nvls_half(w: Wiring) -> AlgorithmTraffic | None:
    """Within one node only, as across nodes NCCL needs switches that add there too."""
    if w.num_nodes > 1:
        return None
    return AlgorithmTraffic(1, 0, (w.local_size - 1) / w.local_size, 0)


def _all_to_all(w: Wiring) -> AlgorithmTraffic:
    n, m = w.world_size, w.local_size
    return AlgorithmTraffic(m - 1, n - m, (m - 1) / n, m * (n - m) / n)


def _rooted(w: Wiring) -> AlgorithmTraffic:
    """Gather and scatter: the root's node carries the other nodes' data."""
    n, m = w.world_size, w.local_size
    return AlgorithmTraffic(m - 1, n - m, (m - 1) / n, (n - m) / n)


CHANNEL = 14e9
"""Bandwidth of a channel of grouped sends between nodes, as NCCL plans with [bytes/s]
(``NCCL_P2P_PER_CHANNEL_NET_BW``)."""

NOMINAL = 0.96
"""Bandwidth of a card as NCCL plans with, over the data sheet's: 12 GB/s per 100 Gbit/s."""

MAX_CHANNELS, PEERS_PER_BATCH = 16, 8
"""Most channels of a device, and sends that a channel serves at once."""


def peer_channels(w: Wiring) -> int:
    """Return the channels of a send to another node.

    As many as fill a card, a power of two; halved until all peers fit in one round of the device's
    channels, four for each card of the node (``ncclTopoComputeP2pChannels`` of src/graph/paths.cc,
    NCCL 2.30.7). H100 with cards of 400 Gbit/s: 44 GB/s with the four channels of 2 nodes, 25 with
    two (10, 20 and 40 GPUs of 10 nodes), 15 with one (80).
    """
    cards = max(w.cards, 1)
    there = min(MAX_CHANNELS, _power_of_two(4 * cards))
    channels = _power_of_two(ceil(NOMINAL * w.inter_bandwidth / cards / CHANNEL))
    while channels > 1 and channels * ceil(w.world_size / PEERS_PER_BATCH) > there:
        channels //= 2
    return channels


def _power_of_two(number: int) -> int:
    """Round up to a power of two."""
    return 1 << (number - 1).bit_length()


def _neighbours(w: Wiring) -> AlgorithmTraffic:
    """Every rank sends to the next: between nodes by one card of each, in `peer_channels`."""
    if w.num_nodes == 1:
        return AlgorithmTraffic(1, 0, 1, 0)
    cards = max(w.cards, 1)
    slower = max(1.0, w.inter_bandwidth / cards / (peer_channels(w) * CHANNEL))
    return AlgorithmTraffic(0, 1, w.local_size > 1, cards * slower)


Making = Callable[[Wiring], AlgorithmTraffic | None]

WAYS: dict[str, dict[str, Making]] = {
    "all_gather": {"ring": lambda w: _ring(w, 1), "nvls": _nvls_half},
    "all_reduce": {"ring": lambda w: _ring(w, 2), "tree": _tree, "nvls": _nvls_all_reduce},
    "all_to_all": {"p2p": _all_to_all},
    "barrier": {"ring": lambda w: _ring(w, 2), "tree": _tree},
    "broadcast": {"ring": _chain},
    "gather": {"p2p": _rooted},
    "reduce": {"ring": _chain},
    "reduce_scatter": {"ring": lambda w: _ring(w, 1), "nvls": _nvls_half},
    "scatter": {"p2p": _rooted},
    "sendrecv": {"p2p": _neighbours},
}
"""Candidate algorithms of each collective; ``p2p`` are NCCL's grouped sends.

None is returned for a wiring without support.
"""


# Nccl ---------------------------------------------------------------------------------------------

Algorithm = Literal["ring", "tree", "nvls"]
Protocol = Literal["ll", "ll128", "simple"]
SMALL_DOMAIN, DOMAIN_LOSS = 8, 0.16
"""NVLS's share falls with the size of the NVLink domain to the power of `DOMAIN_LOSS`, beyond
`SMALL_DOMAIN` devices: 72 GB200 would need less time than was measured with more than 0.48, where 4
and 8 H100 reach 0.66 and 0.68."""


def domain_share(w: Wiring) -> float:
    """Return NVLS's share of the bandwidth in a node over that in one of 8 devices."""
    return float(max(w.local_size / SMALL_DOMAIN, 1.0) ** -DOMAIN_LOSS)


Efficiency = Annotated[Float, Field(gt=0, le=4)]

PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")

MAX_KNOWN = 4096
"""Limit of cached choices: far more than the sizes of a run, and a megabyte."""

HOP_OVER_ALPHA = {
    "intra": {"ll": 0.6 / 3.4, "ll128": 1.9 / 3.4, "simple": 1.0},
    "inter": {"ll": 2.7 / 14, "ll128": 4.0 / 14, "simple": 1.0},
}
"""Published hops of rings over those of Simple, which are the alpha of catalogue links."""

STEPS_FROM = 2.0**15
"""Least buffer whose ring steps take `NcclCost.ring_step` [bytes]: smaller ones took 1.7 us on 8
nodes."""

TREE_CHUNK = 2.0**21
"""Buffer from which on the chunks of a tree are full [bytes]: 512 KiB in each of four channels."""

DEEP_TREES = 0.92
"""Bandwidth of trees over that of rings, from three nodes on and but for LL: as published. The time
that NCCL adds for middle sizes by a lower bandwidth is in `NcclCost.tree_step` there."""

TREE_OVER_RING = {
    "intra": {"ll": 1.0, "ll128": 1.25 / 1.9, "simple": 4.0 / 3.4},
    "inter": {"ll": 5.0 / 2.7, "ll128": 8.5 / 4.0, "simple": 1.0},
}
"""Published hops of trees over those of rings."""


class ProtocolChoice(NamedTuple):
    """Algorithm and protocol of a collective."""

    # algorithm, protocol: NCCL's names; ``p2p`` for grouped sends, ``none`` for a single rank
    algorithm: str
    protocol: str
    seconds: float  # its time [s]


def _one_for_all(value: object) -> Any:
    """Use a value without protocols, such as ``0.4 ms``, for every protocol."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return dict.fromkeys(PROTOCOLS, value) if plain else value


class Base(Spec):
    """Time before the first hop, by protocol; NCCL's base latencies of rings."""

    ll: Seconds = 6.6e-6
    """Of this protocol [s]."""
    ll128: Seconds = 14e-6
    """Of this protocol [s]."""
    simple: Seconds = 8.4e-6
    """Of this protocol [s]."""


class HopTimes(Spec):
    """Time of a hop, by protocol."""

    ll: Seconds | None = None
    """Of this protocol [s]; None: the link's alpha, times NCCL's ratio to Simple."""
    ll128: Seconds | None = None
    """Of this protocol [s]; None: the link's alpha, times NCCL's ratio to Simple."""
    simple: Seconds | None = None
    """Of this protocol [s]; None: the link's alpha, times NCCL's ratio to Simple."""


AnyHopTimes = Annotated[HopTimes, BeforeValidator(_one_for_all, Seconds | HopTimes)]


class RingStep(Spec):
    """Least time of a ring's step between more than two nodes, by protocol."""

    ll: Seconds = 8e-6
    """Of this protocol [s]."""
    ll128: Seconds = 8e-6
    """Of this protocol [s]."""
    simple: Seconds = 8e-6
    """Of this protocol [s]."""


class Hops(Spec):
    """Time of a hop; one value applies to every protocol."""

    intra: AnyHopTimes = HopTimes()
    """Inside a node, and between nodes [s]."""
    inter: AnyHopTimes = HopTimes()
    """Inside a node, and between nodes [s]."""


class BandwidthShares(Spec):
    """Share of a bandwidth for payload, by protocol."""

    ll: Efficiency | None = None
    """With this protocol. None: the share of clusters of the same class, ``simdp list constants``;
    where NVIDIA's own figure has the smaller error, 0.8 of a device's bandwidth and 0.96 of a
    card's."""
    ll128: Efficiency | None = None
    """With this protocol. None: the share of clusters of the same class, ``simdp list constants``;
    where NVIDIA's own figure has the smaller error, 0.8 of a device's bandwidth and 0.96 of a
    card's."""
    simple: Efficiency | None = None
    """With this protocol. None: the share of clusters of the same class, ``simdp list constants``;
    where NVIDIA's own figure has the smaller error, 0.8 of a device's bandwidth and 0.96 of a
    card's."""


AnyShares = Annotated[BandwidthShares, BeforeValidator(_one_for_all, Efficiency | BandwidthShares)]


class Efficiencies(Spec):
    """Share of the bandwidth for payload; one value applies to every protocol."""

    intra: AnyShares = BandwidthShares()
    """Of a device's bandwidth inside its node."""
    inter: AnyShares = BandwidthShares()
    """Of the bandwidth of a node's network cards."""


class NcclCost(Cost):
    """NCCL's own model: the fastest of its algorithms and protocols, with published constants."""

    kind: Literal["nccl"] = "nccl"

    peer: Literal["nvlink", "pcie", "host"] | None = None
    """Link classes inside a node and between nodes; they give the shares missing in ``efficiency``.
    None: derived from the links (`Wiring`)."""
    network: Literal["rdma", "roce", "libfabric", "staged", "tcp"] | None = None
    """Link classes inside a node and between nodes; they give the shares missing in ``efficiency``.
    None: derived from the links (`Wiring`)."""
    launch: Seconds = 10e-6
    """Time of a launch, before everything else [s]. NCCL's constants lack 5 to 15 us against
    nccl-tests with one process per GPU: 10 us."""
    devices_per_process: Int = Field(1, ge=1, le=1024)
    """Devices that one process launches for, one after the other: nccl-tests' ``-g``."""
    launch_per_device: Seconds = 2.8e-6
    """Time for each of them but the first [s]; 13 tables of nccl-tests with 2 to 8 have 2.8 us."""
    base: Annotated[Base, BeforeValidator(_one_for_all, Seconds | Base)] = Base()
    """Time before the first hop, by protocol [s]."""
    hop: Hops = Hops()
    """Time of a hop, by place and protocol [s]; that of a tree is `TREE_OVER_RING` of it."""
    efficiency: Efficiencies = Efficiencies()
    """Share of the bandwidth, by place and protocol."""
    ring_step: Annotated[RingStep, BeforeValidator(_one_for_all, Seconds | RingStep)] = RingStep()
    """Least time of a ring's step between more than two nodes, by protocol [s], on any link: the
    proxy posts each step to the card, so that the slowest link paces all of them. NCCL plans with 1
    to 6 us (``getNetOverhead`` of src/graph/tuning.cc). Less wire time, steps on 10 nodes of 4 and
    8 H100 took 7 to 9 us, and those of LL on 8 and 256 nodes over Slingshot 7 to 8 us. Larger
    chunks take 20 to 40 us there."""
    tree_step: Seconds = 140e-6
    """Least time of every further hop of a tree, except with LL, and of NVLS, between more than two
    nodes [s]: a chunk of it must arrive before it goes on, with less than `TREE_CHUNK` a smaller
    one. From 2 MiB on the trees of 256 nodes over Slingshot took 2.3 ms longer than their wire, 14
    such hops; with less, NVLS would serve 10 nodes of 4 H100 faster than was measured."""
    ramp: Seconds = 3e-6
    """Time constant of the ramp [s]. An estimate: of 65 public tables of nccl-tests 25 determine
    it, most of them between 1 and 11 us."""
    tree_efficiency: Efficiency = 0.5
    """Bandwidth of trees over that of rings: NCCL's 0.92, times its correction of 0.5 to 0.6 for
    buffers of 32 KiB to 2 MiB. With LL128 and Simple on more than two nodes it is at least
    `DEEP_TREES`."""
    algorithms: tuple[Algorithm, ...] = Field(("ring", "tree"), min_length=1)
    """Candidates of NCCL's choice. NVLS, available with NVSwitch from H100 on, must be added; LL128
    needs NVLink."""
    protocols: tuple[Protocol, ...] = Field(PROTOCOLS, min_length=1)
    """Candidates of NCCL's choice. NVLS, available with NVSwitch from H100 on, must be added; LL128
    needs NVLink."""
    nvls_hop: Seconds = 25e-6
    """Latency of NVLS inside a node [s], and its share of a device's bandwidth in nodes of 8
    devices: NCCL plans with 476 GB/s of bus bandwidth for 8 H100 of 450 GB/s each. Larger nodes
    have `domain_share` of it."""
    nvls_efficiency: Efficiency = 0.68
    """Latency of NVLS inside a node [s], and its share of a device's bandwidth in nodes of 8
    devices: NCCL plans with 476 GB/s of bus bandwidth for 8 H100 of 450 GB/s each. Larger nodes
    have `domain_share` of it."""
    stages: Literal["overlapped", "summed"] = "overlapped"
    """Whether links inside and between nodes are used at once (GPUDirect, peer-to-peer), or one
    host thread copies for both (sockets): 1/B = 1/B_intra + 1/B_inter."""
    flow_bandwidth: Bandwidth | None = None
    """Bandwidth of one TCP flow [bytes/s]; with ``flows_per_pair`` of them between two nodes."""
    flows_per_pair: Int = Field(1, ge=1, le=1024)
    """NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD, over all channels."""
    two_nodes: Float = Field(1.0, gt=0, le=4)
    """Share of these flows between two nodes that are each other's only neighbour: both directions
    of a ring use them."""
    nodes_exponent: Float = Field(0.0, ge=0, le=1)
    """Loss of bandwidth with the number of nodes: a node's share is multiplied by ``(nodes / 2)``
    to the power of ``-nodes_exponent``, as every step of a ring waits for the slowest of its flows.
    NCCL's sockets on Polaris lost 19 % from 2 to 8 nodes and about half to 128; clusters whose
    bandwidth was measured on many nodes need none."""
    host_bandwidth: Bandwidth | None = None
    """Total bandwidth of a node's devices through host memory or a shared PCIe root [bytes/s],
    shared equally."""

    @cached_property
    def known(self) -> dict[tuple[str, float, Wiring], ProtocolChoice]:
        """Cache of choices, up to `MAX_KNOWN`; not part of the value."""
        return {}

    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        return self.choice(collective, nbytes, wiring).seconds

    def problem_with(self, collective: str, wiring: Wiring) -> str | None:
        if wiring.world_size == 1 or any(True for _ in self.ways(collective, wiring)):
            return None
        return f"cost nccl has no algorithm for {collective}; add ring to its algorithms"

    def choice(self, collective: str, nbytes: float, wiring: Wiring) -> ProtocolChoice:
        """Return the chosen algorithm and protocol, and the time; arguments as for `seconds`.

        Raises
        ------
        ValueError
            If no algorithm supports it.
        """
        key = (collective, nbytes, wiring)
        chosen = self.known.get(key)
        if chosen is None:
            if wrong := self.problem_with(collective, wiring):
                raise ValueError(wrong)
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            every = self.choices(collective, nbytes, wiring)
            chosen = self.known[key] = min(every, key=lambda choice: choice.seconds)
        return chosen

    def choices(self, collective: str, nbytes: float, wiring: Wiring) -> Iterator[ProtocolChoice]:
        """Yield all candidates of a collective, and their times."""
        if wiring.world_size == 1:
            yield ProtocolChoice("none", "none", 0.0)
            return
        for algorithm, protocol, way in self.ways(collective, wiring):
            seconds = self._time(algorithm, protocol, way, nbytes, wiring)
            yield ProtocolChoice(algorithm, protocol, seconds)

    def ways(self, collective: str, wiring: Wiring) -> Iterator[tuple[str, str, AlgorithmTraffic]]:
        """Yield candidate algorithms and protocols of a collective, with their traffic."""
        for algorithm, making in WAYS[collective].items():
            if algorithm != "p2p" and algorithm not in self.algorithms:
                continue
            way = making(wiring)
            if way is not None:
                for protocol in ("simple",) if algorithm == "nvls" else self.protocols:
                    yield algorithm, protocol, way

    def way(self, collective: str, nbytes: float, wiring: Wiring) -> AlgorithmTraffic:
        """Return the traffic of the chosen algorithm; arguments and errors as of `choice`."""
        chosen = self.choice(collective, nbytes, wiring).algorithm
        return next(way for name, _, way in self.ways(collective, wiring) if name == chosen)

    def hop_time(self, where: str, algorithm: str, protocol: str, alpha: float) -> float:
        """Return the time of a hop, ``intra`` or ``inter``, over a link with this ``alpha`` [s]."""
        if algorithm == "nvls" and where == "intra":
            return self.nvls_hop
        given = getattr(getattr(self.hop, where), protocol)
        hop = alpha * HOP_OVER_ALPHA[where][protocol] if given is None else given
        return float(hop * TREE_OVER_RING[where][protocol] if algorithm == "tree" else hop)

    def share(self, place: str, protocol: str, w: Wiring) -> float:
        """Return the share of the bandwidth, ``intra`` or ``inter``, for payload of rings."""
        given = getattr(getattr(self.efficiency, place), protocol)
        if given is not None:
            return float(given)
        if place == "intra":
            return share_of("peer", self.peer or w.peer, protocol, w.intra_bandwidth)
        return share_of("network", self.network or w.network, protocol, w.inter_bandwidth)

    def before(self) -> float:
        """Return the time of all launches of a process [s]."""
        return self.launch + (self.devices_per_process - 1) * self.launch_per_device

    def host_share(self, wiring: Wiring) -> float:
        """Return the host bandwidth of each device of a node [bytes/s]; infinite if unlimited."""
        return inf if self.host_bandwidth is None else self.host_bandwidth / wiring.local_size

    def flow_share(self, wiring: Wiring, protocol: str = "simple") -> float:
        """Return the payload bandwidth of a node's flows [bytes/s]; infinite without a limit."""
        if self.flow_bandwidth is None:
            return inf
        shared = self.two_nodes if wiring.num_nodes == 2 else 1.0
        return self.flow_bandwidth * self.flows_per_pair * shared * PAYLOAD[protocol]

    def _time(
        self, algorithm: str, protocol: str, way: AlgorithmTraffic, nbytes: float, w: Wiring
    ) -> float:
        latency = way.intra_hops * self.hop_time("intra", algorithm, protocol, w.intra_alpha)
        inter_hop = self.hop_time("inter", algorithm, protocol, w.inter_alpha)
        latency += way.inter_hops * inter_hop
        if nbytes >= STEPS_FROM:
            latency = max(latency, way.ring_steps * float(getattr(self.ring_step, protocol)))
        is_deep = way.deep_hops > 0 and protocol != "ll"
        if is_deep:
            further = self.tree_step * min(nbytes / TREE_CHUNK, 1.0)
            latency += way.deep_hops * max(further - inter_hop, 0.0)
        share = 1.0
        if algorithm == "tree":
            share = max(self.tree_efficiency, DEEP_TREES * is_deep)
        intra = nbytes * way.intra_sent / (share * self._intra(algorithm, protocol, w))
        inter = nbytes * way.inter_sent / (share * self._inter(protocol, w))
        before = self.before(), float(getattr(self.base, protocol))
        return float(self.total(*before, latency, (intra, inter), self.ramp))

    def total(
        self,
        launch: float,
        base: Any,
        latency: Any,
        stages: Sequence[Any],
        ramp: float,
        functions: tuple[Callable[..., Any], ...] = (max, hypot, sqrt),
    ) -> Any:
        """Add up the terms of the module's formula [s]; of arrays with NumPy's ``functions``."""
        larger, length, root = functions
        intra, inter = stages
        if self.stages == "summed":
            wire, both = intra + inter, latency + intra + inter
        else:
            wire = larger(intra, inter)
            both = length(latency, wire)
        return launch + base + both + 2 * root(ramp * wire)

    def _intra(self, algorithm: str, protocol: str, w: Wiring) -> float:
        if w.local_size == 1:
            return inf
        if algorithm == "nvls":
            return self.nvls_efficiency * domain_share(w) * w.intra_bandwidth
        return min(self.share("intra", protocol, w) * w.intra_bandwidth, self.host_share(w))

    def _inter(self, protocol: str, w: Wiring) -> float:
        if w.num_nodes == 1:
            return inf
        share = self.share("inter", protocol, w) * float((w.num_nodes / 2) ** -self.nodes_exponent)
        return min(share * w.inter_bandwidth, self.flow_share(w, protocol))
