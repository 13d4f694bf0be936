"""Lockstep: shared links without events, against the event fabric and by hand."""

import numpy as np
import pytest
from for_each import for_each
from small_networks import FAT_TREE, between, cluster, durations

from simdp.collectives import FAMILIES
from simdp.collectives.plans import Plan, Round, even_offsets
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes, traffic
from simdp.engine.network.traffic import Lockstep, shared_link
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import layout

ALPHA, FULL = 5e-6, 25e9
DRAGONFLY = {"kind": "dragonfly", "ports_per_router": 2, "routers_per_group": 2, "groups": 4}
PLACES = {
    "switch": cluster(16, "switch"),
    "ring": cluster(16, "ring"),
    "torus2d": cluster(16, "torus2d"),
    "fat_tree": cluster(16, devices_per_node=1, inter_node=between(FAT_TREE)),
    "dragonfly": cluster(16, devices_per_node=1, inter_node=between(DRAGONFLY)),
    "nodes": cluster(16, "switch", devices_per_node=4, inter_node=between("switch")),
    "pcie_tree": cluster(8, "pcie_tree"),
}
EXACT = ["ring", "hierarchical", "direct", "naive"]
"""Algorithms whose transfers of different rounds never meet on a link."""


def fixed(where, plan, nbytes, enter=None):
    """How long a collective takes with fixed shares."""
    fabric = VectorFabric(NetworkRoutes(where), Slowdown(where, 0), TraceBuilder(), fixed=True)
    return fabric.times(plan, nbytes, np.zeros(where.world_size) if enter is None else enter).max()


def plan_for(kind, where, nbytes, **options):
    return FAMILIES["all_reduce"][kind](**options).plan(layout(where), nbytes)


def chunked(rounds, num_chunks, order="chunk", world_size=4):
    """A plan of rounds of ``(src, dst, number of chunks)``."""
    made = [
        Round(*(np.array(column) for column in zip(*((s, d, 0) for s, d, _ in each), strict=True)),
              False, num_chunks=np.array([count for *_, count in each]))
        for each in rounds
    ]  # fmt: skip
    offsets = even_offsets(num_chunks)
    return Plan("broadcast", world_size, num_chunks, 0, lambda: iter(made), offsets, order)


@pytest.mark.slow
@for_each("kind", EXACT)
@for_each("place", PLACES)
def test_one_round_after_the_other_is_played_exactly(kind, place):
    plan = plan_for(kind, PLACES[place], 4e6)
    exact = durations(PLACES[place], plan, 4e6)[0]
    assert fixed(PLACES[place], plan, 4e6) == pytest.approx(exact, rel=1e-9)


@for_each("topology", ["switch", "ring", "torus2d"])
def test_partners_at_any_distance_are_played_exactly(topology):
    """The farther they are, the more share a link, in that round only."""
    plan = plan_for("halving_doubling", PLACES[topology], 64e6)
    exact = durations(PLACES[topology], plan, 64e6)[0]
    assert fixed(PLACES[topology], plan, 64e6) == pytest.approx(exact, rel=1e-9)


@pytest.mark.long
@pytest.mark.slow
@for_each("kind", ["tree", "double_binary_tree", "multi_ring"])
@for_each("place", PLACES)
@for_each("nbytes", [1e6, 16e6])
def test_pipelines_err_by_less_than_a_fifth(kind, place, nbytes):
    where = PLACES[place]
    if FAMILIES["all_reduce"][kind]().problem_with(layout(where)):
        pytest.skip("cannot serve this cluster")
    plan = plan_for(kind, where, nbytes)
    if shared_link(NetworkRoutes(where), [plan]) is None:
        pytest.skip("shares nothing")
    exact = durations(where, plan, nbytes)[0]
    assert fixed(where, plan, nbytes) == pytest.approx(exact, rel=0.2)


def test_a_flow_takes_what_others_leave_as_soon_as_they_are_over():
    """Two into one port: half each, until the smaller is over."""
    plan = chunked([[(0, 2, 1), (1, 2, 3)]], 4)
    (times,) = Lockstep(NetworkRoutes(cluster(4, "switch")), plan).times(0, 1e6)
    assert times[:, 0] == pytest.approx([2 * ALPHA + 2e6 / FULL, 2 * ALPHA + 4e6 / FULL])


def test_only_transfers_of_one_round_share():
    plan = chunked([[(0, 1, 1), (2, 1, 1)], [(3, 1, 1)]], 1, "rank")
    times = Lockstep(NetworkRoutes(cluster(4, "switch")), plan).times(0, 1e6)
    assert [t.ravel().tolist() for t in times] == [
        pytest.approx([2 * ALPHA + 2e6 / FULL] * 2),
        pytest.approx([2 * ALPHA + 1e6 / FULL]),
    ]


def test_transfers_of_one_connection_follow_each_other():
    plan = chunked([[(0, 1, 1), (0, 1, 1), (2, 1, 1)]], 1)
    (times,) = Lockstep(NetworkRoutes(cluster(4, "switch")), plan).times(0, 1e6)
    halved, alone = 2 * ALPHA + 2e6 / FULL, 2 * ALPHA + 1e6 / FULL
    assert times[:, 0] == pytest.approx([halved, alone, halved])


def test_parts_that_begin_together_share_round_by_round():
    where = cluster(4, "switch")
    plan = plan_for("multi_ring", where, 1e6, channels=2)
    assert len(plan.everything) == 2
    for number in (0, 1):
        (times,) = Lockstep(NetworkRoutes(where), plan).times(number, 1e6)
        assert times == pytest.approx(2 * ALPHA + 2e6 / FULL)


def test_what_is_too_much_to_follow_keeps_its_first_rates(monkeypatch):
    """Never faster than what is followed to the end."""
    where, plan = PLACES["ring"], plan_for("direct", PLACES["ring"], 4e6)
    followed = fixed(where, plan, 4e6)
    monkeypatch.setattr(traffic, "BUDGET", 1)
    assert followed < fixed(where, plan, 4e6) < 2 * followed


def test_with_and_without_spans_transfers_take_the_same(monkeypatch):
    """A chain in closed form, and chunk by chunk where its transfers are shown."""
    where = PLACES["nodes"]
    plan = FAMILIES["broadcast"]["ring"](chunk_size="100 kB").plan(layout(where), 1e6)
    told = fixed(where, plan, 1e6)
    monkeypatch.setattr("simdp.engine.clocks.vector.chain", lambda *_: None)
    assert fixed(where, plan, 1e6) == pytest.approx(told, rel=1e-12)
