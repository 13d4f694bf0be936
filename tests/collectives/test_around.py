"""Rings that keep ranks apart lead around degraded links, and still sum everything once."""

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.collectives import FAMILIES, plans
from simdp.collectives.plans import Layout
from simdp.collectives.ring import RingAllReduce, ring_order

NUM_PARAMS = 1_000_000
RINGS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]


def neighbours(order):
    return {frozenset(pair) for pair in zip(order.tolist(), np.roll(order, -1).tolist())}  # noqa: B905


def crossings(order, per_node):
    return int((order // per_node != np.roll(order, -1) // per_node).sum())


@for_each(
    ("n", "per_node", "avoid", "num_crossings"),
    [
        (4, 4, [(0, 1)], 0),
        (5, 5, [(0, 1), (1, 2)], 0),
        (8, 8, [(2, 3), (7, 0)], 0),
        (8, 4, [(3, 4)], 2),
        (16, 8, [(7, 8), (15, 0)], 2),
        (64, 8, [(7, 8), (20, 21), (55, 56)], 8),
    ],
)
def test_a_ring_keeps_pairs_apart_and_nodes_together(n, per_node, avoid, num_crossings):
    order = ring_order(n, per_node, tuple(avoid))
    assert sorted(order.tolist()) == list(range(n))
    assert order[0] == 0
    assert not neighbours(order) & {frozenset(pair) for pair in avoid}
    assert crossings(order, per_node) == num_crossings


def test_a_ring_that_avoids_nothing_goes_by_number():
    assert ring_order(8, 4, ()).tolist() == list(range(8))
    assert ring_order(8, 4, ((0, 4),)).tolist() == list(range(8))


def test_only_what_must_changes_places():
    assert ring_order(8, 8, ((2, 3),)).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]


@for_each("name", RINGS)
@for_each("root", [0, 2])
def test_the_ledger_proves_a_ring_with_another_order(name, root):
    avoid = [[0, 1], [3, 4]]
    made = FAMILIES[name]["ring"].model_validate({"avoid": avoid, "slices": 2})
    plan = made.plan(Layout(6, 3), 1e6, root if name in ("broadcast", "reduce") else 0)
    plans.prove(plan)
    for moves in plan.moves():
        pairs = {frozenset(p) for p in zip(moves.src.tolist(), moves.dst.tolist(), strict=True)}
        assert not pairs & {frozenset(pair) for pair in avoid}


def job(avoid=(), degraded=True, n=4):
    link = {"kind": "degraded_link", "link": [1, 2], "bandwidth": 0.1}
    ring = {"kind": "ring", "avoid": [list(pair) for pair in avoid]}
    return {
        "cluster": {
            "world_size": n,
            "device": "a100-sxm4-80gb",
            "topology": "full_mesh",
            "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
            "stragglers": [link] if degraded else [],
        },
        "workload": {
            "model": {"kind": "parameters", "num_params": NUM_PARAMS},
            "microbatch": 8,
            "steps": 3,
            "optimizer": "none",
        },
        "strategy": {"kind": "ddp", "bucket_cap": "100 MiB"},
        "collectives": {"all_reduce": ring, "broadcast": ring},
        "numerics": False,
    }


@for_each("fabric", ["event", "vector"])
def test_nothing_crosses_a_degraded_link_that_a_ring_avoids(fabric, load):
    slow, around, sound = (
        simdp.simulate(load(**job(*each)), fabric=fabric)
        for each in ([()], [[(1, 2)]], [(), False])
    )
    name = "the link from rank 1 to rank 2"
    used = [
        {one["link"]: one["nbytes"] for one in each.network["links"]} for each in (slow, around)
    ]
    assert used[0][name] == pytest.approx(4 * NUM_PARAMS * 2 * 3 / 4)
    assert name not in used[1]
    assert "the link from rank 2 to rank 1" not in used[1]
    times = [each.metrics["step_time_s"] for each in (slow, around, sound)]
    assert times[1] == pytest.approx(times[2], rel=1e-12)
    assert times[0] > 5 * times[1]


def test_numbers_of_another_order_are_sums_of_the_same(load):
    workload = {
        "model": {"kind": "mlp", "widths": [4, 3]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "microbatch": 8,
        "dtype": "float64",
    }
    found = [
        simdp.simulate(load(**{**job(avoid), "workload": workload, "numerics": True}))
        for avoid in ((), [(1, 2)])
    ]
    for name, value in found[0].replicas[0].items():
        np.testing.assert_allclose(found[1].replicas[0][name], value, rtol=1e-12)
    assert found[1].metrics["replicas_identical"]


@for_each(
    ("avoid", "n", "line"),
    [
        (
            [(0, 1)],
            3,
            "ring finds no order of 3 ranks that keeps apart all pairs of avoid; leave some out.",
        ),
        ([(0, 9)], 4, "ring cannot keep ranks 0 and 9 apart; give two of 0 ... 3 in avoid."),
        ([(2, 2)], 4, "ring cannot keep ranks 2 and 2 apart; give two of 0 ... 3 in avoid."),
    ],
)
def test_what_no_ring_can_avoid_is_refused(avoid, n, line, refuse):
    asked = job(avoid, degraded=False, n=n)
    asked["collectives"].pop("broadcast")
    assert refuse(**asked) == [f"collectives.all_reduce: {line}"]


def test_the_ring_of_gloo_goes_by_number():
    made = RingAllReduce(chunking="gloo", avoid=((0, 1),))
    assert made.problem_with(Layout(8)) == (
        "goes by the ranks' numbers with chunking: gloo; leave out avoid, or use even."
    )
