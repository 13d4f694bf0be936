"""What torch does with gloo: its times and cuts. Its bits are in tests/distributed."""

import numpy as np
import pytest
from for_each import for_each
from small_networks import cluster

from simdp.collectives import FAMILIES, Layout
from simdp.collectives.ring import RingAllReduce
from simdp.engine.collective import Planner

ALPHA, BETA, NBYTES = 5e-6, 1 / 25e9, 3e6 + 1


def seconds(topology, n, family, root=0):
    """When the last rank is done; a route over the switch is two links, as fast as one."""
    planner = Planner(cluster(n, topology))
    return planner.seconds(FAMILIES[family]["gloo"](), NBYTES, root)


@for_each("n", [2, 3, 4, 7])
def test_a_reduce_is_a_ring_and_then_everybody_to_the_root(n):
    one = BETA * NBYTES / n
    around = (n - 1) * (ALPHA + one)
    found = seconds("full_mesh", n, "reduce", root=n - 1)
    assert found == pytest.approx(around + ALPHA + one, rel=1e-12)
    around = (n - 1) * (2 * ALPHA + one)
    shared = 2 * ALPHA + (n - 1) * one  # the link to the root
    assert seconds("switch", n, "reduce", root=1) == pytest.approx(around + shared, rel=1e-12)


@for_each("n", [2, 3, 8])
def test_a_reduce_scatter_takes_as_long_as_an_all_reduce(n):
    expected = 2 * (n - 1) * (ALPHA + BETA * NBYTES / n)
    assert seconds("full_mesh", n, "reduce_scatter") == pytest.approx(expected, rel=1e-12)


@for_each("slices", [1, 2])
def test_both_cut_and_go_as_the_all_reduce_does(slices):
    ring = RingAllReduce(chunking="gloo", slices=slices).plan(Layout(5), NBYTES)
    for family in ("reduce", "reduce_scatter"):
        plan = FAMILIES[family]["gloo"](slices=slices).plan(Layout(5), NBYTES)
        np.testing.assert_array_equal(plan.offsets(750_001, 4), ring.offsets(750_001, 4))
