"""Switches that add: what they get and give, their closed forms, and where there are none."""

import closed_forms
import numpy as np
import pytest
from for_each import for_each, for_some
from small_networks import DEVICE, durations

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, Layout
from simdp.collectives.hierarchical import HierarchicalAllReduce
from simdp.collectives.in_network import NvlsAllReduce, SharpAllReduce, SharpBroadcast
from simdp.collectives.plans import prove
from simdp.engine import payload
from simdp.scenario.placement import layout

ALPHA, BETA = 5e-6, 1 / 25e9
ADDS = {"kind": "switch", "in_network": True}
IN_NETWORK = [
    pytest.param(family, kind, id=f"{family}-{kind}")
    for family, table in FAMILIES.items()
    for kind in ("nvls", "sharp")
    if kind in table
]


def switched(world_size, per_node=None):
    """Ranks on switches that add, inside nodes and between them."""
    link = {"alpha": "5 us", "bandwidth": "25 GB/s"}
    per_node = per_node or world_size
    raw = {"world_size": world_size, "devices_per_node": per_node, "device": DEVICE}
    if per_node < world_size:
        raw["inter_node"] = {"topology": ADDS, "link": link, "links_per_node": per_node}
    return Cluster.model_validate({**raw, "topology": ADDS, "link": link})


def inside(n):
    """One node whose switch adds."""
    return Layout(n, n, inside=(n,) * n + (-1,))


def across(n, leaf):
    """Single ranks on leaf switches below a spine."""
    leaves = -(-n // leaf)
    above = tuple(n + rank // leaf for rank in range(n))
    return Layout(n, 1, across=above + (n + leaves,) * leaves + (-1,))


def sent_up_and_down(plan, nbytes):
    """Bytes that each rank sends to switches and gets from them."""
    n = plan.world_size
    sent, got = np.zeros(n), np.zeros(n)
    for moves in plan.moves():
        np.add.at(sent, moves.src[moves.src < n], nbytes / plan.num_chunks)
        np.add.at(got, moves.dst[moves.dst < n], nbytes / plan.num_chunks)
    return sent, got


# What they do ------------------------------------------------------------------------------------


@pytest.mark.slow
@for_some("slices", [1, 2, 3], 3, first=1)
@for_each(("family", "kind"), IN_NETWORK)
def test_every_contribution_is_counted_once(family, kind, slices):
    algorithm = FAMILIES[family][kind](slices=slices, chunk_size="256 KiB")
    for n in (2, 3, 5, 8, 33):
        where = inside(n) if kind == "nvls" else across(n, 4)
        for root in sorted({0, n - 1}) if family in ("broadcast", "reduce") else (0,):
            prove(algorithm.plan(where, 3e6 + 5, root))


@for_each(("algorithm", "where"), [(NvlsAllReduce(), inside(5)), (SharpAllReduce(), across(7, 3))])
def test_sums_are_right_and_have_equal_bits(algorithm, where):
    rng = np.random.default_rng(1)
    buffers = [rng.standard_normal(301).astype(np.float32) for _ in range(where.world_size)]
    expected = np.sum(buffers, axis=0, dtype=np.float64)
    payload.run(algorithm.plan(where, 1204.0), buffers)
    np.testing.assert_allclose(buffers[0], expected, atol=1e-5)
    for buffer in buffers[1:]:
        np.testing.assert_array_equal(buffer, buffers[0])


@for_each("n", [2, 3, 8])
@for_each("nbytes", [1e6, 200e6])
def test_nvls_sends_the_buffer_and_a_piece_each_way(n, nbytes):
    plan = NvlsAllReduce().plan(inside(n), nbytes)
    for volume in sent_up_and_down(plan, nbytes):
        np.testing.assert_allclose(volume, nbytes * (1 + 1 / n))


@for_each("n", [2, 3, 8])
def test_a_scatter_fetches_all_and_a_gather_writes_a_piece(n):
    up, down = sent_up_and_down(FAMILIES["reduce_scatter"]["nvls"]().plan(inside(n), 8e6), 8e6)
    np.testing.assert_allclose([up, down], [[8e6] * n, [8e6 / n] * n])
    up, down = sent_up_and_down(FAMILIES["all_gather"]["nvls"]().plan(inside(n), 8e6), 8e6)
    np.testing.assert_allclose([up, down], [[8e6 / n] * n, [8e6] * n])


def test_sharp_sends_the_buffer_once_each_way_however_many_ranks_there_are():
    for n in (2, 8, 32):
        for volume in sent_up_and_down(SharpAllReduce().plan(across(n, 4), 8e6), 8e6):
            np.testing.assert_allclose(volume, 8e6)


def test_switches_that_lead_nowhere_are_left_out():
    """Four ranks below one leaf have no use for the spine above it."""
    plan = SharpAllReduce().plan(across(4, 4), 1.0)
    vertices = {int(v) for moves in plan.moves() for v in (*moves.src, *moves.dst)}
    assert vertices == {0, 1, 2, 3, 4}


def test_a_broadcast_takes_the_shortest_way_over_the_tree():
    plan = SharpBroadcast().plan(across(8, 4), 1.0, root=5)
    hops = [
        sorted(zip(m.src.tolist(), m.dst.tolist(), strict=True)) for m in plan.moves()
    ]  # leaves are 8 and 9, the spine is 10
    assert hops == [
        [(5, 9)],
        [(9, 4), (9, 6), (9, 7), (9, 10)],
        [(10, 8)],
        [(8, r) for r in range(4)],
    ]


# Time --------------------------------------------------------------------------------------------


@for_each("n", [2, 3, 8])
@for_each("cuts", [1, 2, 4, 8])
def test_nvls_takes_its_closed_forms(n, cuts):
    where, nbytes = switched(n), n * cuts * 1e6
    for family, formula in (
        ("all_reduce", closed_forms.nvls_all_reduce_time),
        ("reduce_scatter", closed_forms.nvls_reduce_scatter_time),
        ("all_gather", closed_forms.nvls_reduce_scatter_time),
    ):
        plan = FAMILIES[family]["nvls"](chunk_size="1 MB").plan(layout(where), nbytes)
        assert plan.num_chunks == n * cuts
        expected = formula(nbytes, n, ALPHA, BETA, cuts)
        assert durations(where, plan, nbytes) == pytest.approx([expected] * 2, rel=1e-12)


@for_each("n", [2, 8])
@for_each("chunks", [1, 4])
def test_trees_of_switches_take_their_closed_form(n, chunks):
    nbytes = chunks * 1e6
    expected = closed_forms.switch_tree_time(nbytes, 2, ALPHA, BETA, chunks)
    where = switched(n)
    plan = FAMILIES["broadcast"]["nvls"](chunk_size="1 MB").plan(layout(where), nbytes, 1)
    assert durations(where, plan, nbytes) == pytest.approx([expected] * 2, rel=1e-12)
    where = switched(n, 1)
    for family in ("all_reduce", "broadcast", "reduce"):
        plan = FAMILIES[family]["sharp"](chunk_size="1 MB").plan(layout(where), nbytes)
        assert plan.num_chunks == chunks
        assert durations(where, plan, nbytes) == pytest.approx([expected] * 2, rel=1e-12)


def test_nvls_inside_and_sharp_across_add_up():
    where, forms = switched(8, 4), closed_forms
    algorithm = HierarchicalAllReduce.model_validate({"inner": "nvls", "outer": "sharp"})
    nbytes = 4e6
    expected = 2 * forms.nvls_reduce_scatter_time(nbytes, 4, ALPHA, BETA, 1)
    expected += forms.switch_tree_time(nbytes / 4, 2, ALPHA, BETA, 1)
    plan = algorithm.plan(layout(where), nbytes)
    prove(plan)
    assert durations(where, plan, nbytes) == pytest.approx([expected] * 2, rel=1e-12)


def test_alone_it_takes_no_time():
    assert closed_forms.nvls_all_reduce_time(1e6, 1, ALPHA, BETA, 1) == 0
    assert closed_forms.nvls_reduce_scatter_time(1e6, 1, ALPHA, BETA, 1) == 0


# Where they cannot work --------------------------------------------------------------------------


@for_each(
    ("kind", "where", "reason"),
    [
        (
            "nvls",
            Layout(8),
            "needs a switch that adds inside the node; "
            "write topology: {kind: switch, in_network: true}",
        ),
        (
            "nvls",
            Layout(8, 4, inside=(4,) * 4 + (-1,)),
            "works inside one node, and there are 2; use {kind: hierarchical, inner: nvls}",
        ),
        (
            "nvls",
            Layout(4, 4, inside=(4, 4, 5, 5, 6, 6, -1)),
            "needs one switch for all ranks of the node, and there are 3",
        ),
        (
            "sharp",
            Layout(8, 1),
            "needs switches that add between nodes; "
            "give inter_node a topology with in_network: true",
        ),
        (
            "sharp",
            Layout(4, 2, across=(4, 5, 4, 5, -1, -1)),
            "needs one tree of switches over all ranks; use {kind: hierarchical, outer: sharp}",
        ),
    ],
)
def test_layouts_without_the_switches_are_refused(kind, where, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message counts
        FAMILIES["all_reduce"][kind]().plan(where, 1.0)
    assert str(caught.value) == f"all_reduce {kind}: {reason}"


def test_rails_have_one_rank_to_a_node_and_the_tree_between_nodes():
    """Ranks 0 and 2 meet at switch 4, ranks 1 and 3 at switch 5."""
    members, rail = Layout(4, 2, across=(4, 5, 4, 5, -1, -1)).rails()
    np.testing.assert_array_equal(members, [[0, 2, 4], [1, 3, 5]])
    assert rail == Layout(2, 1, across=(2, 2, -1))
    assert Layout(4, 2).rails()[1] == Layout(2, 1)


def test_rails_with_trees_of_their_own_shape_see_no_switches():
    """Rank 3 hangs on a leaf of its own, so that the rails 0 and 1 climb unlike trees."""
    where = Layout(4, 2, across=(4, 4, 4, 5, 6, 6, -1))
    with pytest.raises(ValueError, match="between nodes form another tree for every rail"):
        where.rails()
    assert HierarchicalAllReduce().problem_with(where) is None
    prove(HierarchicalAllReduce().plan(where, 1.0))
    outer = HierarchicalAllReduce.model_validate({"outer": "sharp"})
    assert outer.problem_with(where) == (
        "cannot use its outer sharp, which needs switches that add between nodes; "
        "give inter_node a topology with in_network: true"
    )
