"""When DDP's work happens: buckets behind backward, in order, on one communication stream."""

from pathlib import Path

import closed_forms
import numpy as np
import pytest

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked

pytestmark = pytest.mark.slow

ALPHA, BANDWIDTH = 2e-6, 10e9
DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "3 us",
}
WIDTHS = [256, 512, 512, 512, 10]


def simulate(world_size=4, steps=3, strategy=None, workload=None, cluster=None, **more):
    raw = {
        "cluster": {
            "world_size": world_size,
            "device": DEVICE,
            "topology": "ring",
            "link": {"alpha": "2 us", "bandwidth": "10 GB/s"},
            **(cluster or {}),
        },
        "workload": {
            "model": {"kind": "mlp", "widths": WIDTHS},
            "dataset": {"kind": "regression", "num_samples": 4096},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "microbatch": 64,
            "steps": steps,
            **(workload or {}),
        },
        "strategy": {"kind": "ddp", "bucket_cap": "600 kB", **(strategy or {})},
        "numerics": False,
        **more,
    }
    return simdp.simulate(checked(raw, Path()))


def spans(result, rank=0, step=1, **wanted):
    return [
        span
        for span in result.trace.spans
        if span.rank == rank
        and span.step == step
        and all(getattr(span, key) == value for key, value in wanted.items())
    ]


def test_each_bucket_goes_when_it_is_ready_and_its_forerunner_is_done():
    result = simulate()
    nbytes = result.metrics["bucket_bytes"]
    assert len(nbytes) >= 3
    layer_of_bucket = ["layers.2", "layers.1", "layers.0"]
    backward = {span.name: span for span in spans(result, activity="backward")}
    comm = spans(result, activity="comm")
    done = 0.0
    for size, layer, span in zip(nbytes, layer_of_bucket, comm, strict=True):
        start = max(backward[layer].end, done)
        done = start + closed_forms.ring_all_reduce_time(size, 4, ALPHA, 1 / BANDWIDTH)
        assert span.start == pytest.approx(start, rel=1e-12)
        assert span.end == pytest.approx(done, rel=1e-12)
    (update,) = spans(result, activity="update")
    assert update.start == pytest.approx(max(done, backward["layers.0"].end), rel=1e-12)
    assert comm[0].start < backward["layers.0"].end  # it does overlap


def test_the_step_time_is_the_first_in_first_out_closed_form():
    result = simulate()
    ends = [max(span.end for span in spans(result, step=step)) for step in range(3)]
    assert result.metrics["step_time_s"] == pytest.approx((ends[2] - ends[0]) / 2, rel=1e-12)
    m = result.metrics
    parts = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
    assert sum(m[part] for part in parts) == pytest.approx(m["step_time_s"], rel=1e-12)


def test_without_overlap_nothing_is_sent_before_backward_is_done():
    result = simulate(strategy={"overlap": False})
    backward_end = max(span.end for span in spans(result, activity="backward"))
    comm = spans(result, activity="comm")
    assert comm[0].start == pytest.approx(backward_end, rel=1e-12)
    total = sum(
        closed_forms.ring_all_reduce_time(size, 4, ALPHA, 1 / BANDWIDTH)
        for size in result.metrics["bucket_bytes"]
    )
    assert result.metrics["exposed_comm_s"] == pytest.approx(total, rel=1e-12)
    assert result.metrics["comm_s"] == pytest.approx(total, rel=1e-12)
    assert simulate().metrics["step_time_s"] < result.metrics["step_time_s"]


def test_the_first_iteration_has_one_bucket_with_everything():
    result = simulate()
    assert len(spans(result, step=0, activity="comm")) == 1
    assert len(spans(result, step=1, activity="comm")) == len(result.metrics["bucket_bytes"])


def test_older_torch_sorts_buckets_in_reverse_registration_from_the_start():
    result = simulate(strategy={"bucket_order": "reverse_registration"})
    num_buckets = len(result.metrics["bucket_bytes"])
    assert len(spans(result, step=0, activity="comm")) == num_buckets > 1


def test_find_unused_parameters_reduces_a_map_of_them_after_the_last_bucket():
    result = simulate(strategy={"find_unused_parameters": True})
    comm = spans(result, activity="comm")
    assert comm[-1].name == "all_reduce used parameters"
    nbytes = 4 * 2 * (len(WIDTHS) - 1)  # an int32 for every weight and bias
    assert comm[-1].nbytes == pytest.approx(2 * 3 / 4 * nbytes)
    assert len(comm) == len(result.metrics["bucket_bytes"]) + 1


def test_copies_into_buckets_and_back_are_charged_when_asked_for():
    free, charged = simulate(), simulate(strategy={"charge_copies": True, "overlap": False})
    assert not spans(free, activity="copy")
    copies = spans(charged, activity="copy")
    weights = sum(charged.metrics["bucket_bytes"])
    assert (
        sum(span.nbytes for span in copies) == 2 * 2 * weights
    )  # read and written, there and back
    assert charged.metrics["other_s"] == pytest.approx(4 * weights / 1e12, rel=1e-9)
    viewed = simulate(strategy={"charge_copies": True, "gradient_as_bucket_view": True})
    assert not spans(viewed, activity="copy")


def test_gradient_as_bucket_view_saves_the_buckets_memory():
    plain = simulate().metrics["memory_bytes"]
    viewed = simulate(strategy={"gradient_as_bucket_view": True}).metrics["memory_bytes"]
    assert plain["buckets"] == plain["gradients"] == plain["parameters"]
    assert viewed["buckets"] == 0


def test_no_sync_reduces_once_per_step():
    once = simulate(workload={"grad_accum": 4})
    every = simulate(workload={"grad_accum": 4}, strategy={"no_sync": False})
    buckets = len(once.metrics["bucket_bytes"])
    assert len(spans(once, activity="comm")) == buckets
    assert len(spans(every, activity="comm")) == 4 * buckets
    sent_once, sent_every = (sum(r.metrics["bytes_sent_per_rank"]) for r in (once, every))
    assert sent_every == 4 * sent_once


def test_every_rank_sends_what_a_ring_must():
    result = simulate(world_size=8)
    expected = 2 * 7 / 8 * sum(result.metrics["bucket_bytes"])
    assert result.metrics["bytes_sent_per_rank"] == pytest.approx([expected] * 8)


def test_layer_times_follow_the_roofline():
    result = simulate(world_size=1)
    forward = {span.name: span.end - span.start for span in spans(result, activity="forward")}
    flops = 2 * 64 * 512 * 512
    nbytes = 4 * (64 * (512 + 512) + 512 * 512 + 512)
    expected = max(flops / 5e12, nbytes / 1e12) + 3e-6
    assert forward["layers.1"] == pytest.approx(expected, rel=1e-9)
    backward = {span.name: span.end - span.start for span in spans(result, activity="backward")}
    # The first layer needs no gradient of its input: two kernels instead of three.
    assert backward["layers.0"] < backward["layers.1"]
    (update,) = spans(result, activity="update")
    assert update.end - update.start == pytest.approx(
        5 * result.metrics["memory_bytes"]["parameters"] / 1e12, rel=1e-9
    )


def test_a_slow_rank_delays_every_rank_in_sync_training():
    fair = simulate(cluster={"link": {"alpha": "0 s", "bandwidth": "1000 GB/s"}})
    slow = simulate(
        cluster={
            "link": {"alpha": "0 s", "bandwidth": "1000 GB/s"},
            "stragglers": [{"kind": "slow_rank", "rank": 2, "factor": 2}],
        }
    )
    own = slow.metrics["step_time_s"] - fair.metrics["step_time_s"]
    assert own == pytest.approx(fair.metrics["compute_s"], rel=1e-3)
    waits = [sum(s.end - s.start for s in spans(slow, rank, activity="wait")) for rank in range(4)]
    assert waits[2] == 0
    assert min(waits[:2] + waits[3:]) > 0


def test_pauses_by_steps_and_by_the_clock_lengthen_the_run():
    base = simulate(steps=5).metrics["simulated_s"]
    by_steps = simulate(
        steps=5,
        cluster={"stragglers": [{"kind": "pause", "rank": 1, "every": 2, "duration": "1 ms"}]},
    ).metrics["simulated_s"]
    assert by_steps == pytest.approx(base + 2e-3, rel=1e-6)  # steps 2 and 4
    by_clock = simulate(
        steps=5,
        cluster={
            "stragglers": [{"kind": "pause", "rank": 1, "every": "1 ms", "duration": "500 us"}]
        },
    ).metrics["simulated_s"]
    assert by_clock > base


def test_mixed_devices_go_at_the_pace_of_the_slowest():
    half = {**DEVICE, "peak": {"float32": "5 TFLOP/s"}, "memory_bandwidth": "500 GB/s"}
    mixed = simulate(cluster={"device": [DEVICE, half, DEVICE, DEVICE]})
    fast, slow = (simulate(cluster={"device": device}) for device in (DEVICE, half))
    assert mixed.metrics["step_time_s"] > fast.metrics["step_time_s"]
    assert mixed.metrics["step_time_s"] == pytest.approx(slow.metrics["step_time_s"], rel=0.05)


def test_a_model_that_does_not_fit_is_reported():
    small = {**DEVICE, "memory": "1 MB"}
    assert simulate(cluster={"device": small}).metrics["fits_memory"] is False
    assert simulate().metrics["fits_memory"] is True


def test_without_an_optimizer_the_update_takes_no_time():
    result = simulate(workload={"optimizer": "none"})
    assert result.metrics["update_s"] == 0


def test_transfers_have_spans_only_while_they_are_few():
    few, many = simulate(world_size=4), simulate(world_size=48)
    assert spans(few, activity="transfer")
    assert not spans(many, activity="transfer")
    assert len(np.unique(many.trace.rank[many.trace.select("comm")])) == 48


def test_the_fabric_is_chosen_by_whether_links_are_shared():
    alone = simulate().network
    assert alone["why"].startswith("no link is shared")
    shared = simulate(cluster={"topology": "switch"}, collectives={"all_reduce": "naive"})
    assert shared.network["fabric"] == "event"
    assert shared.network["why"].startswith("the link from")
    assert shared.network["why"].endswith("is shared")


def test_the_vector_fabric_refuses_what_it_cannot_time_exactly():
    raw = simulate(cluster={"topology": "switch"}).scenario
    raw["collectives"]["all_reduce"] = "tree"
    with pytest.raises(ScenarioError, match=r"fabric 'vector' is not exact here: the link from"):
        simdp.simulate(checked(raw, Path()), fabric="vector")
