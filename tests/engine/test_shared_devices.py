"""Ranks that share a device: its time in slices, its memory in sum, everything else as before."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked

LAUNCH, FLOPS, BANDWIDTH = 5e-6, 10e12, 1e12
DEVICE = {
    "peak": {"float32": "20 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "5 us",
}
LINK = {"alpha": "5 us", "bandwidth": "10 GB/s"}
MODEL = {"kind": "einsum", "equation": "bd,df->bf", "d": 256, "f": 512}
MICROBATCH = 32
FORWARD = 2 * MICROBATCH * 256 * 512
LAYERS = (
    "name,forward_us,weight_grad_us,input_grad_us,gradient_bytes\n"
    "a,40,30,20,4000\nb,80,60,10,8000\n"
)


def scenario(n, k, workload=(), base=Path(), **cluster):
    raw = {
        "cluster": {"world_size": n, "ranks_per_device": k, "device": DEVICE, "link": LINK}
        | cluster,
        "workload": {
            "model": MODEL,
            "dataset": {"kind": "regression", "num_samples": 4096},
            "microbatch": MICROBATCH,
            "steps": 2,
            **dict(workload),
        },
        "strategy": {"kind": "ddp", "overlap": False},
        "numerics": False,
    }
    return checked(raw, base)


def spans(result, rank, activity, step=1):
    return [
        span.end - span.start
        for span in result.trace.spans
        if (span.rank, span.activity, span.step) == (rank, activity, step)
    ]


@for_each("k", [1, 2, 4, 8])
def test_a_kernel_takes_k_times_as_long_and_its_launch_does_not(k):
    result = simdp.simulate(scenario(8, k))
    nbytes = 4 * (MICROBATCH * 256 + 256 * 512 + MICROBATCH * 512)
    kernel = max(FORWARD / FLOPS, nbytes / BANDWIDTH)
    first = spans(result, 5, "forward")[0]
    assert first == pytest.approx(k * kernel + LAUNCH, rel=1e-9)


def test_updates_and_copies_take_turns_and_hooks_do_not():
    device = {**DEVICE, "launch": "0 us"}  # so that an update takes as long as its bytes
    overheads = {"copies": True, "hook": "7 us"}
    alone, shared = (
        simdp.simulate(scenario(4, k, overheads=overheads, device=device)) for k in (1, 4)
    )
    for activity, factor in (("update", 4), ("copy", 4), ("host", 1)):
        one, four = (np.array(spans(result, 0, activity)) for result in (alone, shared))
        assert one.min() > 0
        np.testing.assert_allclose(four, factor * one, rtol=1e-9)


def test_the_last_device_may_hold_fewer_ranks_which_are_then_faster():
    result = simdp.simulate(scenario(5, 2))
    times = [spans(result, rank, "forward")[0] - LAUNCH for rank in range(5)]
    np.testing.assert_allclose(np.array(times) / times[4], [2, 2, 2, 2, 1], rtol=1e-9)


def test_one_rank_on_a_device_for_eight_has_it_for_itself():
    one, alone = (simdp.simulate(scenario(1, k)).metrics for k in (8, 1))
    assert one == alone


def test_collectives_are_those_of_ranks_that_have_devices_of_their_own():
    alone, shared = (simdp.simulate(scenario(4, k)) for k in (1, 4))
    of = [
        [s.end - s.start for s in r.trace.spans if (s.rank, s.activity, s.step) == (0, "comm", 1)]
        for r in (alone, shared)
    ]
    np.testing.assert_allclose(of[0], of[1], rtol=1e-9)


def measured(step_time="10 ms"):
    return {"kind": "measured", "points": [{"microbatch": MICROBATCH, "step_time": step_time}]}


def test_a_measured_step_is_that_of_a_rank_that_has_its_device_for_itself():
    device = {**DEVICE, "launch": "0 us"}
    work = {"compute": measured(), "optimizer": {"kind": "sgd", "lr": 0.1}}
    for k in (1, 2, 4):
        one = simdp.simulate(scenario(4, k, workload=work, device=device)).metrics
        assert one["compute_s"] + one["update_s"] == pytest.approx(k * 10e-3, rel=1e-9)


def test_launches_within_a_measured_step_go_side_by_side():
    work = {"compute": measured(), "optimizer": "none"}
    alone, shared = (simdp.simulate(scenario(4, k, workload=work)) for k in (1, 4))
    rough = simdp.simulate(scenario(4, 1, workload={"optimizer": "none"}))
    scale = spans(alone, 0, "forward")[0] / spans(rough, 0, "forward")[0]
    wanted = 4 * spans(alone, 0, "forward")[0] - 3 * LAUNCH * scale
    assert spans(shared, 0, "forward")[0] == pytest.approx(wanted, rel=1e-9)


def test_bare_parameters_share_a_device_evenly():
    work = {
        "model": {"kind": "parameters", "num_params": 10_000},
        "compute": measured(),
        "optimizer": "none",
        "dataset": "none",
    }
    one, four = (simdp.simulate(scenario(4, k, workload=work)).metrics for k in (1, 4))
    assert four["compute_s"] == pytest.approx(4 * one["compute_s"], rel=1e-9)


def test_layer_times_of_a_profile_are_those_of_a_rank_alone(tmp_path):
    (tmp_path / "layers.csv").write_text(LAYERS)
    work = {"model": {"kind": "profile", "path": "layers.csv"}, "dataset": "none"}
    for n, k, wanted in ((4, 1, 1), (4, 4, 4), (5, 2, 2)):
        result = simdp.simulate(scenario(n, k, workload=work, base=tmp_path))
        np.testing.assert_allclose(spans(result, 0, "forward"), np.array([40e-6, 80e-6]) * wanted)
        np.testing.assert_allclose(sum(spans(result, 0, "backward")), 100e-6 * wanted, rtol=1e-9)
    assert spans(result, 4, "forward") == pytest.approx([40e-6, 80e-6])


def test_the_ranks_of_a_device_need_its_memory_together():
    peak = simdp.simulate(scenario(4, 1)).metrics["peak_memory_bytes"][0]
    for ranks, fits in ((1, True), (2, True), (3, False)):
        device = {**DEVICE, "memory": f"{2.5 * peak:.0f} B"}
        found = simdp.simulate(scenario(4, ranks, device=device)).metrics
        assert found["fits_memory"] is fits
        assert found["peak_memory_bytes"] == [peak] * 4


def test_ranks_of_a_node_are_its_devices_times_their_ranks():
    two = {"devices_per_node": 2, "inter_node": {"topology": "switch", "link": LINK}}
    cluster = scenario(12, 2, **two).cluster
    assert (cluster.ranks_per_node, cluster.local_size, cluster.num_nodes) == (4, 4, 3)
    assert cluster.sharers().tolist() == [2] * 12


@for_each(
    ("n", "keys", "line"),
    [
        (
            6,
            {"devices_per_node": 2, "inter_node": {"link": LINK}},
            "cluster: world_size 6 is neither one partly used node of 2 devices of 2 ranks each "
            "nor a multiple of devices_per_node x ranks_per_device; use 4 or 8.",
        ),
        (
            4,
            {"device": [DEVICE, DEVICE, DEVICE, "t4-16gb"]},
            "cluster: device: ranks 2 and 3 share a device, but the list gives them different "
            "ones; give both the same.",
        ),
        (
            4,
            {
                "devices_per_node": 2,
                "inter_node": {"link": LINK, "links_per_node": 2, "nics": [0, 1]},
            },
            "cluster: inter_node.nics has 2 entries for 4 ranks of a node; give one each.",
        ),
        (
            4,
            {"ranks_per_device": 0},
            "cluster.ranks_per_device: 0 is out of range; it must be >= 1.",
        ),
    ],
)
def test_ranks_that_cannot_share_are_refused(n, keys, line):
    with pytest.raises(ScenarioError) as caught:
        scenario(n, keys.pop("ranks_per_device", 2), **keys)
    assert caught.value.problems == [line]
