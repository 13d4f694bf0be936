"""What helps against stragglers: a node less, another ring, other batches, each simulated."""

import copy
from pathlib import Path

import pytest
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.scenario.overrides import override_all
from simdp.studies.advice import would_help
from simdp.studies.variants import around_stragglers

NODES = {
    **FAST,
    "topology": "switch",
    "world_size": 8,
    "devices_per_node": 2,
    "inter_node": {"link": {"alpha": "5 us", "bandwidth": "50 GB/s"}},
}
WORKLOAD = {"model": {"kind": "mlp", "widths": [256, 256]}, "microbatch": 4096, "steps": 4}


def raw(stragglers, cluster=NODES, **more):
    return {
        "cluster": {**cluster, "stragglers": stragglers},
        "workload": WORKLOAD,
        "numerics": False,
        **more,
    }


def advice(asked):
    scenario = checked(copy.deepcopy(asked), Path())
    found = would_help(scenario, simdp.simulate(scenario))
    return [] if found is None else found.lines


def tried(asked):
    return list(around_stragglers(checked(copy.deepcopy(asked), Path())))


def test_a_node_that_costs_more_than_it_gives_is_better_left_out():
    slow = {"kind": "slow_node", "node": 1, "factor": 2}
    (line,) = [line for line in advice(raw([slow])) if "node" in line]
    assert line.endswith("x samples/s: without node 1 (6 ranks)")
    sound = simdp.simulate(checked(raw([], {**NODES, "world_size": 6}), Path()))
    with_it = simdp.simulate(checked(raw([slow]), Path()))
    rates = [found.metrics["throughput_samples_per_s"] for found in (sound, with_it)]
    assert float(line.split("x")[0]) == pytest.approx(rates[0] / rates[1], rel=0.01)
    # A quarter of the samples is more than a fifth of the time.
    assert not [line for line in advice(raw([{**slow, "factor": 1.2}])) if "node" in line]


def test_stragglers_behind_the_node_move_up():
    stragglers = [
        {"kind": "slow_node", "node": 1, "factor": 2},
        {"kind": "slow_rank", "rank": 7, "factor": 1.1},
        {"kind": "slow_rank", "rank": 2, "factor": 1.1},
        {"kind": "degraded_link", "node": 2, "bandwidth": 0.5},
        {"kind": "degraded_link", "link": [6, 7], "bandwidth": 0.5},
        {"kind": "lognormal", "sigma": 0.1},
    ]
    asked = raw(stragglers, {**NODES, "topology": "full_mesh"})
    found = {change.title: change.settings() for change in tried(asked) if change.family == "evict"}
    assert list(found) == ["without node 1", "without node 3", "without node 2"]
    settings = found["without node 1"]
    assert settings["cluster.world_size"] == 6
    kept = [
        {key: one[key] for key in ("kind", "node", "rank", "link") if one.get(key) is not None}
        for one in settings["cluster.stragglers"]
    ]
    assert kept == [
        {"kind": "slow_rank", "rank": 5},
        {"kind": "degraded_link", "node": 1},
        {"kind": "degraded_link", "link": [4, 5]},
        {"kind": "lognormal"},
    ]
    checked(override_all(copy.deepcopy(asked), settings, Path()), Path())


def test_lists_of_what_nodes_have_lose_the_nodes_entry():
    slow = {"kind": "slow_node", "node": 1, "factor": 2}
    links = [{"alpha": "5 us", "bandwidth": f"{10 + k} GB/s"} for k in range(4)]
    lists = {"link": links, "device": [FAST["device"]] * 8, "inter_node": {"link": links}}
    asked = raw([slow], {**NODES, **lists})
    (change,) = tried(asked)
    changed = checked(override_all(copy.deepcopy(asked), change.settings(), Path()), Path())
    assert [link.bandwidth for link in changed.cluster.link] == [10e9, 12e9, 13e9]
    assert len(changed.cluster.device) == 6
    assert len(changed.cluster.inter_node.link) == 3


def test_a_ring_is_led_around_a_degraded_link():
    degraded = {"kind": "degraded_link", "link": [1, 2], "bandwidth": 0.05}
    cluster = {**FAST, "world_size": 4}
    asked = raw([degraded], cluster, strategy={"kind": "ddp", "overlap": False})
    asked["workload"] = {**WORKLOAD, "microbatch": 64}
    lines = advice(asked)
    assert any("collectives.all_reduce.avoid: [[1, 2]]" in line for line in lines)
    asked["collectives"] = {"all_reduce": {"kind": "ring", "avoid": [[1, 2]]}}
    assert not [change for change in tried(asked) if change.family == "avoid"]


def test_a_global_batch_may_go_by_speed():
    slow = {"kind": "slow_rank", "rank": 1, "factor": 2}
    asked = raw([slow], {**FAST, "world_size": 4})
    asked["workload"] = {**WORKLOAD, "global_batch": 4 * 4096}
    asked["workload"].pop("microbatch")
    (line,) = [line for line in advice(asked) if "rebalance" in line]
    assert line.endswith("(with strategy.weight_by_shard: true)")
    assert float(line.split("x")[0]) > 1.5


def test_nothing_is_tried_where_nobody_is_slow_or_everybody_is():
    assert tried(raw([])) == []
    assert tried(raw([{"kind": "lognormal", "sigma": 0.1}])) == []
    alone = {**FAST, "world_size": 4}
    assert tried(raw([{"kind": "slow_rank", "rank": 1, "factor": 2}], alone)) == []


@pytest.mark.slow
def test_the_shipped_scenario_says_from_which_factor_on_a_node_is_better_left_out():
    scenario = simdp.load_scenario(Path(__file__).parents[2] / "scenarios" / "one_slow_node.yaml")
    points = {chosen["cluster.stragglers.0.factor"]: one for chosen, one in scenario.points()}

    def rate(one, **cluster):
        cluster = one.cluster.model_copy(update=cluster) if cluster else one.cluster
        found = simdp.simulate(one.model_copy(update={"cluster": cluster}))
        return round(found.metrics["throughput_samples_per_s"])

    assert rate(points[1.0], world_size=56, stragglers=[]) == 7_171
    assert [rate(points[factor]) for factor in (1.0, 1.14, 1.2, 2.0)] == [
        8_164,
        7_187,
        6_837,
        4_143,
    ]
