"""Two clocks for one plan: equal to each other, to closed forms, and to hand-solved sharing."""

from collections import defaultdict

import closed_forms
import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES
from simdp.collectives.direct import NaiveAllReduce
from simdp.collectives.plans import Plan, Round, even_offsets
from simdp.collectives.ring import (
    RingAllGather,
    RingAllReduce,
    RingBroadcast,
    RingReduceScatter,
)
from simdp.collectives.tree import TreeAllReduce, TreeReduce
from simdp.engine.clocks import vector as recurrences
from simdp.engine.clocks import vector as rings
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import Connections, NetworkRoutes
from simdp.engine.network.traffic import shared_link
from simdp.engine.ops import ClockWait, ComputeWork, Launch
from simdp.engine.slowdown import Slowdown
from simdp.errors import DeadlockError, ScenarioError
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import layout

SIFTS = [HealthCheck.filter_too_much, HealthCheck.too_slow]

pytestmark = pytest.mark.slow

ALPHA, BANDWIDTH = 5e-6, 25e9
DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "0 s",
}
NO_PLAN_OF_THEIR_OWN = {"auto", "msccl"}
"""Kinds that choose another one, or read a file."""

ALGORITHMS = [
    pytest.param(family, kind, id=f"{family}-{kind}")
    for family, table in FAMILIES.items()
    for kind in table
    if kind not in NO_PLAN_OF_THEIR_OWN
]


WITHOUT_SWITCHES = [p for p in ALGORITHMS if p.values[1] not in ("nvls", "sharp")]


def algorithm_for(family, kind, where, **options):
    """An algorithm, and the plan that it makes for a cluster; skips what cannot serve it."""
    algorithm = FAMILIES[family][kind](**options)
    if where.world_size > 1 and algorithm.problem_with(layout(where)):
        return None
    return algorithm


def cluster(world_size, topology="full_mesh", **more):
    link = {"alpha": "5 us", "bandwidth": "25 GB/s"}
    raw = {"world_size": world_size, "device": DEVICE, "topology": topology, "link": link}
    return Cluster.model_validate({**raw, **more})


def calls(plan, nbytes, delays, record=True):
    """Ranks work for a while, take part in a collective, and again."""
    for number, seconds in enumerate(delays):
        yield ComputeWork(0, "forward", "work", np.asarray(seconds, dtype=float))
        yield Launch(0, f"call {number}", number, plan, nbytes, record)
        yield ClockWait((number,))


def play(fabric, where, plan, nbytes, delays):
    trace, network, slowdown = TraceBuilder(), NetworkRoutes(where), Slowdown(where, 0)
    if fabric == "event":
        job = FabricJob(network, {0: [plan]}, slowdown, trace)
        EventFabric([job]).play([calls(plan, nbytes, delays)])
    else:
        VectorFabric(network, slowdown, trace).play(calls(plan, nbytes, delays))
    return trace.build()


def alone(where, plan):
    """The event fabric of one job with one plan."""
    return EventFabric(
        [FabricJob(NetworkRoutes(where), {0: [plan]}, Slowdown(where, 0), TraceBuilder())]
    )


def duration(fabric, where, plan, nbytes):
    trace = play(fabric, where, plan, nbytes, [np.zeros(where.world_size)])
    return trace.end.max(initial=0.0)


@for_each("fabric", ["event", "vector"])
@for_each("topology", ["ring", "full_mesh"])
@for_each("world_size", [1, 2, 3, 8, 13])
@for_each("nbytes", [0.0, 1.0, 25e6, 1e6 / 3])
def test_ring_all_reduce_takes_its_closed_form(fabric, topology, world_size, nbytes):
    plan = RingAllReduce().plan(world_size, nbytes)
    expected = closed_forms.ring_all_reduce_time(nbytes, world_size, ALPHA, 1 / BANDWIDTH)
    found = duration(fabric, cluster(world_size, topology), plan, nbytes)
    assert found == pytest.approx(expected, rel=1e-12)


@for_each("fabric", ["event", "vector"])
@for_each("world_size", [1, 2, 3, 7, 8, 16])
@for_each("nbytes", [0.0, 3e5, 25e6])
def test_trees_chains_and_the_naive_way_take_their_closed_forms(fabric, world_size, nbytes):
    where, n, beta = cluster(world_size), world_size, 1 / BANDWIDTH
    for algorithm, formula in (
        (TreeAllReduce(), closed_forms.tree_all_reduce_time),
        (TreeReduce(), closed_forms.tree_reduce_time),
        (RingBroadcast(), closed_forms.ring_broadcast_time),
    ):
        plan = algorithm.plan(n, nbytes)
        expected = formula(nbytes, n, ALPHA, beta, plan.num_chunks)
        assert duration(fabric, where, plan, nbytes) == pytest.approx(expected, rel=1e-12)
    plan = NaiveAllReduce().plan(n, nbytes)
    expected = closed_forms.naive_all_reduce_time(nbytes, n, ALPHA, beta, sharing=False)
    assert duration(fabric, where, plan, nbytes) == pytest.approx(expected, rel=1e-12)


def test_the_naive_way_shares_rank_0s_port_behind_a_switch():
    plan = NaiveAllReduce().plan(8, 25e6)
    expected = closed_forms.naive_all_reduce_time(25e6, 8, 2 * ALPHA, 1 / BANDWIDTH, sharing=True)
    assert duration("event", cluster(8, "switch"), plan, 25e6) == pytest.approx(expected, rel=1e-12)


def test_a_switch_charges_the_latency_of_two_links():
    plan = RingAllReduce().plan(4, 4e6)
    expected = closed_forms.ring_all_reduce_time(4e6, 4, 2 * ALPHA, 1 / BANDWIDTH)
    for fabric in ("event", "vector"):
        found = duration(fabric, cluster(4, "switch"), plan, 4e6)
        assert found == pytest.approx(expected, rel=1e-12)


def clusters(world_size, local_size):
    """Full meshes; every pair of nodes has links for every local rank; switches that add."""
    if local_size == 1:
        local_size = world_size
    more = {}
    if local_size < world_size:
        wires = {"topology": "full_mesh", "link": {"alpha": "9 us", "bandwidth": "11 GB/s"}}
        more["inter_node"] = {**wires, "links_per_node": local_size}
    return cluster(world_size, devices_per_node=local_size, **more)


def agree(where, plan, nbytes, delays):
    """Play a plan on both clocks, and hold every span of one against the other's."""
    event, vector = (play(fabric, where, plan, nbytes, delays) for fabric in ("event", "vector"))
    assert len(event) == len(vector)
    for column in ("rank", "lane", "activity"):
        np.testing.assert_array_equal(getattr(event, column), getattr(vector, column))
    for column in ("start", "end", "nbytes"):
        found, expected = getattr(event, column), getattr(vector, column)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=0)


@for_some(("family", "kind"), WITHOUT_SWITCHES, 3)
@settings(max_examples=4, deadline=None, suppress_health_check=SIFTS)
@given(
    nodes=st.integers(1, 4),
    local_size=st.integers(1, 5),
    slices=st.integers(1, 3),
    seed=st.integers(0, 1000),
    root=st.integers(0, 19),
)
def test_both_clocks_agree_under_random_delays(family, kind, nodes, local_size, slices, seed, root):
    random = np.random.default_rng(seed)
    nbytes = float(random.integers(0, 5_000_000))
    where = clusters(nodes * local_size, local_size)
    algorithm = algorithm_for(family, kind, where, slices=slices)
    assume(algorithm is not None)
    plan = algorithm.plan(layout(where), nbytes, root % where.world_size)
    assume(shared_link(NetworkRoutes(where), [plan]) is None)
    agree(where, plan, nbytes, late(random, 3, where.world_size))


def late(random, num_calls, world_size):
    """What ranks do before each collective: nothing, or more or less random work."""
    return random.exponential(random.choice([0, 1e-6, 1e-4, 1e-2]), (num_calls, world_size))


def switches(world_size, local_size):
    """Nodes with a switch inside, whose network cards, one for each rank, meet at a switch."""
    adding = {"kind": "switch", "in_network": True}
    link = {"alpha": "9 us", "bandwidth": "11 GB/s"}
    more = {"inter_node": {"topology": adding, "link": link, "links_per_node": local_size}}
    return cluster(world_size, adding, devices_per_node=local_size, **more)


ONE_PORT_AT_A_TIME = [
    ("all_reduce", "ring"),
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "hierarchical"),
    ("all_reduce", "torus2d"),
    ("all_to_all", "pairwise"),
    ("all_reduce", "nvls"),
    ("all_reduce", "sharp"),
]
"""Algorithms in which no rank sends to two others, or hears of two, at a time."""


@pytest.mark.parametrize(("family", "kind"), ONE_PORT_AT_A_TIME)
@settings(max_examples=8, deadline=None, suppress_health_check=SIFTS)
@given(nodes=st.integers(1, 3), local_size=st.sampled_from([2, 4]), seed=st.integers(0, 1000))
def test_both_clocks_agree_behind_switches_where_no_link_is_shared(
    family, kind, nodes, local_size, seed
):
    random = np.random.default_rng(seed)
    where = switches(nodes * local_size, local_size)
    algorithm = algorithm_for(family, kind, where)
    assume(algorithm is not None)
    nbytes = float(random.integers(0, 3_000_000))
    plan = algorithm.plan(layout(where), nbytes)
    assert shared_link(NetworkRoutes(where), [plan]) is None
    agree(where, plan, nbytes, late(random, 2, where.world_size))


@for_each(("family", "kind"), ONE_PORT_AT_A_TIME)
def test_these_share_no_link_behind_a_switch(family, kind):
    where = switches(8, 8) if kind == "nvls" else switches(16, 4)
    plan = FAMILIES[family][kind]().plan(layout(where), 1e6)
    assert shared_link(NetworkRoutes(where), [plan]) is None


# Rings in closed form ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RingAllReduce, RingReduceScatter, RingAllGather, RingBroadcast])
@settings(max_examples=20, deadline=None)
@given(
    nodes=st.integers(1, 6),
    local_size=st.integers(1, 5),
    slices=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_a_ring_in_closed_form_ends_as_round_by_round(kind, nodes, local_size, slices, seed):
    """With equal links, and with slow ones between nodes; for any arrival times."""
    random = np.random.default_rng(seed)
    where = switches(nodes * local_size, local_size)
    if where.world_size == 1:
        return
    is_rooted = kind is RingBroadcast
    plan = kind(slices=slices).plan(layout(where), 3e6, seed % where.world_size * is_rooted)
    fabric = VectorFabric(NetworkRoutes(where), Slowdown(where, 0), TraceBuilder())
    enter = late(random, 1, where.world_size)[0]
    record = Launch(0, "x", 0, plan, 3e6, True)
    expected = fabric.times(plan, 3e6, enter, record)  # to record, it must go through the rounds
    np.testing.assert_allclose(fabric.times(plan, 3e6, enter), expected, rtol=1e-11)


def speeds_of(data, n, groups):
    """Times of a transfer on each connection: a few speeds, other ones in every group."""
    some = st.sampled_from([1.0, 1.5, 2.0, 7.0])
    column = st.lists(some, min_size=n, max_size=n)
    return np.array(data.draw(st.lists(column, min_size=groups, max_size=groups))).T


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), groups=st.integers(1, 3), seed=st.integers(0, 999), data=st.data())
def test_a_ring_of_several_speeds_ends_as_round_by_round(n, groups, seed, data):
    time = speeds_of(data, n, groups)
    first = np.random.default_rng(seed).exponential(
        data.draw(st.sampled_from([0, 3, 30])), (n, groups)
    )
    plan = RingAllReduce().plan(n, 1.0)
    found = rings._closed(plan, time, first)
    if found is not None:
        expected = rings._round_by_round(plan, time, first, None)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    slow = time == time.max(axis=0)
    if n > 2 and (slow.sum(axis=0) > 1).all():  # then no way is longer than there are rounds
        assert found is not None


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(2, 9),
    groups=st.integers(1, 3),
    num_chunks=st.integers(1, 6),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_a_chain_of_several_speeds_ends_as_chunk_by_chunk(n, groups, num_chunks, seed, data):
    time = speeds_of(data, n - 1, groups)
    enter = np.random.default_rng(seed).exponential(5, (n, groups))
    places = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    empty = np.empty(0)
    connections = Connections(places, empty, empty, empty, time, empty)
    pace = recurrences.TransferPace(time / 2, time / 2)
    found = rings.chain(num_chunks, connections, pace, enter)
    expected, came = enter.copy(), np.zeros((num_chunks, groups))
    for p in range(n - 1):
        free = np.maximum(enter[p], enter[p + 1])
        for c in range(num_chunks):
            free = came[c] = np.maximum(free, came[c]) + time[p]
        expected[p : p + 2] = np.maximum(expected[p : p + 2], free)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rings_of_sixteen_thousand_ranks_need_no_rounds(monkeypatch):
    """On equal links, on nodes of eight with slow links between them, and on a tree of racks."""
    monkeypatch.setattr(rings, "_round_by_round", None)
    monkeypatch.setattr(recurrences, "by_chunk", None)
    late_ranks = np.random.default_rng(0).exponential(1e-3, 16_384)
    racks = {"topology": {"kind": "fat_tree", "levels": 3, "ports_per_leaf": 16}, "link": "ib-hdr"}
    tree = cluster(16_384, "switch", devices_per_node=8, inter_node={**racks, "links_per_node": 8})
    for where in (cluster(16_384, "ring"), switches(16_384, 8), tree):
        clock = VectorFabric(NetworkRoutes(where), Slowdown(where, 0), TraceBuilder())
        plan = RingAllReduce().plan(layout(where), 25e6)
        assert clock.times(plan, 25e6, late_ranks).min() > late_ranks.max()
        plan = RingBroadcast().plan(layout(where), 25e6, 3)
        assert (clock.times(plan, 25e6, late_ranks) > late_ranks).all()


def test_equal_collectives_with_equal_arrivals_are_computed_once(monkeypatch):
    where, calls_made = cluster(8, "switch"), []
    plan = FAMILIES["all_reduce"]["halving_doubling"]().plan(layout(where), 1e6)
    fabric = VectorFabric(NetworkRoutes(where), Slowdown(where, 0), TraceBuilder())
    real = recurrences.by_rank
    monkeypatch.setattr(recurrences, "by_rank", lambda *args: calls_made.append(1) or real(*args))
    enter = np.arange(8) * 2.0**-20
    first = fabric.times(plan, 1e6, enter)
    later = fabric.times(plan, 1e6, enter + 4.0)
    np.testing.assert_allclose(later - 4.0, first, rtol=1e-9)
    assert len(calls_made) == 1
    fabric.times(plan, 1e6, enter * 2)
    assert len(calls_made) == 2


# Streams and jobs --------------------------------------------------------------------------------


def test_two_streams_of_a_job_share_a_link_and_then_do_not():
    """Two rings of one job at once: each gets half of every link until the shorter one is done."""
    where, n = cluster(4, "ring"), 4
    plan = RingAllReduce().plan(n, 4e6)
    trace, network = TraceBuilder(), NetworkRoutes(where)
    job = FabricJob(network, {0: [plan], 1: [plan]}, Slowdown(where, 0), trace)
    script = [
        Launch(0, "a", 0, plan, 4e6, False, 0),
        Launch(0, "b", 1, plan, 4e6, False, 1),
        ClockWait((0, 1)),
    ]
    EventFabric([job]).play([iter(script)])
    both = trace.build().end.max()
    expected = closed_forms.ring_all_reduce_time(4e6, n, ALPHA, 2 / BANDWIDTH)
    assert both == pytest.approx(expected, rel=1e-12)


@for_each("nbytes", [8e6, 2e6])
def test_two_jobs_meet_on_the_network_between_nodes(nbytes):
    """Jobs on the two halves of two nodes, each with a ring over both, through one card a node."""
    link = {"alpha": "0 s", "bandwidth": "10 GB/s"}
    inter = {"topology": "switch", "link": link}
    fast = {"alpha": "0 s", "bandwidth": "1000 TB/s"}
    where = cluster(4, "switch", devices_per_node=2, inter_node=inter, link=fast)
    half = cluster(2, "switch")
    plan = RingAllReduce().plan(2, nbytes)
    traces = [TraceBuilder(), TraceBuilder()]
    jobs = [
        FabricJob(NetworkRoutes(where, np.array(ranks)), {0: [plan]}, Slowdown(half, 0), trace)
        for ranks, trace in zip(([0, 2], [1, 3]), traces, strict=True)
    ]
    scripts = [
        iter([Launch(0, "x", 0, plan, 8e6, False), ClockWait((0,))]),
        iter([Launch(0, "x", 0, plan, nbytes, False), ClockWait((0,))]),
    ]
    EventFabric(jobs).play(scripts)
    first, second = (trace.build().end.max() for trace in traces)
    # Every byte of both crosses each card in each direction; the smaller job ends at its half.
    assert second == pytest.approx(2 * nbytes / 10e9, rel=1e-9)
    assert first == pytest.approx((8e6 + nbytes) / 10e9, rel=1e-9)


@pytest.mark.parametrize("topology", ["ring", "switch", "full_mesh"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), data=st.data())
def test_bytes_are_conserved_and_lanes_never_overlap(topology, seed, data):
    random = np.random.default_rng(seed)
    world_size = data.draw(st.integers(2, 8))
    algorithm = data.draw(st.sampled_from([RingAllReduce(), TreeAllReduce(), NaiveAllReduce()]))
    nbytes = float(random.integers(1, 3_000_000))
    plan = algorithm.plan(world_size, nbytes)
    delays = random.exponential(1e-4, (2, world_size))
    trace = play("event", cluster(world_size, topology), plan, nbytes, delays)
    moved = defaultdict(float)
    last_end = defaultdict(float)
    for span in trace.spans:
        key = (span.rank, span.lane)
        assert span.start >= last_end[key] * (1 - 1e-12)
        assert span.end >= span.start
        last_end[key] = span.end
        moved[span.activity] += span.nbytes
    # What the transfers carry is what the ranks' collectives say that they sent.
    assert moved["transfer"] == pytest.approx(moved["comm"], rel=1e-12)
    assert moved["comm"] == pytest.approx(
        2 * plan.sends_per_rank.sum() * nbytes / plan.num_chunks, rel=1e-12
    )


def flows_plan(world_size, transfers, rounds=1):
    """Transfers of the whole buffer, src to dst, all in one round; as often as there are rounds."""
    src, dst = (np.array(column) for column in zip(*transfers, strict=True))
    one = Round(src, dst, np.zeros_like(src), False)
    return Plan("broadcast", world_size, 1, 0, lambda: iter([one] * rounds), even_offsets(1))


def transfer_ends(trace):
    return {
        (span.rank, int(span.lane.removeprefix("send to "))): span.end
        for span in trace.spans
        if span.activity == "transfer"
    }


NBYTES = 25e6  # a millisecond of a whole link


def test_two_flows_share_a_link_until_the_shorter_way_is_done():
    # Ring of 6: 0 -> 1 -> 2 and 1 -> 2 share the link from 1 to 2, with latencies 2 and 1.
    plan = flows_plan(6, [(0, 2), (1, 2)])
    ends = transfer_ends(play("event", cluster(6, "ring"), plan, NBYTES, [np.zeros(6)]))
    # From 5 us the direct flow runs alone; from 10 us both have half; it ends first.
    whole, alone = NBYTES / BANDWIDTH, ALPHA
    direct = 2 * ALPHA + 2 * (whole - alone)
    assert ends[1, 2] == pytest.approx(direct, rel=1e-12)
    assert ends[0, 2] == pytest.approx(2 * ALPHA + 2 * whole - alone, rel=1e-12)


def test_a_flow_that_is_held_up_elsewhere_leaves_its_share_to_others():
    # Behind a switch: 0, 1 and 2 send to 3, whose port gives each a third; 0 also sends to 4.
    # Max-min: 0 -> 4 gets the two thirds of 0's port that 0 -> 3 cannot use.
    plan = flows_plan(5, [(0, 3), (1, 3), (2, 3), (0, 4)])
    ends = transfer_ends(play("event", cluster(5, "switch"), plan, NBYTES, [np.zeros(5)]))
    whole = NBYTES / BANDWIDTH
    assert ends[0, 4] == pytest.approx(2 * ALPHA + 1.5 * whole, rel=1e-12)
    for src in range(3):
        assert ends[src, 3] == pytest.approx(2 * ALPHA + 3 * whole, rel=1e-12)


def test_directions_of_a_link_do_not_share():
    plan = flows_plan(2, [(0, 1), (1, 0)])
    ends = transfer_ends(play("event", cluster(2, "ring"), plan, NBYTES, [np.zeros(2)]))
    assert set(ends.values()) == {ALPHA + NBYTES / BANDWIDTH}


@for_each(("cards", "factor"), [(1, 4), (2, 2), (4, 1)])
def test_network_cards_are_shared_by_the_ranks_they_serve(cards, factor):
    where = cluster(
        8,
        "switch",
        devices_per_node=4,
        inter_node={
            "topology": "switch",
            "link": {"alpha": "10 us", "bandwidth": "12.5 GB/s"},
            "links_per_node": cards,
        },
    )
    plan = flows_plan(8, [(rank, rank + 4) for rank in range(4)])
    ends = transfer_ends(play("event", where, plan, NBYTES, [np.zeros(8)]))
    expected = 20e-6 + factor * NBYTES / 12.5e9
    assert list(ends.values()) == pytest.approx([expected] * 4, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_shared_links_never_carry_more_than_their_bandwidth(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 9))
    pairs = {tuple(map(int, random.choice(n, 2, replace=False))) for _ in range(12)}
    where = cluster(n, random.choice(["ring", "switch"]))
    trace = play("event", where, flows_plan(n, sorted(pairs)), NBYTES, [random.random(n) * 1e-3])
    spans = [span for span in trace.spans if span.activity == "transfer"]
    used = defaultdict(float)
    for span in spans:
        dst = int(span.lane.removeprefix("send to "))
        for link in where.routes(np.array([span.rank]), np.array([dst]))[0]:
            if link >= 0:
                used[link] += span.nbytes
    whole = max(span.end for span in spans) - min(span.start for span in spans)
    assert all(nbytes <= BANDWIDTH * whole for nbytes in used.values())


def test_a_late_rank_holds_the_ring_up_by_its_delay():
    late = np.zeros(8)
    late[3] = 1e-3
    plan = RingAllReduce().plan(8, 8e6)
    for fabric in ("event", "vector"):
        trace = play(fabric, cluster(8, "ring"), plan, 8e6, [late])
        expected = 1e-3 + closed_forms.ring_all_reduce_time(8e6, 8, ALPHA, 1 / BANDWIDTH)
        assert trace.end.max() == pytest.approx(expected, rel=1e-12)
        waits = {
            span.rank: span.end - span.start for span in trace.spans if span.activity == "wait"
        }
        assert waits == pytest.approx({rank: 1e-3 for rank in range(8) if rank != 3})


def test_a_rank_that_leaves_a_broadcast_early_waits_for_nobody_afterwards():
    late = np.array([0.0, 0.0, 0.0, 5e-3])
    trace = play("vector", cluster(4), RingBroadcast().plan(4, 1e5), 1e5, [late])
    first = [span for span in trace.spans if span.rank == 1 and span.lane == "comm"]
    # Rank 1 has sent on to rank 2 long before rank 3 enters.
    assert first[-1].end < 1e-3


# Deadlock --------------------------------------------------------------------------------------


def one_rank(ops):
    yield from ops


def test_a_deadlock_names_each_waiting_rank_and_what_it_waits_for():
    where, plan = cluster(3), RingAllReduce().plan(3, 3e3)
    fabric = alone(where, plan)
    join = [Launch(0, "bucket 0", 0, plan, 3e3, False), ClockWait((0,))]
    with pytest.raises(DeadlockError) as caught:
        fabric.play_each([[one_rank(join), one_rank(join), one_rank([])]])
    assert caught.value.waiting == [
        "rank 0 waits in all_reduce 'bucket 0' for rank 2 to enter",
        "rank 1 waits in all_reduce 'bucket 0' for rank 2 to enter",
    ]
    assert caught.value.exit_status == 4


def test_ranks_that_call_in_different_orders_deadlock_and_say_so():
    where, plan = cluster(2), RingAllReduce().plan(2, 2e3)
    fabric = alone(where, plan)
    a, b = (Launch(0, name, i, plan, 2e3, False) for i, name in enumerate("ab"))
    with pytest.raises(DeadlockError) as caught:
        fabric.play_each([[one_rank([a, b, ClockWait((1,))]), one_rank([b, a, ClockWait((0,))])]])
    assert caught.value.waiting == [
        "rank 0 waits in all_reduce 'b', behind all_reduce 'a'",
        "rank 1 waits in all_reduce 'a', behind all_reduce 'b'",
    ]


@for_each("others", [[], "launch"])
def test_waiting_for_what_a_rank_never_launched_is_a_deadlock(others):
    where, plan = cluster(2), RingAllReduce().plan(2, 2e3)
    fabric = alone(where, plan)
    first = [Launch(0, "x", 7, plan, 2e3, False)] if others else []
    with pytest.raises(DeadlockError) as caught:
        fabric.play_each([[one_rank(first), one_rank([ClockWait((7,))])]])
    assert caught.value.waiting == ["rank 1 waits for a collective that it never launched"]
    assert str(caught.value) == f"deadlock: {caught.value.waiting[0]}"


def test_a_wrong_input_found_while_ranks_play_keeps_its_lines():
    def script():
        yield ComputeWork(0, "forward", "x", np.zeros(2))
        raise ScenarioError(["data.npz: is gone.", "more.npz: is gone."])

    where, plan = cluster(2), RingAllReduce().plan(2, 2e3)
    fabric = alone(where, plan)
    with pytest.raises(ScenarioError) as caught:
        fabric.play([script()])
    assert caught.value.problems == ["data.npz: is gone.", "more.npz: is gone."]


def test_a_transfer_to_a_rank_that_never_enters_is_a_deadlock():
    rounds = [
        Round(np.array([0]), np.array([1]), np.array([0]), False),
        Round(np.array([1]), np.array([0]), np.array([0]), False),
    ]
    plan = Plan("broadcast", 3, 1, 0, lambda: iter(rounds), even_offsets(1))
    where = cluster(3)
    fabric = alone(where, plan)
    join = [Launch(0, "x", 0, plan, 1e3, False), ClockWait((0,))]
    # Rank 1 never enters: rank 0's first transfer cannot start.
    with pytest.raises(DeadlockError, match="rank 0 waits in broadcast 'x' for rank 1 to enter"):
        fabric.play_each([[one_rank(join), one_rank([]), one_rank(join)]])


def test_vector_fabric_handles_thousands_of_ranks_in_little_memory():
    where = cluster(4096, "ring")
    plan = RingAllReduce().plan(4096, 25e6)
    end = VectorFabric(NetworkRoutes(where), Slowdown(where, 0), TraceBuilder()).times(
        plan, 25e6, np.zeros(4096)
    )
    expected = closed_forms.ring_all_reduce_time(25e6, 4096, ALPHA, 1 / BANDWIDTH)
    np.testing.assert_allclose(end, expected, rtol=1e-12)
