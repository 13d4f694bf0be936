"""How fast the event fabric is where many flows share links, and how far off fixed shares are.

python -m benchmarks.fabrics
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any

import numpy as np

from benchmarks.table import Row, show
from simdp.cluster import Cluster
from simdp.collectives import ALL_REDUCE
from simdp.collectives.plans import Plan, Round, even_offsets
from simdp.collectives.ring import RingAllReduce
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import shared_link
from simdp.engine.ops import ClockOp, ClockWait, ComputeWork, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import layout
from tests.closed_forms import ring_all_reduce_time

NBYTES = 25e6
RANKS = 64
LOCKSTEP, JITTERED, SECONDS = 1e5, 2e4, 1.0
"""Targets: transfers a second, and the time of one ring [s]."""

PORTS, OVERSUBSCRIPTION = 4, 4
TRUNK = {
    "topology": {
        "kind": "fat_tree",
        "ports_per_leaf": PORTS,
        "oversubscription": OVERSUBSCRIPTION,
    },
    "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
}
NIC = {"topology": "switch", "link": "ib-hdr"}


def cluster(**more: Any) -> Cluster:
    link = {"alpha": "5 us", "bandwidth": "25 GB/s"}
    raw = {"world_size": RANKS, "device": "a100-sxm4-80gb", "topology": "ring", "link": link}
    return Cluster.model_validate({**raw, **more})


def calls(plan: Plan, count: int, jitter: float) -> Iterator[ClockOp]:
    """Ranks work for a random time and then communicate, again and again."""
    random = np.random.default_rng(0)
    for number in range(count):
        yield ComputeWork(0, "forward", "work", random.random(plan.world_size) * jitter)
        yield Launch(0, "call", number, plan, NBYTES, False)
        yield ClockWait((number,))


class Played:
    """What the event fabric did with a plan that is launched again and again.

    Attributes
    ----------
    shared : bool
        Whether any link is.
    transfers : int
        How many there were.
    seconds : float
        CPU time [s].
    end : float
        When the last rank was done [s].
    """

    def __init__(self, network: NetworkRoutes, plan: Plan, count: int, jitter: float = 0.0) -> None:
        self.shared = shared_link(network, [plan]) is not None
        trace = TraceBuilder()
        begin = process_time()
        job = FabricJob(network, {0: [plan]}, Slowdown(network.cluster, 0), trace)
        EventFabric([job]).play([calls(plan, count, jitter)])
        self.seconds = process_time() - begin
        self.transfers = plan.num_transfers * count
        self.end = float(trace.build().end.max())

    @property
    def speed(self) -> float:
        """Transfers per second."""
        return self.transfers / self.seconds


def neighbours(world_size: int, distance: int, rounds: int) -> Plan:
    """Every rank sends to the one ``distance`` ahead, as often as there are rounds."""
    src = np.arange(world_size)
    one = Round(src, (src + distance) % world_size, np.zeros_like(src), False)
    return Plan("broadcast", world_size, 1, 0, lambda: iter([one] * rounds), even_offsets(1))


def dealt_over_leaves() -> NetworkRoutes:
    """A fat tree whose leaves get a rank each in turn, so that a ring meets on every trunk."""
    where = cluster(devices_per_node=1, inter_node=TRUNK)
    rank = np.arange(RANKS)
    leaves = RANKS // PORTS
    return NetworkRoutes(where, rank % leaves * PORTS + rank // leaves)


def ring_on_a_fat_tree() -> Row:
    """One all_reduce; four flows share every trunk, all the time and evenly."""
    plan = RingAllReduce().plan(RANKS, NBYTES)
    played = Played(dealt_over_leaves(), plan, 1)
    expected = ring_all_reduce_time(NBYTES, RANKS, 4 * 5e-6, OVERSUBSCRIPTION / 25e9)
    error = abs(played.end / expected - 1)
    figure = f"{played.seconds:.2f} s, off {error:.0e}; {played.speed:,.0f} transfers/s"
    reached = played.shared and played.seconds <= SECONDS and error <= 1e-9
    return "events: ring of 64, fat tree", figure, f"{SECONDS} s", reached


def _row(what: str, played: Played, target: float, shared: bool = True) -> Row:
    reached = played.speed >= target and played.shared == shared
    return f"events: {what}", f"{played.speed:,.0f} transfers/s", f"{target:,.0f}", reached


def rows() -> Iterator[Row]:
    """64 ranks: on a ring, on the trunks of a fat tree, and eight to a network card."""
    ring, flows = RingAllReduce().plan(RANKS, NBYTES), neighbours(RANKS, 8, 50)
    nodes = NetworkRoutes(cluster(topology="switch", devices_per_node=8, inter_node=NIC))
    yield _row("ring, unshared", Played(NetworkRoutes(cluster()), ring, 40), LOCKSTEP, False)
    yield _row("trunks, lockstep", Played(dealt_over_leaves(), ring, 10), LOCKSTEP)
    yield _row("cards, lockstep", Played(nodes, flows, 12), LOCKSTEP)
    yield _row("cards, jitter", Played(nodes, flows, 12, 1e-3), JITTERED)
    yield _row("trunks, jitter", Played(dealt_over_leaves(), ring, 2, 1e-3), JITTERED)
    yield ring_on_a_fat_tree()


KINDS = ("ring", "halving_doubling", "direct", "tree", "double_binary_tree", "multi_ring")
SIZES = (1e6, 16e6)
FARTHEST = 0.2
"""What fixed shares may be off by."""


def places(world_size: int) -> dict[str, Cluster]:
    """Networks of 16 to 64 ranks."""
    tree = {"kind": "fat_tree", "ports_per_leaf": 4, "oversubscription": 2}
    fly = {
        "kind": "dragonfly",
        "ports_per_router": 2,
        "routers_per_group": 2,
        "groups": world_size // 4,
    }
    found = {
        name: cluster(world_size=world_size, topology=name)
        for name in ("switch", "ring", "torus2d")
    }
    for between in (tree, fly):
        inter = {**TRUNK, "topology": between}
        name = str(between["kind"])
        found[name] = cluster(world_size=world_size, devices_per_node=1, inter_node=inter)
    return found


def off(where: Cluster, plan: Plan, nbytes: float) -> float:
    """How far fixed shares are off the event fabric, for ranks that arrive together."""
    network, idle = NetworkRoutes(where), Slowdown(where, 0)
    job = FabricJob(network, {0: [plan]}, idle, TraceBuilder(keep=False))
    EventFabric([job]).play([iter([Launch(0, "call", 0, plan, nbytes, False), ClockWait((0,))])])
    fixed = VectorFabric(network, idle, TraceBuilder(keep=False), fixed=True)
    enter = np.zeros(where.world_size)
    return float(fixed.times(plan, nbytes, enter).max() / max(job.calls[0].end.values()) - 1)


def share_rows(sizes: Sequence[int] = (16, 64)) -> Iterator[Row]:
    """All_reduces of 1 and 16 MB against the event fabric, where they share links."""
    for world_size in sizes:
        for name, where in places(world_size).items():
            for kind in KINDS:
                errors = []
                for nbytes in SIZES:
                    plan = ALL_REDUCE[kind].model_validate({"kind": kind})
                    made = plan.plan(layout(where), nbytes)
                    if shared_link(NetworkRoutes(where), [made]) is not None:
                        errors.append(off(where, made, nbytes))
                if errors:
                    said = ", ".join(f"{100 * error:+.1f} %" for error in errors)
                    reached = max(map(abs, errors)) <= FARTHEST
                    yield f"{kind}, {name} of {world_size}", said, f"{FARTHEST:.0%}", reached


def main() -> int:
    fast = show("event fabric, CPU time", list(rows()))
    return fast | show("fixed shares, off the event fabric at 1 and 16 MB", list(share_rows()))


if __name__ == "__main__":
    raise SystemExit(main())
