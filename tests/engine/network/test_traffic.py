"""Bytes of each link: counted from plans, by hand, and written to result.json."""

import json

import numpy as np
import pytest
from for_each import for_each, for_some
from small_networks import between, cluster
from small_scenario import CLUSTER

import simdp
from simdp.collectives import FAMILIES
from simdp.collectives.ring import RingAllReduce
from simdp.engine.collective import Bench
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import MAX_LISTED, Traffic, link_bytes, link_use, report
from simdp.engine.ops import ClockBarrier, ClockWait, ComputeWork, Launch
from simdp.results.result import Study
from simdp.scenario.placement import layout

S = 24e6
PARAMETERS = {
    "model": {"kind": "parameters", "num_params": 6_000_000},
    "microbatch": 8,
    "steps": 3,
    "optimizer": "none",
}
"""A model of 24 MB whose steps are nothing but communication."""


def crossed(where, algorithm, nbytes=S):
    """Bytes of each link by its name."""
    links, found = link_bytes(NetworkRoutes(where), {algorithm.plan(layout(where), nbytes): nbytes})
    return dict(zip(map(where.link_name, links.tolist()), found.tolist(), strict=True))


@for_each("n", [2, 3, 8])
@for_each("topology", ["ring", "switch", "full_mesh"])
def test_a_ring_moves_the_same_over_each_of_its_links(n, topology):
    found = crossed(cluster(n, topology), RingAllReduce())
    assert len(found) == (2 * n if topology == "switch" else n)
    assert list(found.values()) == pytest.approx([2 * (n - 1) / n * S] * len(found))


@for_each("cards", [1, 4])
def test_a_hierarchical_all_reduce_moves_three_halves_inside_and_a_quarter_per_rank_across(cards):
    where = cluster(8, devices_per_node=4, inter_node=between("switch", cards=cards))
    found = crossed(where, FAMILIES["all_reduce"]["hierarchical"]())
    inside = {link: b for link, b in found.items() if "rank" in link}
    across = {link: b for link, b in found.items() if "card" in link}
    assert (len(inside), len(across)) == (16, 4 * cards)  # up and down, each
    # Reduce_scatter and all_gather: three quarters each. A ring of two nodes sends a half twice.
    assert list(inside.values()) == pytest.approx([1.5 * S] * 16)
    assert list(across.values()) == pytest.approx([S / cards] * 4 * cards)


def test_what_a_chain_and_slices_move_is_the_whole_buffer_over_every_link_of_the_way():
    found = crossed(cluster(5, "ring"), FAMILIES["broadcast"]["ring"]())
    assert found == pytest.approx({f"the link from rank {r} to rank {r + 1}": S for r in range(4)})
    whole = crossed(cluster(4, "ring"), RingAllReduce())
    assert crossed(cluster(4, "ring"), RingAllReduce(slices=5)) == pytest.approx(whole)


def test_bytes_of_several_plans_add_up_and_the_busiest_link_comes_first():
    where = cluster(4, "ring")
    ring, chain = RingAllReduce().plan(4, S), FAMILIES["broadcast"]["ring"]().plan(4, S)
    links, found = link_bytes(NetworkRoutes(where), {ring: S, chain: 2 * S})
    names = dict(zip(map(where.link_name, links.tolist()), found.tolist(), strict=True))
    assert names.pop("the link from rank 3 to rank 0") == pytest.approx(1.5 * S)
    assert list(names.values()) == pytest.approx([3.5 * S] * 3)
    assert found[-1] == pytest.approx(1.5 * S)


def test_nothing_crosses_a_link_where_there_is_one_rank():
    where = cluster(1)
    plan = RingAllReduce().plan(1, S)
    assert report(NetworkRoutes(where), {plan: S}, 1.0) == {
        "num_links_used": 0,
        "bottleneck": None,
        "links": [],
    }


def test_a_result_lists_sixteen_links_at_most_and_counts_all():
    where = cluster(20, "ring")
    num_links, listed = link_use(NetworkRoutes(where), {RingAllReduce().plan(20, S): S}, 1.0)
    assert (num_links, len(listed)) == (20, MAX_LISTED) == (20, 16)


def test_the_bottleneck_is_the_link_that_is_busy_longest_not_the_one_with_most_bytes():
    where = cluster(4, devices_per_node=2, inter_node=between("switch", bandwidth="1 GB/s"))
    plan = FAMILIES["all_reduce"]["hierarchical"]().plan(layout(where), S)
    found = report(NetworkRoutes(where), {plan: S}, 0.1)
    by_hand = crossed(where, FAMILIES["all_reduce"]["hierarchical"]())
    # Inside, a ring of two moves S over each port; across, one card takes S / 2 of both its ranks.
    assert set(by_hand.values()) == {S}
    assert "card" in found["bottleneck"]["link"]
    assert found["bottleneck"]["utilization"] == pytest.approx(S / 1e9 / 0.1)
    assert found["links"][-1]["utilization"] == pytest.approx(S / 25e9 / 0.1)
    assert found["links"][0] == found["bottleneck"]
    # Without any time there is no utilisation.
    assert report(NetworkRoutes(where), {plan: 0.0}, 0.0)["bottleneck"]["utilization"] == 0.0


def test_launches_are_counted_by_step_and_averaged_from_the_first_steady_one_on():
    first, second = RingAllReduce().plan(4, 1e6), FAMILIES["broadcast"]["ring"]().plan(4, 1e6)
    ops = [
        Launch(-1, "setup", 0, second, 5e6, False),
        ClockBarrier(-1),
        ComputeWork(0, "forward", "x", np.zeros(4)),
        Launch(0, "a", 1, first, 9e6, False),
        Launch(1, "a", 2, first, 1e6, False),
        Launch(1, "b", 3, first, 2e6, False),
        Launch(2, "a", 4, first, 5e6, False),
        Launch(2, "c", 5, second, 4e6, False),
        ClockWait((1, 2, 3, 4, 5)),
    ]
    traffic = Traffic()
    assert list(traffic.watch(iter(ops))) == ops  # passed on as they are
    assert traffic.per_step(1, 2) == {first: 4e6, second: 2e6}
    assert traffic.per_step(0, 3) == {
        first: pytest.approx(17e6 / 3),
        second: pytest.approx(4e6 / 3),
    }


# In a run -----------------------------------------------------------------------------------------


@for_each("steps", [1, 3])
def test_a_run_says_how_busy_its_links_were(load, steps):
    """4 ranks in a ring that do nothing but all_reduce: each link is busy but for the latencies."""
    workload = {**PARAMETERS, "steps": steps}
    scenario = load(workload=workload, collectives={"all_reduce": "ring"}, numerics=False)
    result = simdp.simulate(scenario)
    each = 2 * 3 / 4 * S
    step_time = 2 * 3 * (5e-6 + S / 4 / 25e9)
    assert result.metrics["step_time_s"] == pytest.approx(step_time)
    network = result.network
    assert network["num_links_used"] == 4
    assert [link["nbytes"] for link in network["links"]] == pytest.approx([each] * 4)
    assert network["bottleneck"]["utilization"] == pytest.approx(each / 25e9 / step_time)
    assert network["bottleneck"]["link"].startswith("the link from rank ")
    assert network["why"].startswith("no link is shared")


def test_what_crosses_the_links_is_what_the_ranks_sent(load):
    """On a ring, whose transfers cross one link each."""
    result = simdp.simulate(
        load(workload=PARAMETERS, collectives={"all_reduce": "ring"}, numerics=False)
    )
    moved = sum(link["nbytes"] for link in result.network["links"])
    assert moved == pytest.approx(sum(result.metrics["bytes_sent_per_rank"]))


def test_result_json_holds_what_crossed_the_links_and_loads_again(load, tmp_path):
    scenario = load(
        cluster={**CLUSTER, "topology": "switch"},
        workload=PARAMETERS,
        numerics=False,
        collectives={"all_reduce": "direct"},
        sweep={"cluster.world_size": [1, 4]},
    )
    study = simdp.sweep(scenario)
    study.save(tmp_path / "result.json")
    points = json.loads((tmp_path / "result.json").read_text())["points"]
    assert points[0]["network"]["bottleneck"] is None
    assert points[1]["network"]["fabric"] == "event"
    assert points[1]["network"]["why"].endswith("is shared")
    assert points[1]["network"]["num_links_used"] == 8
    loaded = Study.load(tmp_path / "result.json")
    assert [point.network for point in loaded.points] == [point["network"] for point in points]
    assert [point.network for point in study.points] == [point["network"] for point in points]


def test_a_collective_by_itself_says_how_busy_its_links_were():
    timing = Bench(cluster(4, "ring")).time(RingAllReduce(), S)
    assert timing.links[0].utilization == pytest.approx(1.5 * S / 25e9 / timing.seconds)
    assert len(timing.links) == 4


METHODS = [
    *("single", "ddp", "zero1", "zero2", "fsdp", "hsdp", "horovod", "apex", "parameter_server"),
    {"kind": "ddp", "no_sync": False},
    {"kind": "local_sgd", "local_steps": 2},
    {"kind": "parameter_server", "updates": "asynchronous"},
]


@pytest.mark.slow
@for_some("method", METHODS, 3, ids=str)
@for_each("steps", [1, 2, 3])
@for_each("collectives", [{"cost": "links"}, {"all_reduce": "double_binary_tree"}], ids=str)
def test_no_link_is_busy_for_more_than_all_the_time(load, method, steps, collectives):
    """Slow cards, so that links are nearly always busy, and ranks that end at different times."""
    n = 1 if method == "single" else 4
    inter = between("switch", bandwidth="1 GB/s")
    nodes = {**CLUSTER, "world_size": n, "devices_per_node": min(n, 2), "inter_node": inter}
    slow = [{"kind": "slow_rank", "rank": 0, "factor": 2.0}]
    top = {"cluster": {**nodes, "stragglers": slow}, "strategy": method, "numerics": False}
    result = simdp.simulate(
        load(workload={**PARAMETERS, "steps": steps}, collectives=collectives, **top)
    )
    assert all(0 <= link["utilization"] <= 1 + 1e-9 for link in result.network["links"])


@pytest.mark.slow
def test_ranks_that_end_at_different_times_make_no_link_busier_than_it_was():
    """One step over slow cards: the mean rank is done before the last byte has crossed them."""
    changes = {"strategy.no_sync": False, "workload.grad_accum": 1, "workload.steps": 1}
    result = simdp.simulate(simdp.load_scenario("scenarios/no_sync.yaml", changes))
    busiest = result.network["bottleneck"]
    ends = result.trace.end.max() - result.trace.start[result.trace.step == 0].min()
    assert busiest["nbytes"] / 1.25e9 > result.metrics["step_time_s"]
    assert busiest["utilization"] == pytest.approx(busiest["nbytes"] / 1.25e9 / ends)
    assert 0.9 < busiest["utilization"] < 1


@pytest.mark.slow
def test_timed_collectives_name_what_nccl_keeps_busiest_and_no_single_link():
    """What NCCL takes from a formula need not cross the links of our plan."""
    changes = {"cluster.machine": "dgx-h100", "collectives": {"cost": "nccl"}, "sweep": None}
    scenario = simdp.load_scenario("scenarios/two_nodes.yaml", changes)
    network = simdp.sweep(scenario).points[0].network
    assert network["fabric"] == "vector"
    assert network["num_links_used"] is None
    assert network["bottleneck"]["link"] == "a node's network cards"
    assert all(0 < link["utilization"] <= 1 for link in network["links"])
    assert "collectives.cost tells" in network["why"]


def test_an_estimate_counts_as_all_the_time_at_most():
    where, plan = cluster(4), RingAllReduce().plan(4, S)
    assert link_use(NetworkRoutes(where), {plan: S}, 1e-6)[1][0].utilization > 1
    assert link_use(NetworkRoutes(where), {plan: S}, 1e-6, estimated=True)[1][0].utilization == 1
