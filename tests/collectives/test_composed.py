"""Algorithms on levels: who ends with which piece, their bytes, and their closed forms."""

import closed_forms
import numpy as np
import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_networks import DEVICE, durations

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, Layout
from simdp.collectives.hierarchical import (
    HierarchicalAllReduce,
    HierarchicalAllToAll,
    HierarchicalReduceScatter,
    Torus2dAllReduce,
    aligned_chunks,
    most_square,
)
from simdp.collectives.plans import prove
from simdp.engine import payload
from simdp.scenario.placement import layout
from simdp.spec import problems

pytestmark = pytest.mark.slow

INSIDE, ACROSS = (5e-6, 1 / 25e9), (20e-6, 1 / 5e9)
BY_LEVELS = [
    pytest.param(family, kind, id=f"{family}-{kind}")
    for family, table in FAMILIES.items()
    for kind in ("hierarchical", "torus2d")
    if kind in table
]
OUTER = [
    kind for kind in FAMILIES["all_reduce"] if kind not in ("auto", "msccl", "nvls", "multi_ring")
]
MiB = 2**20


def nodes(num_nodes, per_node, across="full_mesh"):
    """Nodes of full meshes, with a network card and a rail for every local rank."""
    more = {}
    if num_nodes > 1:
        link = {"alpha": f"{ACROSS[0] * 1e6} us", "bandwidth": "5 GB/s"}
        more["inter_node"] = {"topology": across, "link": link, "links_per_node": per_node}
    return Cluster.model_validate(
        {
            "world_size": num_nodes * per_node,
            "devices_per_node": per_node,
            "device": DEVICE,
            "topology": "full_mesh",
            "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
            **more,
        }
    )


def check_durations(where, algorithm, nbytes, expected, root=0):
    plan = algorithm.plan(layout(where), nbytes, root)
    event, vector = durations(where, plan, nbytes)
    assert event == pytest.approx(expected, rel=1e-12)
    assert vector == pytest.approx(expected, rel=1e-12)


def complaint(table, options):
    with pytest.raises(ValidationError) as caught:
        table.model_validate(options)
    (found,) = problems(caught.value, options)
    return found.line


# What they do ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "kind"), BY_LEVELS)
@settings(max_examples=20, deadline=None)
@given(
    num_nodes=st.integers(1, 6),
    per_node=st.integers(1, 6),
    slices=st.integers(1, 3),
    nbytes=st.sampled_from([0.0, 1.0, 3 * 512 * 1024 + 5.0]),
    root=st.integers(0, 35),
)
def test_every_contribution_is_counted_once_on_any_levels(
    family, kind, num_nodes, per_node, slices, nbytes, root
):
    n = num_nodes * per_node
    algorithm = FAMILIES[family][kind](slices=slices)
    prove(algorithm.plan(Layout(n, per_node), nbytes, root % n))


@for_each("outer", OUTER)
@for_each("inner", ["ring", "direct", "bidirectional_ring", "nvls"])
def test_any_inner_and_outer_algorithm_make_an_all_reduce(inner, outer):
    inside, across = (4, 4, 4, 4, -1), tuple(8 + r % 4 for r in range(8)) + (-1,) * 4
    levels = Layout(8, 4, inside, across)
    algorithm = HierarchicalAllReduce.model_validate({"inner": inner, "outer": outer, "slices": 2})
    plan = algorithm.plan(levels, 3 * MiB)
    prove(plan)
    buffers = [np.arange(1003.0) * (rank + 1) for rank in range(8)]
    expected = sum(buffers)
    payload.run(plan, buffers)
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, expected)


def test_floats_get_equal_bits_on_all_ranks():
    rng = np.random.default_rng(3)
    buffers = [rng.standard_normal(517).astype(np.float32) for _ in range(12)]
    expected = np.sum(buffers, axis=0, dtype=np.float64)
    payload.run(HierarchicalAllReduce(slices=3).plan(Layout(12, 4), 2068.0), buffers)
    np.testing.assert_allclose(buffers[0], expected, atol=1e-5)
    for buffer in buffers[1:]:
        np.testing.assert_array_equal(buffer, buffers[0])


def test_a_hierarchy_within_a_hierarchy_is_its_outer_level():
    """A rail has one rank per node, so that nothing is left to do inside."""
    nested = HierarchicalAllReduce.model_validate({"outer": {"kind": "hierarchical"}})
    flat = HierarchicalAllReduce()
    assert (
        nested.plan(Layout(8, 4), 8.0).num_transfers == flat.plan(Layout(8, 4), 8.0).num_transfers
    )
    prove(nested.plan(Layout(8, 4), 8.0))


@for_each(("num_nodes", "per_node"), [(1, 6), (6, 1)])
def test_one_level_alone_sends_what_a_ring_sends(num_nodes, per_node):
    plan = HierarchicalAllReduce().plan(Layout(6, per_node), 600.0)
    sent = plan.sends_per_rank * 600.0 / plan.num_chunks
    np.testing.assert_allclose(sent, 2 * 5 / 6 * 600.0)


@for_each("kind", ["hierarchical", "torus2d"])
@for_each(
    ("family", "times"), list({"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}.items())
)
def test_levels_send_no_more_than_a_ring(kind, family, times):
    plan = FAMILIES[family][kind]().plan(Layout(12, 4), 1200.0)
    sent = plan.sends_per_rank * 1200.0 / plan.num_chunks
    np.testing.assert_allclose(sent, times * 11 / 12 * 1200.0)


def test_an_all_to_all_sends_every_piece_at_most_twice():
    plan = HierarchicalAllToAll().plan(Layout(8, 4), 800.0)
    moves = list(plan.moves())
    sent = sum(int((m.src != m.dst).sum()) for m in moves)
    assert sent == 8 * (3 * 2 + 1 * 4)  # 3 local ranks x 2 nodes, then 1 node x 4 pieces
    across = sum(int((m.src // 4 != m.dst // 4).sum()) for m in moves)
    assert across == 8 * 4


def test_the_way_back_takes_the_options_of_the_way_there():
    inner = {"kind": "nvls", "chunk_size": "64 KiB", "slices": 2}
    gather = HierarchicalAllReduce.model_validate({"inner": inner}).gather
    assert (gather.kind, gather.chunk_size, gather.slices) == ("nvls", 65536.0, 2)
    other = HierarchicalAllReduce.model_validate({"inner_gather": "direct"}).gather
    assert other.kind == "direct"


@for_each(
    ("world_size", "dims"), [(1, (1, 1)), (2, (1, 2)), (12, (3, 4)), (13, (1, 13)), (64, (8, 8))]
)
def test_a_torus_is_as_square_as_it_can_be(world_size, dims):
    assert most_square(world_size) == dims


@for_each("n", [*range(2, 14), 16])
@for_each("slices", [1, 2])
def test_both_ways_of_a_torus_make_one_all_reduce(n, slices):
    plan = Torus2dAllReduce(both_ways=True, slices=slices).plan(n, 1e6)
    prove(plan)
    sent = plan.sends_per_rank * 1e6 / plan.num_chunks
    np.testing.assert_allclose(sent, 2 * (n - 1) / n * 1e6)


@for_each(("nbytes", "chunks"), [(0, 1), (1, 1), (100, 1), (101, 2), (300, 4), (1e12, 1024)])
def test_aligned_chunks_are_powers_of_two(nbytes, chunks):
    assert aligned_chunks(nbytes, 100) == chunks


# Time --------------------------------------------------------------------------------------------


@for_each(("num_nodes", "per_node"), [(1, 4), (4, 1), (2, 2), (3, 4), (4, 3)])
@for_each("nbytes", [0.0, 1e6 / 3, 25e6])
def test_hierarchies_of_rings_take_their_closed_forms(num_nodes, per_node, nbytes):
    where, forms = nodes(num_nodes, per_node), closed_forms
    size = (nbytes, num_nodes, per_node, INSIDE, ACROSS)
    for family, formula in (
        ("all_reduce", forms.hierarchical_all_reduce_time),
        ("reduce_scatter", forms.hierarchical_reduce_scatter_time),
        ("all_gather", forms.hierarchical_reduce_scatter_time),
    ):
        check_durations(where, FAMILIES[family]["hierarchical"](), nbytes, formula(*size))


@for_each(("num_nodes", "per_node"), [(1, 4), (4, 1), (2, 2), (3, 4)])
def test_an_exchange_in_two_steps_takes_its_closed_form(num_nodes, per_node):
    expected = closed_forms.hierarchical_all_to_all_time(12e6, num_nodes, per_node, INSIDE, ACROSS)
    # Both steps have a link for every pair of ranks; a card serves one rail.
    check_durations(nodes(num_nodes, per_node), HierarchicalAllToAll(), 12e6, expected)


@for_each("root", [0, 5])
def test_a_broadcast_crosses_the_nodes_and_then_fills_them(root):
    where = nodes(3, 4)
    algorithm = FAMILIES["broadcast"]["hierarchical"]()
    chunks, nbytes = 4, 4 * 512.0 * 1024
    across = (3 - 2 + chunks) * (ACROSS[0] + ACROSS[1] * nbytes / chunks)
    inside = (4 - 2 + chunks) * (INSIDE[0] + INSIDE[1] * nbytes / chunks)
    check_durations(where, algorithm, nbytes, across + inside, root)


@for_each(("rows", "columns"), [(1, 5), (2, 3), (4, 4), (3, 2)])
def test_a_torus_takes_its_closed_form(rows, columns):
    expected = closed_forms.torus2d_all_reduce_time(6e6, rows, columns, *INSIDE)
    where = nodes(1, rows * columns)
    check_durations(where, Torus2dAllReduce(dims=(rows, columns)), 6e6, expected)


@for_each("side", [2, 3, 4])
def test_both_ways_of_a_square_torus_halve_the_bytes_in_time(side):
    form = closed_forms.torus2d_all_reduce_time
    expected = form(6e6, side, side, *INSIDE, both_ways=True)
    where = nodes(1, side * side)
    plan = Torus2dAllReduce(both_ways=True).plan(layout(where), 6e6)
    (found,) = durations(where, plan, 6e6)  # unequal ranks could meet on a link
    assert found == pytest.approx(expected, rel=1e-12)
    assert expected < 0.6 * form(6e6, side, side, *INSIDE)


def test_slices_overlap_stages():
    """Of three equal stages the first and the last share the links inside, which are never idle."""
    link = {"alpha": "0 s", "bandwidth": "1 GB/s"}
    raw = nodes(2, 2).model_dump(mode="json", exclude_none=True)
    wires = {"topology": "full_mesh", "link": link, "links_per_node": 2}
    where = Cluster.model_validate({**raw, "link": link, "inter_node": wires})
    nbytes, stage = 8e6, 4e-3  # reduce_scatter S / 2, all_reduce 2 S / 4, all_gather S / 2
    for slices, stages in ((1, 3), (2, 2), (4, 2)):
        plan = HierarchicalAllReduce(slices=slices).plan(layout(where), nbytes)
        for found in durations(where, plan, nbytes):
            assert found == pytest.approx(stages * stage, rel=1e-12), slices


# What cannot be ----------------------------------------------------------------------------------


@for_each(
    ("algorithm", "levels", "message"),
    [
        (
            Torus2dAllReduce(dims=(2, 3)),
            Layout(8),
            "all_reduce torus2d: needs dims with the product world_size 8, got 2 x 3; "
            "leave dims out for the most square grid",
        ),
        (
            HierarchicalAllReduce.model_validate({"inner": "nvls"}),
            Layout(8, 4),
            "all_reduce hierarchical: cannot use its inner nvls, which needs a switch that adds "
            "inside the node; write topology: {kind: switch, in_network: true}",
        ),
        (
            HierarchicalAllReduce.model_validate({"outer": "sharp"}),
            Layout(8, 4),
            "all_reduce hierarchical: cannot use its outer sharp, which needs switches that add "
            "between nodes; give inter_node a topology with in_network: true",
        ),
        (
            HierarchicalReduceScatter.model_validate({"outer": {"kind": "ring", "slices": 2}}),
            Layout(8, 4),
            "reduce_scatter hierarchical: needs an outer algorithm with one chunk per node, and "
            "ring cuts finer; leave out its slices, or give slices to hierarchical itself",
        ),
    ],
)
def test_layouts_that_cannot_be_served_are_refused(algorithm, levels, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message counts
        algorithm.plan(levels, 1.0)
    assert str(caught.value) == message


@for_each(
    ("options", "line"),
    [
        ({"dims": [4]}, "dims: [4] is not a grid; write [rows, columns], both >= 1."),
        ({"dims": [2, 0]}, "dims: [2, 0] is not a grid; write [rows, columns], both >= 1."),
        ({"dims": 4}, "dims: 4 is not a list."),
    ],
)
def test_what_is_no_grid_is_refused(options, line):
    assert complaint(Torus2dAllReduce, options) == line


def test_an_inner_kind_without_an_all_gather_needs_one():
    said = complaint(HierarchicalAllReduce, {"inner": {"kind": "msccl", "path": "x.xml"}})
    assert said.startswith("inner 'msccl' has no all_gather of its kind; add inner_gather: ")


@for_each(
    ("call", "message"),
    [
        (
            lambda f: f.hierarchical_all_reduce_time(1.0, 0, 2, INSIDE, ACROSS),
            "num_nodes must be >= 1, got 0",
        ),
        (
            lambda f: f.hierarchical_reduce_scatter_time(1.0, 2, 0, INSIDE, ACROSS),
            "per_node must be >= 1, got 0",
        ),
        (
            lambda f: f.hierarchical_all_to_all_time(1.0, 2, 0, INSIDE, ACROSS),
            "per_node must be >= 1, got 0",
        ),
        (
            lambda f: f.torus2d_all_reduce_time(1.0, 2, 3, *INSIDE, both_ways=True),
            "both_ways needs a square grid, got 2 x 3",
        ),
        (lambda f: f.nvls_all_reduce_time(1.0, 0, *INSIDE, 1), "world_size must be >= 1, got 0"),
        (lambda f: f.nvls_reduce_scatter_time(1.0, 2, *INSIDE, 0), "num_cuts must be >= 1, got 0"),
        (lambda f: f.switch_tree_time(1.0, 0, *INSIDE, 1), "num_hops must be >= 1, got 0"),
    ],
)
def test_closed_forms_refuse_counts_below_one(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call(closed_forms)


def test_a_torus_of_no_ranks_is_refused():
    with pytest.raises(ValueError, match=r"^world_size must be >= 1, got 0$"):
        most_square(0)


@for_each("slices", [1, 2, 8])
@for_each("nbytes", [1e5, 3e6, 64e6])
def test_a_slice_is_cut_by_its_own_size(slices, nbytes):
    """No chunk is larger than asked for, and none is cut finer than that takes."""
    trees = FAMILIES["all_reduce"]["double_binary_tree"](slices=slices, chunk_size="500 kB")
    each = -(-nbytes / slices / 2 // 500e3)  # of each tree
    assert trees.plan(8, nbytes).num_chunks == slices * 2 * each


PIPELINED = {"kind": "tree", "chunk_size": "500 kB"}


@for_each("slices", [1, 3])
@for_each(
    ("family", "members"),
    [
        ("all_reduce", {"outer": PIPELINED}),
        ("broadcast", {"inner": PIPELINED, "outer": PIPELINED}),
        ("reduce", {"inner": PIPELINED, "outer": PIPELINED}),
        ("all_reduce", {"inner": {"kind": "nvls", "chunk_size": "500 kB"}, "outer": PIPELINED}),
    ],
    ids=str,
)
def test_every_level_cuts_what_it_is_given(family, members, slices):
    """An outer level gets a part of the buffer, and cuts no finer than that takes."""
    where = Layout(8, 4, inside=(4, 4, 4, 4, -1))
    algorithm, nbytes = FAMILIES[family]["hierarchical"](slices=slices, **members), 48e6
    plan = algorithm.plan(where, nbytes)
    for part in plan.everything:
        chunk = nbytes / plan.num_chunks * len(part.spread)
        if part.plan.order != "ring":
            assert 125e3 < chunk <= 500e3
            assert chunk > 250e3 or part.plan.num_switches  # of nvls, a rank's piece of a chunk
