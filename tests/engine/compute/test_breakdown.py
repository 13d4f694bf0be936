"""Breakdown of compute: parts add up to compute_s, and each is what its kernels take."""

import pytest
from for_each import for_each

import simdp
from simdp.engine.compute.call_times import compute_parts
from simdp.engine.outcome import peak_flops
from simdp.scenario import checked

DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "80 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "2 us",
}
MLP = {"kind": "mlp", "widths": [2048, 2048, 2048], "activation": "relu"}
BLOCKS = {
    "kind": "gpt2",
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 4,
    "vocab_size": 128,
    "n_positions": 32,
    "sequence_length": 32,
}


def played(tmp_path, n=2, **workload):
    given = {"model": MLP, "microbatch": 4096, "steps": 3, "optimizer": "sgd", **workload}
    stragglers = given.pop("stragglers", [])
    link = {"alpha": "1 us", "bandwidth": "100 GB/s"}
    cluster = {"world_size": n, "device": DEVICE, "link": link, "stragglers": stragglers}
    raw = {"cluster": cluster, "workload": given, "strategy": "ddp", "numerics": False}
    scenario = checked(raw, tmp_path)
    result = simdp.sweep(scenario).points[0]
    return result, {one["part"]: one for one in result.compute_parts}


@for_each(
    "workload",
    [
        {},
        {"model": BLOCKS, "microbatch": 8},
        {"model": BLOCKS, "microbatch": 8, "recompute": "blocks"},
        {"model": BLOCKS, "microbatch": 8, "grad_accum": 2},
        {"mode": "inference", "optimizer": "none"},
        {"compute": {"kind": "roofline", "kernels": "torch"}, "grad_accum": 3},
        {"cuda_graphs": True, "grad_accum": 2},
    ],
)
def test_parts_add_up_to_the_compute_of_a_step(tmp_path, workload):
    result, parts = played(tmp_path, **workload)
    total = sum(one["seconds"] for one in parts.values())
    assert total == pytest.approx(result.metrics["compute_s"], rel=1e-9)
    assert "slowed" not in parts
    assert ("recompute" in parts) is (workload.get("recompute") == "blocks")
    assert ("attention" in parts) is (workload.get("model") == BLOCKS)


def test_products_reach_the_efficiency_of_the_device_and_launches_are_counted(tmp_path):
    """Two linear layers: two products forward, two of weights and one of an input backward."""
    result, parts = played(tmp_path)
    assert parts["matrix_products"]["of_peak"] == pytest.approx(0.5)
    flops = 2 * 4096 * 2048 * 2048 * 5  # forward twice, of weights twice, of one input
    assert parts["matrix_products"]["seconds"] == pytest.approx(flops / 5e12)
    m = result.metrics
    share = parts["matrix_products"]["seconds"] / m["step_time_s"] * 0.5
    # The MFU counts a gradient of the first layer's input, as all publications do: 6 for 5.
    assert m["mfu"] == pytest.approx(share * 6 / 5)
    launches = parts["launches"]["seconds"] / 2e-6
    assert launches == pytest.approx(round(launches))
    assert launches >= 8


def test_a_straggler_shows_as_what_it_adds_to_compute(tmp_path):
    _, plain = played(tmp_path, n=4)
    straggler = {"kind": "slow_rank", "rank": 1, "factor": 1.4}
    _, slow = played(tmp_path, n=4, stragglers=[straggler])
    total = sum(one["seconds"] for one in plain.values())
    assert slow["slowed"]["seconds"] == pytest.approx(0.4 / 4 * total)
    both = (slow["matrix_products"], plain["matrix_products"])
    assert both[0]["seconds"] == pytest.approx(both[1]["seconds"], rel=1e-12)
    assert both[0]["of_peak"] == pytest.approx(both[1]["of_peak"], rel=1e-12)


def test_where_layers_have_no_kernels_there_is_no_breakdown(tmp_path):
    compute = {"kind": "measured", "points": [{"microbatch": 4096, "step_time": "10 ms"}]}
    result, parts = played(tmp_path, compute=compute)
    assert parts == {}
    assert "compute_parts" not in result._alone().to_json()
    scenario = checked(
        {
            "cluster": {"world_size": 2, "device": DEVICE, "link": "nvlink3"},
            "workload": {"model": MLP, "global_batch": 64, "steps": 2},
            "strategy": "data_parallel",
            "numerics": False,
        },
        tmp_path,
    )
    assert compute_parts(scenario, 1.0, peak_flops(scenario)) == []


def test_the_parts_of_a_saved_result_are_read_again(tmp_path):
    result, _ = played(tmp_path)
    result._alone().save(tmp_path / "result.json")
    loaded = simdp.results.result.Study.load(tmp_path / "result.json").points[0]
    assert loaded.compute_parts == result.compute_parts
