"""Defaults of several parts together: who times collectives, and how long times alone run."""

import copy

import pytest

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.scenario.defaults import FEW_STEPS, SOME_STEPS
from simdp.scenario.overrides import override_all

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


def test_several_cards_of_a_node_are_timed_as_nccl_uses_them_unless_the_file_says_how(tmp_path):
    ours = {"peak": {"float32": "1 TFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 GB/s"}
    cases = [
        ({}, "nccl"),
        ({"cluster.inter_node.links_per_node": 1}, "links"),
        ({"cluster.device": ours}, "links"),
        ({"cluster.device": ["h100-sxm5-80gb"] * 8}, "nccl"),
        ({"cluster.device": ["h100-sxm5-80gb"] * 7 + [ours]}, "links"),
        ({"collectives.all_reduce": "ring"}, "links"),
        ({"collectives.cost": "links"}, "links"),
        ({"cluster.world_size": 4}, "nccl"),
        ({"sweep": {"collectives.all_reduce": ["ring", "tree"]}}, "links"),
        ({"cluster": {"machine": "aws-p4d", "world_size": 8}}, "nccl"),
    ]
    for settings, kind in cases:
        assert made(tmp_path, **settings).collectives.cost.kind == kind, settings


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
