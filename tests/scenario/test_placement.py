"""Where ranks live, as algorithms see it; and which nodes each of several jobs gets."""

import numpy as np
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from small_networks import between, cluster

from simdp.collectives import Layout
from simdp.scenario.placement import (
    among_others,
    deal_nodes,
    group_layout,
    layout,
    split_ranks,
    vertices,
)

ADDING = {"kind": "switch", "in_network": True}


def test_a_layout_tells_nodes_and_ranks():
    where = cluster(6, devices_per_node=2, inter_node=between("ring"))
    assert layout(where) == Layout(6, 2)
    assert layout(cluster(3, devices_per_node=8)) == Layout(3, 3)


def test_switches_that_add_are_part_of_a_layout_with_ranks_in_place_of_ports():
    """Two cards a node for four ranks: ranks 0 and 2 of a node hand theirs to card 0's port."""
    where = cluster(8, ADDING, devices_per_node=4, inter_node=between(ADDING, cards=2))
    found = layout(where)
    assert found.inside == (4, 4, 4, 4, -1)
    assert found.across == (8,) * 8 + (-1,)
    tree = {"kind": "fat_tree", "ports_per_leaf": 1, "in_network": True}
    where = cluster(4, devices_per_node=2, inter_node=between(tree))
    # One leaf a node, 4 and 5, and the spine 6 over both.
    assert layout(where).across == (4, 4, 5, 5, 6, 6, -1)


def test_a_job_among_others_sees_no_switches_between_nodes():
    where = cluster(8, ADDING, devices_per_node=4, inter_node=between(ADDING))
    assert among_others(layout(where)) == Layout(8, 4, layout(where).inside)


@for_each(
    ("per_node", "groups", "expected"),
    [
        (4, split_ranks(12, "mod", 2), Layout(6, 2)),  # two ranks of each node
        (4, split_ranks(12, "div", 2), Layout(2, 2)),  # half a node
        (4, split_ranks(12, "mod", 4), Layout(3, 1)),  # a rank of each node
        (3, split_ranks(12, "mod", 2), Layout(6)),  # two or one of each node in turn
        (4, split_ranks(12, "div", 6), Layout(6)),  # one node and a half
    ],
)
def test_groups_have_nodes_if_each_has_equally_many_ranks_on_its_nodes(per_node, groups, expected):
    where = cluster(12, devices_per_node=per_node, inter_node=between("ring"))
    assert group_layout(where, groups) == expected


@for_each(
    ("kind", "counts", "expected"),
    [
        ("packed", [2, 3], [[0, 1], [2, 3, 4]]),
        ("interleaved", [2, 3], [[0, 2], [1, 3, 4]]),
        ("interleaved", [3, 1, 2], [[0, 3, 5], [1], [2, 4]]),
        ("packed", [1], [[0]]),
    ],
)
def test_nodes_are_dealt_one_job_after_the_other_or_in_turn(kind, counts, expected):
    assert [nodes.tolist() for nodes in deal_nodes(kind, counts)] == expected


@given(
    kind=st.sampled_from(["packed", "interleaved"]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_every_node_is_dealt_once_and_every_job_gets_its_number(kind, counts):
    dealt = deal_nodes(kind, counts)
    assert [len(nodes) for nodes in dealt] == counts
    assert sorted(np.concatenate(dealt).tolist()) == list(range(sum(counts)))


def test_interleaved_nodes_are_dealt_as_by_hand():
    counts, hands, node = [4, 1, 3], [[], [], []], 0
    while any(len(hand) < count for hand, count in zip(hands, counts, strict=True)):
        for hand, count in zip(hands, counts, strict=True):
            if len(hand) < count:
                hand.append(node)
                node += 1
    assert [nodes.tolist() for nodes in deal_nodes("interleaved", counts)] == hands


def test_a_jobs_vertices_are_its_ranks_and_the_switches_inside_its_nodes():
    where = cluster(6, ADDING, devices_per_node=2, inter_node=between("switch"))
    # Ranks 0 ... 5 in nodes of two; node k's switch is vertex 6 + k.
    assert vertices(where, np.array([2, 0])).tolist() == [4, 5, 0, 1, 8, 6]
    without = cluster(6, devices_per_node=2, inter_node=between("switch"))
    assert vertices(without, np.array([1])).tolist() == [2, 3]
