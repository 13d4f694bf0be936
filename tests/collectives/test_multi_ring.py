"""Several rings at once: they share no link inside a node, and no network card between nodes."""

import numpy as np
import pytest
from for_each import for_each
from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, Layout
from simdp.collectives.ring import num_rings, ring_orders
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.network import NetworkRoutes
from simdp.engine.ops import ClockWait, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder
from simdp.spec import problems

NBYTES = 1e6


def all_rings(layout):
    return ring_orders(layout, num_rings(layout))


def edges(order):
    return list(zip(order.tolist(), np.roll(order, -1).tolist(), strict=True))


def directions(part):
    """Who sends to whom in a part."""
    return {pair for m in part.moves() for pair in zip(m.src.tolist(), m.dst.tolist(), strict=True)}


@for_each("n", range(2, 33))
def test_rings_of_one_node_share_no_link_of_a_full_mesh(n):
    rings = all_rings(Layout(n))
    used = [edge for order in rings for edge in edges(order)]
    assert len(set(used)) == len(used) == n * len(rings)
    assert all(sorted(order.tolist()) == list(range(n)) for order in rings)


@for_each(
    ("layout", "number"),
    [
        (Layout(2), 1),
        (Layout(3), 2),
        (Layout(6), 2),
        (Layout(8), 4),
        (Layout(13), 12),
        (Layout(8, 1), 4),  # one rank to a node: as in one node
        (Layout(16, 8), 8),
        (Layout(4, 2), 2),
        (Layout(15, 5), 4),
        (Layout(18, 9), 6),
    ],
)
def test_there_are_as_many_rings_as_numbers_without_a_common_divisor_or_local_ranks(layout, number):
    assert num_rings(layout) == number == len(all_rings(layout))


@for_each("nodes", [2, 3, 4])
@for_each("m", range(2, 17))
def test_rings_of_several_nodes_share_no_link_and_no_network_card(nodes, m):
    layout = Layout(nodes * m, m)
    inside, entries, exits = [], [], []
    for order in all_rings(layout):
        assert sorted(order.tolist()) == list(range(nodes * m))
        across = [(a, b) for a, b in edges(order) if a // m != b // m]
        assert [(a // m, b // m) for a, b in across] == [(v, (v + 1) % nodes) for v in range(nodes)]
        entries.append(across[0][1] % m)
        exits.append(across[0][0] % m)
        assert {b % m for _, b in across} == {entries[-1]}
        assert {a % m for a, _ in across} == {exits[-1]}
        inside += [(a, b) for a, b in edges(order) if a // m == b // m]
    assert len(set(inside)) == len(inside)
    assert len(set(entries)) == len(entries)
    assert len(set(exits)) == len(exits)


def test_the_first_rings_go_the_shortest_ways_round():
    orders = [order.tolist() for order in ring_orders(Layout(8), 3)]
    assert orders == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 7, 6, 5, 4, 3, 2, 1],
        [0, 3, 6, 1, 4, 7, 2, 5],
    ]


def test_rings_zigzag_through_a_node():
    orders = [order.tolist() for order in ring_orders(Layout(8, 4), 2)]
    assert orders == [[0, 1, 3, 2, 4, 5, 7, 6], [1, 2, 0, 3, 5, 6, 4, 7]]


@for_each("layout", [Layout(2), Layout(7), Layout(12, 4), Layout(9, 3)])
@for_each(("family", "times"), [("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)])
@for_each("kind", ["multi_ring", "bidirectional_ring"])
def test_every_rank_sends_what_it_must_whatever_the_number_of_rings(kind, family, times, layout):
    n, plan = layout.world_size, FAMILIES[family][kind]().plan(layout, NBYTES)
    sent = plan.sends_per_rank * NBYTES / plan.num_chunks
    np.testing.assert_allclose(sent, times * (n - 1) / n * NBYTES, rtol=1e-14)


def test_the_rings_run_at_the_same_time():
    plan = FAMILIES["all_reduce"]["multi_ring"](channels=3).plan(8, NBYTES)
    assert [part.after for part in plan.parts] == [(), (), ()]


# Refused -----------------------------------------------------------------------------------------


@for_each("family", ["all_reduce", "reduce_scatter", "all_gather"])
@for_each(
    ("layout", "channels", "message"),
    [
        (Layout(2), 2, "needs channels <= 1 for 2 ranks, got 2"),
        (Layout(8), 5, "needs channels <= 4 for 8 ranks, got 5"),
        (Layout(16, 8), 9, "needs channels <= 8 for 2 nodes of 8 ranks, got 9"),
        (Layout(10, 5), 5, "needs channels <= 4 for 2 nodes of 5 ranks, got 5"),
    ],
)
def test_more_rings_than_there_are_links_for_are_refused(family, layout, channels, message):
    with pytest.raises(ValueError, match=f"^{family} multi_ring: {message}; more would share"):
        FAMILIES[family]["multi_ring"](channels=channels).plan(layout, NBYTES)
    FAMILIES[family]["multi_ring"](channels=channels - 1 or None).plan(layout, NBYTES)


@for_each(
    ("channels", "message"),
    [
        (0, "channels: 0 is out of range; it must be >= 1."),
        (65, "channels: 65 is out of range; it must be <= 64."),
        ("two", "channels: 'two' is not a whole number."),
    ],
)
def test_channels_out_of_range_are_refused(channels, message):
    raw = {"kind": "multi_ring", "channels": channels}
    with pytest.raises(ValidationError) as caught:
        FAMILIES["all_reduce"]["multi_ring"].model_validate(raw)
    assert [problem.line for problem in problems(caught.value, raw)] == [message]


def test_sixty_four_rings_are_as_many_as_there_may_be():
    assert len(FAMILIES["all_gather"]["multi_ring"]().plan(67, NBYTES).parts) == 64


# Both ways ---------------------------------------------------------------------------------------


@for_each("family", ["all_reduce", "reduce_scatter", "all_gather"])
@for_each("n", [3, 4, 9])
def test_half_of_the_buffer_goes_each_way(family, n):
    up, down = FAMILIES[family]["bidirectional_ring"]().plan(n, NBYTES).parts
    assert directions(up) == {(r, (r + 1) % n) for r in range(n)}
    assert directions(down) == {((r + 1) % n, r) for r in range(n)}
    assert up.after == down.after == ()
    assert up.plan.num_chunks == down.plan.num_chunks == n


@for_each("root", [0, 2, 4])
def test_a_broadcast_leaves_its_root_both_ways(root):
    up, down = FAMILIES["broadcast"]["bidirectional_ring"]().plan(5, NBYTES, root).parts
    ring = {(r, (r + 1) % 5) for r in range(5)}
    assert directions(up) == ring - {((root - 1) % 5, root)}
    assert directions(down) == {(b, a) for a, b in ring} - {((root + 1) % 5, root)}


@for_each("family", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_two_ranks_have_one_way_to_each_other(family):
    plan = FAMILIES[family]["bidirectional_ring"]().plan(2, NBYTES)
    assert len(plan.parts) == 1
    assert plan.sends_per_rank[0] * NBYTES / plan.num_chunks == NBYTES * (
        0.5 if family in ("reduce_scatter", "all_gather") else 1
    )


# Network cards -----------------------------------------------------------------------------------


def test_eight_rings_use_eight_network_cards():
    raw = {
        "world_size": 16,
        "devices_per_node": 8,
        "device": "a100-sxm4-80gb",
        "topology": "full_mesh",
        "link": {"alpha": "0 s", "bandwidth": "1 TB/s"},
        "inter_node": {
            "topology": "switch",
            "link": {"alpha": "0 s", "bandwidth": "25 GB/s"},
            "links_per_node": 8,
        },
    }
    where, layout = Cluster.model_validate(raw), Layout(16, 8)

    def seconds(channels):
        plan = FAMILIES["all_reduce"]["multi_ring"](channels=channels).plan(layout, 64e6)
        trace = TraceBuilder()
        job = FabricJob(NetworkRoutes(where), {0: [plan]}, Slowdown(where, 0), trace)
        EventFabric([job]).play([iter([Launch(0, "x", 0, plan, 64e6, False), ClockWait((0,))])])
        return trace.build().end.max()

    # One card of each node carries everything, or each of eight an eighth of it.
    assert seconds(1) == pytest.approx(2 * 15 * 64e6 / 16 / 25e9, rel=1e-9)
    assert seconds(8) == pytest.approx(seconds(1) / 8, rel=1e-9)
