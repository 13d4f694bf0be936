"""Two trees at once: who is an inner node of which, and what the ports carry."""

from collections import Counter

import numpy as np
import pytest
from for_each import for_each

from simdp.collectives import FAMILIES, Layout
from simdp.collectives.tree import complement, parents_in_order

NBYTES = 1e5  # one chunk per tree


def trees(family, layout, root=0):
    """The child-parent pairs of every tree."""
    plan = FAMILIES[family]["double_binary_tree"]().plan(layout, NBYTES, root)
    found = []
    for part in plan.parts:
        pairs = set()
        for moves in part.moves():
            src, dst = moves.src.tolist(), moves.dst.tolist()
            for a, b, adds in zip(src, dst, moves.reduce.tolist(), strict=True):
                pairs.add((a, b) if adds else (b, a))
        found.append(pairs)
    return found


def inner(pairs):
    return {parent for _, parent in pairs}


@for_each(
    ("places", "parents"),
    [
        (2, [0]),
        (3, [2, 0]),
        (4, [2, 0, 2]),
        (5, [2, 4, 2, 0]),
        (6, [2, 4, 2, 0, 4]),
        (8, [2, 4, 2, 0, 6, 4, 6]),
        (12, [2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10]),
    ],
)
def test_places_in_order_hang_below_the_nearest_place_that_is_higher(places, parents):
    assert parents_in_order(places).tolist() == parents


@for_each("places", range(2, 66))
def test_a_tree_in_order_is_binary_and_as_flat_as_can_be(places):
    parents = dict(enumerate(parents_in_order(places).tolist(), 1))
    children = Counter(parents.values())
    assert children.pop(0) == 1
    assert all(number <= 2 for number in children.values())
    assert all(place % 2 == 0 for place in children)  # odd places are leaves
    longest = 0
    for place in parents:
        steps = 0
        while place:
            place, steps = parents[place], steps + 1
        longest = max(longest, steps)
    assert longest == int(np.ceil(np.log2(places)))


def test_the_second_tree_is_mirrored_or_moved():
    assert complement(6).tolist() == [5, 4, 3, 2, 1, 0]
    assert complement(5).tolist() == [1, 2, 3, 4, 0]


@for_each("n", range(2, 40))
def test_all_but_one_rank_are_inner_nodes_of_one_tree_at_most(n):
    first, second = trees("all_reduce", Layout(n))
    assert inner(first) & inner(second) == (set() if n % 2 == 0 else {0})
    assert {child for child, _ in first} == set(range(1, n))
    assert {child for child, _ in second} == set(range(n)) - {n - 1 if n % 2 == 0 else 1}


@for_each("n", range(3, 40))
@for_each("family", ["broadcast", "reduce"])
def test_only_the_root_of_a_broadcast_or_reduce_is_an_inner_node_of_both_trees(family, n):
    for root in (0, 1, n - 1):
        first, second = trees(family, Layout(n), root)
        assert inner(first) & inner(second) == {root}
        for pairs in first, second:
            assert {child for child, _ in pairs} == set(range(n)) - {root}
            assert [parent for _, parent in pairs].count(root) == 1


@for_each("family", ["broadcast", "reduce"])
def test_two_ranks_need_no_second_tree(family):
    assert trees(family, Layout(2), root=1) == [{(0, 1)}]


@for_each("n", [*range(2, 18), 64])
def test_no_rank_sends_more_than_twice_the_buffer(n):
    nbytes = 20 * 2.0**20
    double, single = (
        FAMILIES["all_reduce"][kind]().plan(n, nbytes) for kind in ("double_binary_tree", "tree")
    )
    share = double.sends_per_rank / double.num_chunks
    assert share.max() <= 2
    assert share.sum() == pytest.approx(2 * (n - 1))
    if n >= 5:  # then a rank of a single tree has a parent and two children
        assert (single.sends_per_rank / single.num_chunks).max() == 3


def test_trees_join_the_nodes_and_chains_the_ranks_inside():
    # Four nodes of three: places 0 .. 3 have the parents -, 2, 0, 2; mirrored: 2 -> 1, 1 -> 3 ...
    first, second = trees("all_reduce", Layout(12, 3))
    between = {(3, 6), (6, 0), (9, 6)}
    inside = {(3 * v + i, 3 * v + i - 1) for v in range(4) for i in (1, 2)}
    assert first == between | inside
    # Nodes in reverse order, and chains that hang from the last local rank.
    assert second == {(8, 5), (5, 11), (2, 5)} | {(b, a) for a, b in inside}


def test_a_broadcast_enters_every_node_at_the_roots_local_rank():
    # Nodes 1, 2, 3, 0 are the places of the first tree, 1, 3, 0, 2 those of the second one.
    first, second = trees("broadcast", Layout(12, 3), root=4)
    assert first == {
        *((3 * v + (1 + i) % 3, 3 * v + i) for v in range(4) for i in (1, 2)),
        *((10, 4), (7, 10), (1, 10)),
    }
    assert second == {
        *((3 * v + 0, 3 * v + 1) for v in range(4)),
        *((3 * v + 2, 3 * v + 0) for v in range(4)),
        *((7, 1), (10, 1), (1, 4)),
    }


@for_each("family", ["all_reduce", "broadcast", "reduce"])
@for_each(("n", "m"), [(4, 2), (6, 3), (12, 4), (15, 5), (16, 8)])
def test_a_node_is_entered_through_one_rank_of_each_tree(family, n, m):
    for pairs in trees(family, Layout(n, m)):
        across = [(child, parent) for child, parent in pairs if child // m != parent // m]
        assert len(across) == n // m - 1
        assert len({rank % m for pair in across for rank in pair}) == 1
