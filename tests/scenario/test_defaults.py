"""Defaults of several parts together: who times collectives, and how long times alone run."""

import copy
from pathlib import Path

import numpy as np
import pytest
import yaml

import simdp
from simdp.cluster.hardware import read_machine
from simdp.distributed.launch import find
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.scenario.defaults import FEW_STEPS, SOME_STEPS
from simdp.scenario.overrides import override_all
from simdp.scenario.remarks import remarks
from simdp.studies.collective import load_cost

NODES = {
    "cluster": {
        "world_size": 8,
        "devices_per_node": 4,
        "device": "h100-sxm5-80gb",
        "link": "nvlink4",
        "inter_node": {"link": "ib-ndr", "links_per_node": 4},
    },
    "workload": {
        "model": {"kind": "mlp", "widths": [64, 64, 8]},
        "dataset": {"kind": "regression", "num_samples": 6400},
        "microbatch": 4,
    },
    "numerics": False,
}


def made(tmp_path, **settings):
    return checked(override_all(copy.deepcopy(NODES), settings, tmp_path), tmp_path)


OURS = {"peak": {"float32": "1 TFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 GB/s"}

AWS = {"cluster": {"machine": "aws-p4d", "world_size": 8}}


def test_nccl_times_devices_of_the_catalogue_unless_the_file_says_how():
    cases = [
        ({}, "nccl", None),
        ({"cluster.inter_node.links_per_node": 1}, "nccl", None),
        ({"cluster.device": OURS}, "links", None),
        ({"cluster.device": ["h100-sxm5-80gb"] * 8}, "nccl", None),
        ({"cluster.device": ["h100-sxm5-80gb"] * 7 + [OURS]}, "links", None),
        ({"cluster.device": "mi300x-192gb"}, "nccl", None),
        ({"cluster.world_size": 4}, "nccl", None),
        ({"collectives.all_reduce": "ring"}, "nccl", ("all_reduce",)),
        ({"collectives.all_reduce": "ring", "cluster.device": OURS}, "links", None),
        ({"collectives.cost": "links"}, "links", None),
        ({"collectives": {"all_reduce": "ring", "cost": "nccl"}}, "nccl", None),
        ({"sweep": {"collectives.all_reduce": ["ring", "tree"]}}, "nccl", ("all_reduce",)),
        ({"sweep": {"collectives.cost": ["links", "nccl"]}}, "links", None),
        (AWS, "nccl", None),
        (AWS | {"collectives.all_reduce": "ring"}, "nccl", ("all_reduce",)),
        (AWS | {"sweep": {"collectives.all_reduce": ["ring", "tree"]}}, "nccl", ("all_reduce",)),
        (AWS | {"collectives": {"all_reduce": "ring", "cost": "nccl"}}, "nccl", None),
    ]
    for settings, kind, over_links in cases:
        scenario = made(Path(), **settings)
        again = checked(scenario.resolved(), Path())
        points = [] if "collectives.cost" in scenario.sweep else [p for _, p in scenario.points()]
        for one in (scenario, again, *points):
            found = one.collectives
            assert (found.cost.kind, found.over_links) == (kind, over_links), settings


def test_every_way_to_write_twelve_nodes_of_four_l40s_gives_one_answer():
    cluster = {
        "world_size": 48,
        "devices_per_node": 4,
        "device": "l40s-48gb",
        "link": "pcie4-x16",
        "inter_node": {"link": "roce-100g"},
    }
    figures = {"alpha": "14 us", "transport": "rdma"}
    ways = [
        {},
        {"cluster.inter_node.links_per_node": 1},
        {"cluster.inter_node": {"links_per_node": 2, "link": figures | {"bandwidth": "50 Gbit/s"}}},
        {"cluster.inter_node.link": figures | {"bandwidth": "12.5 GB/s"}},
        {"cluster.inter_node.topology": "fat_tree"},
        {"cluster.device": ["l40s-48gb"] * 48},
        {"collectives.cost": "nccl"},
        {"collectives": {"broadcast": "tree", "cost": "nccl"}},
    ]
    work = {"workload.model": "bert-large", "workload.dataset": {"kind": "tokens"}}
    work["workload.dataset"]["num_samples"] = 6400
    found = []
    for way in ways:
        scenario = made(Path(), cluster=cluster, **work, **way)
        found.append(simdp.simulate(scenario).metrics["step_time_s"])
    assert found == pytest.approx([found[0]] * len(ways), rel=1e-12)
    ring = made(Path(), cluster=cluster, **work, **{"collectives.all_reduce": "ring"})
    assert ring.collectives.cost_of("broadcast").kind == "nccl"
    assert simdp.simulate(ring).metrics["step_time_s"] != pytest.approx(found[0], rel=0.01)


def test_a_named_algorithm_is_simulated_and_the_others_are_nccls():
    times = {}
    for name in ("nccl", "links"):
        scenario = made(Path(), strategy="fsdp", collectives={"cost": name})
        times[name] = simdp.simulate(scenario).metrics["comm_s"]
    one = made(Path(), strategy="fsdp", collectives={"all_gather": "ring"})
    assert times["nccl"] != times["links"]
    both = simdp.simulate(one)
    assert min(times.values()) < both.metrics["comm_s"] < max(times.values())
    assert remarks(one)["collectives"].startswith(
        "simulated over the links (all_gather: ring); others: NCCL's own model, with what "
    )


def test_what_nccls_model_does_not_know_is_simulated_and_the_summary_gives_the_reason():
    job = {"world_size": 8, "workload": NODES["workload"]}
    between = {"link": "ib-ndr", "topology": "dragonfly"}
    narrow = {"link": "ib-ndr", "topology": {"kind": "fat_tree", "oversubscription": 2}}
    cases = [
        ({"neighbours": [job]}, "other jobs share the network"),
        ({"cluster.inter_node": between}, "nodes share links of the dragonfly"),
        ({"cluster.inter_node": narrow}, "nodes share links of the fat_tree (oversubscription)"),
        ({"cluster.ranks_per_device": 2}, "ranks share a device, which NCCL refuses"),
    ]
    for settings, reason in cases:
        scenario = made(Path(), **settings)
        said = remarks(scenario)["collectives"]
        assert scenario.collectives.cost.kind == "links", settings
        assert said.startswith("simulated over the links (")
        assert said.endswith(f"; NCCL's own model is not the default here: {reason}")
        assert simdp.simulate(scenario).metrics["comm_s"] > 0
    server = made(Path(), strategy="parameter_server")
    assert server.collectives.cost.kind == "links"


def test_every_point_of_a_sweep_is_timed_alike(tmp_path):
    for cards in (1, 4):
        sweep = {"cluster.inter_node.links_per_node": [1, 2, 4]}
        swept = made(tmp_path, **{"cluster.inter_node.links_per_node": cards, "sweep": sweep})
        kinds = {point.collectives.cost.kind for _, point in swept.points()}
        assert kinds == {swept.collectives.cost.kind}


def test_the_default_changes_times_and_no_number(tmp_path):
    small = {"workload.dataset.num_samples": 96, "numerics": True}
    ring = simdp.simulate(made(tmp_path, **small, **{"collectives.cost": "links"}))
    nccl = simdp.simulate(made(tmp_path, **small))
    assert nccl.metrics["loss_per_rank"] == ring.metrics["loss_per_rank"]
    assert nccl.metrics["comm_s"] != ring.metrics["comm_s"]
    for one, other in zip(ring.replicas, nccl.replicas, strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_times_alone_take_a_few_steps_where_an_epoch_is_more_of_the_same(tmp_path):
    slow = {"kind": "slow_rank", "rank": 0, "factor": 2}
    pause = {"kind": "pause", "rank": 0, "every": 3, "duration": "1 ms"}
    cases = [
        ({}, FEW_STEPS),
        ({"numerics": True}, 200),
        ({"workload.steps": 5}, 5),
        ({"workload.epochs": 1}, 200),
        ({"workload.dataset.num_samples": 40}, 2),
        ({"cluster.stragglers": [{"kind": "lognormal", "sigma": 0.1}]}, SOME_STEPS),
        ({"cluster.stragglers": [slow]}, FEW_STEPS),
        ({"cluster.stragglers": [pause]}, 200),
        ({"strategy": "local_sgd"}, 200),
        ({"strategy": {"kind": "ddp", "comm_hook": "power_sgd"}}, 200),
        ({"sweep": {"workload.epochs": [1, 2]}}, 200),
    ]
    for settings, steps in cases:
        scenario = made(tmp_path, **settings)
        assert scenario.workload.num_steps(8, tmp_path) == steps, settings
        assert scenario.points()  # with what was filled in, and what the points set


def test_a_short_run_of_times_alone_takes_as_long_a_step_as_an_epoch(tmp_path):
    short = simdp.simulate(made(tmp_path)).metrics
    whole = simdp.simulate(made(tmp_path, **{"workload.epochs": 1})).metrics
    assert short["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-9)


def test_times_alone_need_no_data_set(tmp_path):
    gpt2 = {"kind": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 2, "sequence_length": 32}
    for model, data in (
        ({"kind": "mlp", "widths": [64, 64, 8]}, "regression"),
        ({"kind": "resnet18", "num_classes": 10, "image_size": 32}, "images"),
        (gpt2, "tokens"),
    ):
        raw = copy.deepcopy(NODES)
        raw["workload"] |= {"model": model, "dataset": {"kind": data, "num_samples": 640}}
        known = simdp.simulate(checked(copy.deepcopy(raw), tmp_path)).metrics
        del raw["workload"]["dataset"]
        found = simdp.simulate(checked(raw, tmp_path)).metrics
        for name in ("step_time_s", "comm_s", "tokens_per_s", "mfu", "peak_memory_bytes"):
            if known[name] is None:
                assert found[name] is None
            else:
                assert found[name] == pytest.approx(known[name], rel=0.01), (model, name)


def test_numbers_need_one(tmp_path):
    raw = copy.deepcopy(NODES)
    del raw["workload"]["dataset"]
    del raw["numerics"]
    with pytest.raises(ScenarioError, match=r"workload.dataset: is required .* numerics: false"):
        checked(raw, tmp_path)
    raw["workload"]["dataset"] = "none"
    assert not checked(copy.deepcopy(raw), tmp_path).numerics
    raw["numerics"] = True
    with pytest.raises(ScenarioError, match="there is no data set to learn from; add a dataset"):
        checked(raw, tmp_path)


# A network in place of a machine's ----------------------------------------------------------------

EIGHTH = {"kind": "fat_tree", "ports_per_leaf": 32, "oversubscription": 8}

DGX = {
    "cluster": {"machine": "dgx-h100", "world_size": 64},
    "workload": {"model": {"kind": "parameters", "num_params": 2**28}, "microbatch": 8, "steps": 2},
    "numerics": False,
}


def dgx(topology, way="file", collectives=None):
    """64 GPUs with another network between nodes, which comes in one of three ways."""
    raw = {**copy.deepcopy(DGX), **({"collectives": collectives} if collectives else {})}
    if way == "file":
        raw["cluster"]["inter_node"] = {"topology": topology}
    if way == "sweep":
        raw["sweep"] = {"cluster.inter_node.topology": [topology]}
    settings = {"cluster.inter_node.topology": topology} if way == "set" else {}
    made = checked(override_all(raw, settings, Path()), Path())
    return made.points()[0][1] if way == "sweep" else made


def most_loaded(cluster):
    """Time of a byte that every rank sends to its like on the next node, on the busiest link."""
    ranks = np.arange(cluster.world_size)
    routes = cluster.routes(ranks, (ranks + cluster.local_size) % cluster.world_size)
    links, flows = np.unique(routes[routes >= 0], return_counts=True)
    return float((flows / cluster.link_figures(links)[1]).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["file", *(pytest.param(way, marks=pytest.mark.long) for way in ("set", "sweep"))]
)
def test_an_oversubscribed_tree_over_a_machine_is_slower_by_what_its_links_say(way):
    """Hierarchical: an eighth of the buffer of each rank passes 7/8 of the nodes twice."""
    tree = dgx(EIGHTH, way)
    switch = dgx("switch", collectives={"cost": "links", "all_reduce": "hierarchical"})
    assert (tree.collectives.cost.kind, tree.collectives.all_reduce.kind) == (
        "links",
        "hierarchical",
    )
    more = most_loaded(tree.cluster) / most_loaded(switch.cluster)
    assert more == pytest.approx(2)  # eight rings over the four links of a leaf
    times = [simdp.simulate(one).metrics["comm_s"] for one in (tree, switch)]
    across = 2 * 7 / 8 * 2**30 / 8 * most_loaded(switch.cluster)
    assert times[0] - times[1] == pytest.approx((more - 1) * across, rel=0.05)


def test_a_machines_own_network_and_an_own_cost_stay_as_they_are():
    machines = read_machine("dgx-h100", Path()).collectives["cost"]
    assert dgx("switch").collectives.cost.kind == "nccl"
    for collectives in ({"over_links": []}, {"cost": {**machines, "launch": "9 us"}}):
        assert dgx(EIGHTH, collectives=collectives).collectives.cost.kind == "nccl"
    raw = copy.deepcopy(DGX)
    raw["cluster"] |= {"world_size": 8, "inter_node": {"topology": EIGHTH}}
    assert checked(raw, Path()).collectives.cost.kind == "nccl"  # on one node


def test_every_point_of_a_sweep_of_networks_over_a_machine_is_simulated():
    raw = copy.deepcopy(DGX) | {"sweep": {"cluster.inter_node.topology": ["switch", EIGHTH]}}
    raw["sweep"]["cluster.world_size"] = [8, 64]
    points = [point for _, point in checked(raw, Path()).points()]
    assert {point.collectives.cost.kind for point in points} == {"links"}
    assert {point.collectives.all_reduce.kind for point in points} == {"hierarchical"}


def test_algorithms_of_the_scenario_stay_over_a_machine():
    made = dgx(EIGHTH, collectives={"all_reduce": "tree"}).collectives
    assert (made.cost.kind, made.all_reduce.kind, made.broadcast.kind) == (
        "links",
        "tree",
        "hierarchical",
    )


def test_collectives_and_programs_on_such_a_cluster_are_simulated_too(tmp_path):
    file = tmp_path / "x.yaml"
    for topology, kind in ((EIGHTH, "links"), ("switch", "nccl")):
        cluster = DGX["cluster"] | {"inter_node": {"topology": topology}}
        file.write_text(yaml.safe_dump({"cluster": cluster}))
        assert load_cost(file).kind == find(file).collectives.cost.kind == kind


def test_jobs_that_share_a_machines_network_are_simulated():
    job = {"world_size": 8, "workload": copy.deepcopy(DGX["workload"])}
    raw = copy.deepcopy(DGX) | {"neighbours": [job]}
    priced = {"machine": "dgx-h100", "world_size": 16, "price": "2 USD/h"}
    made = checked(raw | {"cluster": priced}, Path())
    assert made.collectives.cost.kind == "links"
