"""What spans consist of: kernels that add up to the clock's charge, and how what is sent is."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from small_scenario import CLUSTER

from simdp.engine.outcome import launched
from simdp.results.memory import WHOLE, CollectiveTraffic, kernels_of
from simdp.scenario import checked


def facts(cluster=None, strategy="ddp", collectives=None, **workload):
    scenario = {
        "cluster": {**CLUSTER, **(cluster or {})},
        "workload": {"model": {"kind": "mlp", "widths": [8, 64, 4]}, "microbatch": 4, **workload},
        "strategy": strategy,
        "collectives": {"cost": "links", **(collectives or {})},
        "numerics": False,
    }
    return launched(checked(scenario, Path()))


def test_kernels_are_parts_of_their_work():
    found = kernels_of(np.array([1.0, 0.0]), np.array([2.0, 1.0]))
    assert found.edges == (0.25, 0.75, 0.75, 1.0)
    assert found.has_idle
    assert not kernels_of(np.zeros(1), np.ones(1)).has_idle


def test_no_time_at_all_is_one_kernel():
    assert kernels_of(np.zeros(0), np.zeros(0)) == WHOLE


def test_a_layer_has_the_kernels_that_torch_launches():
    found = facts()
    forward = found.of(0, "forward", "layers.0")
    backward = found.of(0, "backward", "layers.1")
    assert len(forward.edges) == 2
    assert len(backward.edges) == 6  # of the input, the weight and the bias
    assert forward.edges[0] == pytest.approx(1.0, abs=0.1)  # tiny: nearly all is the launch


def test_ranks_with_other_devices_and_batches_have_kernels_of_their_own():
    found = facts({"device": ["a100-sxm4-80gb"] * 3 + ["v100-sxm2-32gb"]}, microbatch=4096)
    one, other = (found.of(rank, "forward", "layers.0") for rank in (0, 3))
    assert one != other
    assert found.of(1, "forward", "layers.0") == one
    assert found.memory.tolist() == [79.15 * 2**30] * 3 + [31.74 * 2**30]


def test_measured_steps_know_no_kernels():
    points = [{"microbatch": 4, "step_time": "10 ms"}]
    found = facts(compute={"kind": "measured", "points": points})
    assert found.of(0, "forward", "layers.0") == WHOLE


def test_a_profiled_layer_is_a_kernel_that_waits_for_its_host(tmp_path):
    path = tmp_path / "profile.csv"
    head = "name,forward_us,backward_us,gradient_bytes,forward_host_us,backward_host_us"
    path.write_text(f"{head}\none,10,30,8,40,20\n")
    found = facts(model={"kind": "profile", "path": str(path)})
    assert found.of(0, "forward", "one").edges == (0.75, 1.0)
    assert not found.of(0, "backward", "one").has_idle


def test_an_optimizer_launches_a_kernel_for_each_tensor_unless_it_is_fused():
    plain = facts(optimizer={"kind": "adamw", "foreach": False}).of(0, "update", "optimizer")
    fused = facts(optimizer={"kind": "adamw", "fused": True}).of(0, "update", "optimizer")
    assert len(plain.edges) > len(fused.edges)


@for_each(
    ("strategy", "collectives", "name", "sent"),
    [
        ("ddp", {}, "all_reduce bucket 0", CollectiveTraffic("ring", "simple", "", "float32")),
        (
            "ddp",
            {"all_reduce": "tree"},
            "all_reduce bucket 0",
            CollectiveTraffic("tree", "simple", "", "float32"),
        ),
        (
            "ddp",
            {"cost": "nccl"},
            "all_reduce bucket 0",
            CollectiveTraffic("ring", "ll", "", "float32"),
        ),
        (
            {"kind": "ddp", "comm_hook": "fp16"},
            {},
            "all_reduce bucket 0",
            CollectiveTraffic("ring", "simple", "", "float16"),
        ),
        (
            {"kind": "hsdp", "shard_size": 2},
            {},
            "reduce_scatter",
            CollectiveTraffic("ring", "simple", "shard", "f"),
        ),
    ],
)
def test_it_is_known_how_a_collective_is_carried_out(strategy, collectives, name, sent):
    found = facts(None, strategy, collectives)
    mine = {value for (said, _), value in found.sent.items() if said.startswith(name)}
    if sent.dtype == "f":
        mine = {one._replace(dtype="f") for one in mine}
    assert mine == {sent}


def test_groups_of_a_strategy_are_listed():
    found = facts(None, {"kind": "hsdp", "shard_size": 2})
    assert found.groups["shard"].tolist() == [[0, 1], [2, 3]]
    assert found.groups["replicate"].tolist() == [[0, 2], [1, 3]]


def test_a_parameter_servers_workers_have_kernels_and_no_collectives():
    found = facts(None, "parameter_server")
    assert len(found.of(0, "forward", "layers.0").edges) == 2
    assert not found.sent
