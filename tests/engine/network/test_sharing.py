"""Who meets on a link: found from plans alone, against what transfers do when they are watched."""

from collections import defaultdict

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import (
    between,
    cluster,
    clusters,
    late,
    random_plan,
    serving,
    vectorised,
    watched,
)

from simdp.collectives import FAMILIES
from simdp.collectives.plans import Plan, Round, even_offsets
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import beside, common_link, link_bytes, shared_link
from simdp.scenario.placement import layout

NBYTES = 25e6
FULL = 25e9
"""Bandwidth of a link of `cluster` [bytes/s]."""


def hold_against_the_event_fabric(where, launched, random):
    """Where no link is said to be shared, nobody meets on one, and both clocks agree."""
    if shared_link(NetworkRoutes(where), [plan for plan, _ in launched]) is not None:
        return
    delays = late(random, len(launched), where.world_size)
    fabric, event = watched(where, launched, delays)
    assert not fabric.overlaps()
    vector = vectorised(where, launched, delays)
    for column in ("rank", "lane", "activity"):
        np.testing.assert_array_equal(getattr(event, column), getattr(vector, column))
    for column in ("start", "end", "nbytes"):
        found, expected = getattr(event, column), getattr(vector, column)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=0)


@pytest.mark.slow
@settings(max_examples=30)
@given(where=clusters(), seed=st.integers(0, 10**6))
def test_random_plans_that_share_no_link_never_meet_on_one(where, seed):
    random = np.random.default_rng(seed)
    plans = [random_plan(random, where.world_size) for _ in range(random.integers(1, 3))]
    launched = [(plan, float(random.integers(0, 5_000_000))) for plan in plans]
    hold_against_the_event_fabric(where, launched, random)


@pytest.mark.slow
@settings(max_examples=30)
@given(where=clusters(), seed=st.integers(0, 10**6))
def test_algorithms_that_share_no_link_never_meet_on_one(where, seed):
    """Two different collectives of one run, on clusters of every shape."""
    random, launched = np.random.default_rng(seed), []
    there = serving(layout(where))
    for number in random.integers(0, len(there), 2).tolist():
        sliced = there[number].model_copy(update={"slices": int(random.integers(1, 4))})
        algorithm = there[number] if sliced.problem_with(layout(where)) else sliced
        nbytes = float(random.integers(0, 5_000_000))
        root = int(random.integers(where.world_size))
        launched.append((algorithm.plan(layout(where), nbytes, root), nbytes))
    hold_against_the_event_fabric(where, launched, random)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["chunk", "rank"])
def test_brute_force_sees_a_meeting_wherever_a_random_plan_is_said_to_share(order):
    """Of plans of one round, in which all transfers start at once: none is called shared in vain.

    In more rounds, what could meet need not, with any one set of delays.
    """
    random, seen = np.random.default_rng(1), 0
    for _ in range(60):
        where = cluster(5, str(random.choice(["ring", "switch", "full_mesh"])))
        rounds = [next(random_plan(random, 5).rounds())]
        offsets = even_offsets(5)
        plan = Plan("broadcast", 5, 5, 0, lambda rounds=rounds: iter(rounds), offsets, order)
        is_shared = shared_link(NetworkRoutes(where), [plan]) is not None
        fabric, _ = watched(where, [(plan, NBYTES)], np.zeros((1, 5)))
        assert bool(fabric.overlaps()) == is_shared
        seen += is_shared
    assert 10 < seen < 50


def rounds_plan(world_size, rounds, order="chunk"):
    """Rounds of (src, dst) pairs; transfer i of a round moves chunk i."""
    made = []
    for pairs in rounds:
        src, dst = (np.array(column) for column in zip(*pairs, strict=True))
        made.append(Round(src, dst, np.arange(len(pairs)), False))
    return Plan("broadcast", world_size, 8, 0, lambda: iter(made), even_offsets(8), order)


def name(where, link):
    return None if link is None else where.link_name(link)


def test_the_shared_link_is_named():
    where = cluster(4, "switch")
    plan = rounds_plan(4, [[(0, 2), (1, 2)]])
    assert (
        name(where, shared_link(NetworkRoutes(where), [plan]))
        == "the link from the switch to rank 2"
    )


def test_rounds_of_a_plan_by_rank_take_turns_only_for_the_ranks_that_they_have_in_common():
    where = cluster(4, "switch")
    one_sender = rounds_plan(4, [[(0, 1)], [(0, 2)], [(0, 3)]], "rank")
    assert shared_link(NetworkRoutes(where), [one_sender]) is None
    one_receiver = rounds_plan(4, [[(1, 0)], [(2, 0)], [(3, 0)]], "rank")
    assert shared_link(NetworkRoutes(where), [one_receiver]) is None
    ring = cluster(4, "ring")  # 0 -> 2 and 1 -> 2 both pass the link from 1 to 2, to one receiver
    assert shared_link(NetworkRoutes(ring), [rounds_plan(4, [[(0, 2)], [(1, 2)]], "rank")]) is None
    # 0 -> 2 and 1 -> 3 pass it as well, and have no rank in common
    crossing = rounds_plan(5, [[(0, 2)], [(1, 3)]], "rank")
    ring = cluster(5, "ring")
    assert (
        name(ring, shared_link(NetworkRoutes(ring), [crossing])) == "the link from rank 1 to rank 2"
    )


def test_chunks_of_a_plan_by_chunk_do_not_take_turns_for_their_ranks():
    where = cluster(4, "switch")
    plan = rounds_plan(4, [[(0, 1)], [(0, 2)]], "chunk")
    assert (
        name(where, shared_link(NetworkRoutes(where), [plan]))
        == "the link from rank 0 to the switch"
    )


def test_collectives_that_follow_each_other_share_a_link_if_no_rank_takes_part_in_both():
    where = cluster(6, "ring")
    first, second = rounds_plan(6, [[(0, 2)]]), rounds_plan(6, [[(1, 3)]])
    for plan in (first, second):
        assert shared_link(NetworkRoutes(where), [plan]) is None
    assert shared_link(NetworkRoutes(where), [first, second]) is not None
    fabric, _ = watched(where, [(first, NBYTES), (second, NBYTES)], np.zeros((2, 6)))
    assert fabric.overlaps()
    same_sender = rounds_plan(6, [[(0, 3)]])
    assert shared_link(NetworkRoutes(where), [first, same_sender]) is None


@for_each("family", ["broadcast", "reduce"])
def test_switches_hand_on_a_collective_while_ranks_are_in_the_next_one(family):
    """Over a trunk of half a port's bandwidth, the second collective catches up with the first."""
    tree = {"kind": "fat_tree", "ports_per_leaf": 2, "oversubscription": 4, "in_network": True}
    where = cluster(4, devices_per_node=1, inter_node=between(tree, alpha="0 s"))
    plan = FAMILIES[family]["sharp"](chunk_size="1 GiB").plan(layout(where), NBYTES)
    link = shared_link(NetworkRoutes(where), [plan])
    assert "leaf switch" in where.link_name(link)
    assert "spine switch" in where.link_name(link)
    fabric, trace = watched(where, [(plan, NBYTES)] * 2, np.zeros((2, 4)))
    assert fabric.overlaps()
    # In units of a port's time: the first is on the way up at 1 ... 3 and is joined at 2, so that
    # they are over at 4 and 5; on the way down at 7 and 8; the last port takes the second till 9.
    assert trace.end.max() == pytest.approx(9 * NBYTES / 11e9, rel=1e-9)


def test_an_all_reduce_in_the_network_lets_no_rank_into_the_next_one_too_early():
    tree = {"kind": "fat_tree", "ports_per_leaf": 2, "oversubscription": 4, "in_network": True}
    where = cluster(6, devices_per_node=1, inter_node=between(tree))
    plan = FAMILIES["all_reduce"]["sharp"](slices=3).plan(layout(where), NBYTES)
    assert shared_link(NetworkRoutes(where), [plan]) is None
    for seed in range(5):
        delays = late(np.random.default_rng(seed), 3, 6)
        fabric, _ = watched(where, [(plan, NBYTES)] * 3, delays)
        assert not fabric.overlaps()


def test_parts_are_concurrent_unless_one_comes_after_the_other():
    where = cluster(4, devices_per_node=2, inter_node=between("switch", cards=2))
    parts = FAMILIES["all_reduce"]["hierarchical"](slices=2).plan(layout(where), 1e6).everything
    after = {number: set(part.after) for number, part in enumerate(parts)}
    for number in after:  # closed by walking, where the engine uses bits
        todo = list(after[number])
        while todo:
            todo += [n for n in after[todo.pop()] if n not in after[number]]
            after[number] |= set(todo)
    expected = {(i, j) for j in after for i in range(j) if i not in after[j]}
    found = {(i, j) for j, bits in enumerate(beside(parts)) for i in range(j) if bits >> i & 1}
    assert found == expected
    assert expected
    for i, bits in enumerate(beside(parts)):  # both ways alike, and none beside itself
        assert not bits >> i & 1
        assert all(beside(parts)[j] >> i & 1 == bits >> j & 1 for j in after)


def test_jobs_have_a_link_in_common_or_none():
    where = cluster(8, devices_per_node=2, inter_node=between("ring"))
    ring = FAMILIES["all_reduce"]["ring"]().plan(4, 1e6)

    def routed(ranks):
        return NetworkRoutes(where, np.array(ranks)), [ring]

    assert common_link(routed([0, 1, 2, 3]), routed([4, 5, 6, 7])) is None
    # Between nodes 0 and 2 the ways lead over nodes 1 or 3.
    assert common_link(routed([0, 1, 4, 5]), routed([2, 3, 6, 7])) is not None


# Max-min shares solved by hand --------------------------------------------------------------------


def ends(where, pairs, nbytes=NBYTES, delays=None):
    """When transfers of a whole buffer end that all start at once."""
    src, dst = (np.array(column) for column in zip(*pairs, strict=True))
    one = Round(src, dst, np.zeros_like(src), False)
    plan = Plan("broadcast", where.world_size, 1, 0, lambda: iter([one]), even_offsets(1))
    delays = np.zeros((1, where.world_size)) if delays is None else delays
    _, trace = watched(where, [(plan, nbytes)], delays)
    return {
        (span.rank, int(span.lane.removeprefix("send to "))): span.end
        for span in trace.spans
        if span.activity == "transfer"
    }


@for_each("flows", [1, 2, 3, 4])
def test_flows_over_the_trunk_of_a_fat_tree_share_it(flows):
    """Four ports a leaf and one spine, whose link is as wide as one port: k flows get 1/k each."""
    tree = {"kind": "fat_tree", "ports_per_leaf": 4, "spines": 1, "oversubscription": 4}
    where = cluster(8, devices_per_node=1, inter_node=between(tree))
    found = ends(where, [(rank, rank + 4) for rank in range(flows)])
    expected = 4 * 9e-6 + flows * NBYTES / 11e9
    assert list(found.values()) == pytest.approx([expected] * flows, rel=1e-12)


def test_a_flow_inside_the_leaf_takes_what_the_trunk_denies_the_others():
    """0 and 1 send over a trunk of one port, 2 sends to 1's neighbour 0 inside the leaf: alone."""
    tree = {"kind": "fat_tree", "ports_per_leaf": 3, "spines": 1, "oversubscription": 3}
    where = cluster(6, devices_per_node=1, inter_node=between(tree, alpha="0 s"))
    found, whole = ends(where, [(0, 3), (1, 4), (0, 2)]), NBYTES / 11e9
    # Rank 0's port carries 0 -> 3 at a half (the trunk's share), and 0 -> 2 at the other half.
    assert found == pytest.approx({(0, 3): 2 * whole, (1, 4): 2 * whole, (0, 2): 2 * whole})
    found = ends(where, [(0, 3), (1, 4), (2, 5), (0, 2)])
    # Now the trunk's share is a third, and 0 -> 2 gets two thirds; it ends after 1.5.
    assert found[0, 2] == pytest.approx(1.5 * whole, rel=1e-12)
    assert found[0, 3] == pytest.approx(3 * whole, rel=1e-12)


def test_the_narrowest_of_unequal_links_counts_and_leaves_the_rest_of_the_others():
    """Node 1 has a slow card: 0 -> 1 is held to its 2 GB/s, so that 0 -> 2 gets 9 of 11."""
    links = [{"alpha": "0 s", "bandwidth": f"{b} GB/s"} for b in (11, 2, 11)]
    where = cluster(3, devices_per_node=1, inter_node={"topology": "switch", "link": links})
    found = ends(where, [(0, 1), (0, 2)], nbytes=9e6)
    assert found[0, 2] == pytest.approx(1e-3, rel=1e-12)
    assert found[0, 1] == pytest.approx(4.5e-3, rel=1e-12)


def pcie(**more):
    return {"kind": "pcie_tree", "gpus_per_switch": 2, "switches_per_socket": 1, **more}


def test_across_sockets_the_stages_through_host_memory_add_up():
    """Into the memory over the slower of slot and socket link, and out of it over the slot."""
    tree = pcie(host_memory="40 GB/s", inter_socket="10 GB/s")
    where = cluster(4, tree, bandwidth="25 GB/s")
    ((pair, found),) = ends(where, [(0, 2)]).items()
    assert pair == (0, 2)
    expected = NBYTES / 10e9 + NBYTES / 25e9
    assert found == pytest.approx(2 * 5e-6 + expected, rel=1e-12)
    # Under one switch there is one stage.
    assert ends(where, [(0, 1)])[0, 1] == pytest.approx(2 * 5e-6 + NBYTES / 25e9, rel=1e-12)


def test_a_staged_route_is_a_cap_of_its_own_on_a_link_that_it_shares():
    """1 / (1/10 + 1/25) = 7.14 GB/s at most; beside it a flow gets what is left of 25 GB/s."""
    tree = pcie(host_memory="40 GB/s", inter_socket="10 GB/s")
    where = cluster(4, tree, bandwidth="25 GB/s")
    found = ends(where, [(0, 2), (0, 1)])
    staged = 1 / (1 / 10e9 + 1 / 25e9)
    assert found[0, 1] == pytest.approx(2 * 5e-6 + NBYTES / (25e9 - staged), rel=1e-12)
    assert found[0, 2] == pytest.approx(2 * 5e-6 + NBYTES / staged, rel=1e-12)


def test_a_late_flow_takes_its_share_from_when_it_comes():
    where, whole = cluster(3, "switch", alpha="0 s"), NBYTES / FULL
    found = ends(where, [(0, 2), (1, 2)], delays=np.array([[0.0, whole / 2, 0.0]]))
    # Alone for a half, then half as fast; the other one is alone in the end.
    assert found == pytest.approx({(0, 2): 1.5 * whole, (1, 2): 2 * whole}, rel=1e-12)


# Bytes --------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=20)
@given(where=clusters(), seed=st.integers(0, 10**6))
def test_what_crosses_each_link_is_the_sum_over_transfers_of_their_routes(where, seed):
    random = np.random.default_rng(seed)
    there = serving(layout(where))
    algorithm = there[int(random.integers(len(there)))]
    nbytes = float(random.integers(1, 5_000_000))
    plan = algorithm.plan(layout(where), nbytes)
    if seed % 3 == 0:
        plan = random_plan(random, where.world_size)
    expected = defaultdict(float)
    for moves in plan.moves():
        apart = moves.src != moves.dst
        for route in where.routes(moves.src[apart], moves.dst[apart]).tolist():
            for link in route:
                expected[link] += nbytes / plan.num_chunks
    expected.pop(-1, None)
    links, crossed = link_bytes(NetworkRoutes(where), {plan: nbytes})
    assert dict(zip(links.tolist(), crossed.tolist(), strict=True)) == pytest.approx(expected)
    assert (np.diff(crossed) <= 0).all()
