"""Closed forms against counts of rounds and both clocks, and what they say of one rank and none."""

from functools import cache

import closed_forms
import pytest
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, Layout
from simdp.collectives.ring import num_rings
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.ops import ClockWait, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder

BY_LEVELS = ("hierarchical", "nvls", "switch", "torus2d")
"""Forms with other arguments; `collectives/test_composed.py` and `test_in_network.py` have them."""

EVERY_FORM = {
    name: form
    for name, form in vars(closed_forms).items()
    if name.endswith("_time") and not name.startswith(BY_LEVELS)
}
FORMS = dict.fromkeys(EVERY_FORM, ()) | {
    "ring_broadcast_time": (4,),
    "tree_all_reduce_time": (4,),
    "tree_reduce_time": (4,),
    "naive_all_reduce_time": (True,),
    "double_binary_tree_all_reduce_time": (4,),
    "double_binary_tree_reduce_time": (4,),
    "multi_ring_all_reduce_time": (4,),
    "multi_ring_reduce_scatter_time": (4,),
    "bidirectional_ring_broadcast_time": (4,),
}
"""Other arguments of each closed form: chunks in a pipeline, rings, whether a port is shared."""

ALPHA, BETA = 5e-6, 1 / 25e9

every_form = for_each("name", FORMS)


def time(name, nbytes, world_size, alpha=ALPHA, beta=BETA):
    return EVERY_FORM[name](nbytes, world_size, alpha, beta, *FORMS[name])


@every_form
def test_one_rank_takes_no_time(name):
    assert time(name, 1e9, 1) == 0


@every_form
@for_each("world_size", [0, -1])
def test_no_rank_is_refused(name, world_size):
    with pytest.raises(ValueError, match=f"^world_size must be >= 1, got {world_size}$"):
        time(name, 1.0, world_size)


@pytest.mark.slow
@every_form
@given(world_size=st.integers(2, 1024), nbytes=st.floats(0, 1e12))
def test_time_is_linear_in_alpha_and_beta(name, world_size, nbytes):
    latency, transfer = time(name, nbytes, world_size, beta=0), time(name, nbytes, world_size, 0)
    whole = time(name, nbytes, world_size)
    assert whole == pytest.approx(latency + transfer, rel=1e-12)
    assert time(name, 2 * nbytes, world_size, 0) == pytest.approx(2 * transfer, rel=1e-12)


ALGORITHMS = [
    ("ring_all_reduce_time", "all_reduce", "ring"),
    ("ring_reduce_scatter_time", "reduce_scatter", "ring"),
    ("ring_reduce_scatter_time", "all_gather", "ring"),
    ("ring_broadcast_time", "broadcast", "ring"),
    ("ring_broadcast_time", "reduce", "ring"),
    ("tree_all_reduce_time", "all_reduce", "tree"),
    ("tree_reduce_time", "reduce", "tree"),
    ("tree_reduce_time", "broadcast", "tree"),
    ("naive_all_reduce_time", "all_reduce", "naive"),
    ("recursive_doubling_all_reduce_time", "all_reduce", "recursive_doubling"),
    ("recursive_doubling_all_reduce_time", "barrier", "recursive_doubling"),
    ("recursive_doubling_all_gather_time", "all_gather", "recursive_doubling"),
    ("halving_doubling_all_reduce_time", "all_reduce", "halving_doubling"),
    ("halving_doubling_reduce_scatter_time", "reduce_scatter", "halving_doubling"),
    ("halving_doubling_reduce_time", "reduce", "halving_doubling"),
    ("halving_doubling_reduce_time", "broadcast", "halving_doubling"),
    ("binomial_reduce_time", "reduce", "binomial"),
    ("binomial_reduce_time", "broadcast", "binomial"),
    ("direct_all_reduce_time", "all_reduce", "direct"),
    ("direct_reduce_scatter_time", "reduce_scatter", "direct"),
    ("direct_reduce_scatter_time", "all_gather", "direct"),
    ("direct_reduce_scatter_time", "all_to_all", "direct"),
    ("pairwise_all_to_all_time", "all_to_all", "pairwise"),
    ("double_binary_tree_all_reduce_time", "all_reduce", "double_binary_tree"),
    ("double_binary_tree_reduce_time", "reduce", "double_binary_tree"),
    ("double_binary_tree_reduce_time", "broadcast", "double_binary_tree"),
    ("multi_ring_all_reduce_time", "all_reduce", "multi_ring"),
    ("multi_ring_reduce_scatter_time", "reduce_scatter", "multi_ring"),
    ("multi_ring_reduce_scatter_time", "all_gather", "multi_ring"),
    ("bidirectional_ring_all_reduce_time", "all_reduce", "bidirectional_ring"),
    ("bidirectional_ring_reduce_scatter_time", "reduce_scatter", "bidirectional_ring"),
    ("bidirectional_ring_reduce_scatter_time", "all_gather", "bidirectional_ring"),
    ("bidirectional_ring_broadcast_time", "broadcast", "bidirectional_ring"),
]

every_algorithm = for_each(("name", "family", "kind"), ALGORITHMS)


def test_every_closed_form_has_an_algorithm():
    assert {name for name, _, _ in ALGORITHMS} == set(EVERY_FORM)


@every_algorithm
def test_every_round_costs_one_alpha(name, family, kind):
    for n in range(2, 18):
        nbytes = 4 * 512 * 1024  # four chunks in a pipeline, as FORMS says; or in each of two
        if kind == "double_binary_tree" or (kind == "bidirectional_ring" and n > 2):
            nbytes *= 2
        plan = FAMILIES[family][kind]().plan(n, nbytes)
        rounds = max(part.plan.num_rounds for part in plan.everything)  # all at the same time
        assert time(name, nbytes, n, alpha=1.0, beta=0.0) == rounds


@cache
def full_mesh(world_size):
    device = {
        "peak": {"float32": "1 TFLOP/s"},
        "memory": "1 GB",
        "memory_bandwidth": "1 TB/s",
        "efficiency": 0.5,
        "launch": "0 s",
    }
    link = {"alpha": "5 us", "bandwidth": "25 GB/s"}
    raw = {"world_size": world_size, "device": device, "topology": "full_mesh", "link": link}
    return Cluster.model_validate(raw)


def clock(fabric, plan, nbytes):
    """When the last rank is done on a full mesh."""
    where, trace = full_mesh(plan.world_size), TraceBuilder()
    network, slowdown = NetworkRoutes(where), Slowdown(where, 0)
    ops = [Launch(0, "x", 0, plan, nbytes, False), ClockWait((0,))]
    if fabric == "event":
        EventFabric([FabricJob(network, {0: [plan]}, slowdown, trace)]).play([iter(ops)])
    else:
        VectorFabric(network, slowdown, trace).play(iter(ops))
    return trace.build().end.max(initial=0.0)


def other_arguments(name, plan, n):
    """What a closed form must know of a plan beside bytes, ranks and links."""
    if name.startswith("multi_ring"):
        return (max(num_rings(Layout(n)), 1),)
    if name == "naive_all_reduce_time":
        return (False,)
    if FORMS[name]:
        return (plan.num_chunks // len(plan.everything),)
    return ()


@pytest.mark.slow
@for_some("fabric", ["event", "vector"], 2)
@every_algorithm
def test_both_clocks_take_the_closed_form_on_a_full_mesh(fabric, name, family, kind):
    one_chunk = name == "double_binary_tree_all_reduce_time"
    nbytes = 1e6 + 1 if one_chunk else 3e6 + 1
    for n in [*range(1, 10), 16, 17]:
        root = n // 2 if family in ("broadcast", "reduce") else 0
        plan = FAMILIES[family][kind]().plan(n, nbytes, root)
        arguments = other_arguments(name, plan, n)
        expected = EVERY_FORM[name](nbytes, n, ALPHA, BETA, *arguments)
        assert clock(fabric, plan, nbytes) == pytest.approx(expected, rel=1e-12, abs=0)


def test_two_trees_that_meet_on_a_link_take_up_to_twice_as_long():
    nbytes, n = 24 * 2**20, 16
    plan = FAMILIES["all_reduce"]["double_binary_tree"]().plan(n, nbytes)
    form = closed_forms.double_binary_tree_all_reduce_time
    alone = form(nbytes, n, ALPHA, BETA, plan.num_chunks // 2)
    assert alone < clock("event", plan, nbytes) < 2 * alone


@pytest.mark.slow
@for_each("kind", ["ring", "bidirectional_ring", "multi_ring"])
@for_each("family", ["all_reduce", "reduce_scatter", "all_gather"])
def test_slices_of_a_ring_pay_the_latency_once_each(family, kind):
    plan = FAMILIES[family][kind](slices=3).plan(8, 3e6)
    whole = FAMILIES[family][kind]().plan(8, 3e6)
    rounds = whole.everything[0].plan.num_rounds
    for fabric in "event", "vector":
        more = clock(fabric, plan, 3e6) - clock(fabric, whole, 3e6)
        assert more == pytest.approx(2 * ALPHA * rounds, rel=1e-9)


def test_a_ring_of_eight_as_in_the_paper():
    wanted = 14 * (5e-6 + 25e6 / 8 / 25e9)
    assert time("ring_all_reduce_time", 25e6, 8) == pytest.approx(wanted, rel=1e-15)


def test_a_shared_port_takes_one_flow_after_another():
    alone, shared = (
        closed_forms.naive_all_reduce_time(1e6, 5, 0.0, BETA, sharing) for sharing in (False, True)
    )
    assert shared == 4 * alone
