"""Small clusters of every shape, random plans, and an event fabric that is watched."""

import numpy as np
from hypothesis import strategies as st

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES
from simdp.collectives.plans import Plan, Round, even_offsets
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob, Transfers
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import shared_link
from simdp.engine.ops import ClockWait, ComputeWork, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder

DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
}
FAT_TREE = {"kind": "fat_tree", "ports_per_leaf": 2, "oversubscription": 2}
INSIDE = ["ring", "switch", "full_mesh", "torus2d", "cube_mesh", "pcie_tree"]
BETWEEN = ["switch", "ring", "full_mesh", "torus2d", FAT_TREE]


def cluster(world_size, topology="switch", alpha="5 us", bandwidth="25 GB/s", **more):
    link = {"alpha": alpha, "bandwidth": bandwidth}
    raw = {"world_size": world_size, "device": DEVICE, "topology": topology, "link": link}
    return Cluster.model_validate({**raw, **more})


def between(topology, alpha="9 us", bandwidth="11 GB/s", cards=1):
    """The network between nodes."""
    link = {"alpha": alpha, "bandwidth": bandwidth}
    return {"topology": topology, "link": link, "links_per_node": cards}


@st.composite
def clusters(draw):
    """One to three nodes."""
    nodes, inside = draw(st.integers(1, 3)), draw(st.sampled_from(INSIDE))
    local_size = 8 if inside == "cube_mesh" else draw(st.integers(1, 6))
    if nodes * local_size == 1:
        local_size = 2
    cards = draw(st.sampled_from([1, local_size]))
    net = between(draw(st.sampled_from(BETWEEN)), cards=cards)
    return cluster(nodes * local_size, inside, devices_per_node=local_size, inter_node=net)


def random_plan(random, world_size, order=None):
    """Rounds of transfers of random chunks between random ranks."""
    order = order or str(random.choice(["chunk", "rank"]))
    num_chunks, rounds = int(random.integers(1, 5)), []
    for _ in range(random.integers(1, 5)):
        pairs = set()
        for _ in range(random.integers(1, 5)):
            src, dst = random.choice(world_size, 2, replace=False)
            pairs.add((int(src), int(dst)))
        src, dst = np.array(sorted(pairs)).T
        chunk = random.integers(0, num_chunks, len(src))
        rounds.append(Round(src, dst, chunk, False))
    offsets = even_offsets(num_chunks)
    return Plan("broadcast", world_size, num_chunks, 0, lambda: iter(rounds), offsets, order)


def serving(where_layout, family=None):
    """Every algorithm that can serve a layout, as it is by default."""
    tables = FAMILIES if family is None else {family: FAMILIES[family]}
    return [
        FAMILIES[name][kind]()
        for name, table in tables.items()
        for kind in table
        if kind not in ("auto", "msccl")
        and FAMILIES[name][kind]().problem_with(where_layout) is None
    ]


class Watching(Transfers):
    """Transfers that remember when each of them used which links.

    ``uses`` holds link, start and end of each.
    """

    def __init__(self, loop, links):
        super().__init__(loop, links)
        self.uses, self._began = [], {}

    def _start(self, where, i, now):
        self._began[id(where[1]), i] = now
        super()._start(where, i, now)

    def _arrive(self, where, i, now):
        began = self._began.pop((id(where[1]), i))
        route = self.wires.route[where[1].needs.connection[i]]
        self.uses += [(int(link), began, now) for link in route]
        super()._arrive(where, i, now)

    def overlaps(self):
        """Pairs of uses of one link that have time in common."""
        found, last = [], {}
        for link, start, end in sorted(self.uses):
            if link in last and start < last[link][2] * (1 - 1e-12) and end > start:
                found.append((last[link], (link, start, end)))
            if link not in last or end > last[link][2]:
                last[link] = (link, start, end)
        return found


def late(random, num_calls, world_size):
    """What ranks do before each collective: nothing, or more or less random work [s]."""
    return random.exponential(random.choice([0, 1e-6, 1e-4, 1e-2]), (num_calls, world_size))


def calls(launched, delays, record=True):
    """Ranks work for a while, take part in a collective, and go on to the next; then they wait."""
    for number, (plan, nbytes) in enumerate(launched):
        yield ComputeWork(0, "forward", "work", np.asarray(delays[number], dtype=float))
        yield Launch(0, f"call {number}", number, plan, nbytes, record)
    yield ClockWait(tuple(range(len(launched))))


def watched(where, launched, delays):
    """Play collectives on the event fabric, and return its transfers and its trace."""
    trace = TraceBuilder()
    plans = [plan for plan, _ in launched]
    job = FabricJob(NetworkRoutes(where), {0: plans}, Slowdown(where, 0), trace)
    fabric = EventFabric([job], Watching)
    fabric.play([calls(launched, delays)])
    return fabric.transfers, trace.build()


def durations(where, plan, nbytes):
    """How long a collective takes on both clocks; on one where transfers may share a link."""
    found = []
    alone = shared_link(NetworkRoutes(where), [plan]) is None
    for fabric in ("event", "vector") if alone else ("event",):
        trace, network, slowdown = TraceBuilder(), NetworkRoutes(where), Slowdown(where, 0)
        script = iter([Launch(0, "call", 0, plan, nbytes, True), ClockWait((0,))])
        if fabric == "event":
            EventFabric([FabricJob(network, {0: [plan]}, slowdown, trace)]).play([script])
        else:
            VectorFabric(network, slowdown, trace).play(script)
        found.append(trace.build().end.max(initial=0.0))
    return found


def vectorised(where, launched, delays):
    """The trace of collectives on the vectorised fabric."""
    trace = TraceBuilder()
    VectorFabric(NetworkRoutes(where), Slowdown(where, 0), trace).play(calls(launched, delays))
    return trace.build()
