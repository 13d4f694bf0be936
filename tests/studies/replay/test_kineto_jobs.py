"""Traces as torch's profiler writes them become steps that take as long."""

import pytest

from simdp.studies.replay.remedies import remedies
from simdp.studies.replay.scenario import replay_of
from simdp.studies.replay.timeline import BACKWARD, FORWARD
from simdp.traces import read_trace
from tests.for_each import for_each
from tests.studies.replay.kineto_job import LAYERS, NBYTES, Job


def trace_of(tmp_path, rank=0, **figures):
    return read_trace(Job(**figures).write(tmp_path / f"rank{rank}.json", rank))


def rows_of(found):
    lines = [line for line in found.profile.splitlines() if not line.startswith("#")]
    head = lines[0].split(",")
    return [dict(zip(head, line.split(","), strict=True)) for line in lines[1:]]


@for_each(
    "figures",
    [
        {},  # the host is late
        {"every": 10.0, "busy": 100.0},  # the device is
        {"every": 10.0, "busy": 100.0, "transfer": 3000.0},  # the network is
        {"lead": 400.0},
        {"loading": 900.0},
    ],
)
def test_the_step_takes_as_long(tmp_path, figures):
    found = replay_of([trace_of(tmp_path, **figures)])
    assert found.num_ranks == 2
    again = found.simulate().metrics["step_time_s"]
    assert again == pytest.approx(found.step_time_s, rel=0.01)


def test_buckets_tensors_and_the_optimizer_are_found(tmp_path):
    found = replay_of([trace_of(tmp_path)])
    assert found.nbytes == NBYTES
    assert found.simulate().metrics["bucket_bytes"] == [NBYTES * 2 // 3, NBYTES // 3]
    rows = rows_of(found)
    assert sum(float(row["gradient_bytes"]) > 0 for row in rows) == LAYERS
    assert found.scenario["workload"]["optimizer"]["kind"] == "adamw"
    assert found.scenario["cluster"]["device"] == "a100-sxm4-80gb"
    assert sum(float(row["forward_us"]) for row in rows) == pytest.approx(LAYERS * 20)
    assert sum(float(row["backward_us"]) for row in rows) == pytest.approx(2 * LAYERS * 20)
    assert {row["products"] for row in rows if float(row["backward_us"])} == {"1"}


@for_each("name", ["nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNN", "triton_tem_fused_mm_0"])
def test_products_of_hopper_and_of_triton_are_products(tmp_path, name):
    """On another device, their time follows its rate of products."""
    rows = rows_of(replay_of([trace_of(tmp_path, product=name)]))
    assert {row["products"] for row in rows if float(row["backward_us"])} == {"1"}


def test_a_host_that_is_late_is_told_from_the_device(tmp_path):
    """With a CUDA graph each layer takes what its kernels do."""
    trace = trace_of(tmp_path)
    found = replay_of([trace])
    graphs = found.simulate({"workload.cuda_graphs": True}).metrics["compute_s"]
    assert graphs == pytest.approx(3 * LAYERS * 20e-6, rel=1e-6)
    (best, *_) = remedies([trace], "launch_bound")
    assert "CUDA graphs" in best.change
    assert best.step_time_s < 0.5 * found.step_time_s


def test_a_larger_micro_batch_leaves_the_host_as_it_is(tmp_path):
    found = replay_of([trace_of(tmp_path)], microbatch=8)
    twice = found.simulate({"workload.microbatch": 16}).metrics["step_time_s"]
    assert twice == pytest.approx(found.step_time_s, rel=0.02)
    busy = replay_of([trace_of(tmp_path, every=10.0, busy=100.0)], microbatch=8)
    twice = busy.simulate({"workload.microbatch": 16}).metrics["step_time_s"]
    assert twice == pytest.approx(2 * busy.step_time_s, rel=0.1)


def test_a_device_twice_as_fast_does_not_hurry_the_host(tmp_path):
    host = replay_of([trace_of(tmp_path)])
    device = replay_of([trace_of(tmp_path, every=10.0, busy=100.0)])
    for found, least, most in ((host, 0.97, 1.03), (device, 1.5, 4.0)):
        metrics = found.simulate({"cluster.device": "h100-sxm5-80gb"}).metrics
        assert least < found.step_time_s / metrics["step_time_s"] < most


def test_loaders_are_a_remedy_of_stalls(tmp_path):
    trace = trace_of(tmp_path, loading=3000.0)
    found = replay_of([trace])
    assert found.scenario["workload"]["input"]["workers"] == 1
    assert any("how many workers" in line for line in found.remarks)
    (best,) = remedies([trace], "input_stall")
    assert "workers" in best.change
    assert best.step_time_s < 0.75 * found.step_time_s


def test_a_rank_that_takes_longer_is_a_straggler(tmp_path):
    """Its step is that of all, since they wait for it."""
    fast, slow = Job(every=10.0, busy=100.0), Job(every=10.0, busy=150.0)
    paths = [fast.write(tmp_path / "rank0.json", 0), slow.write(tmp_path / "rank1.json", 1)]
    found = replay_of([read_trace(path) for path in paths])
    (straggler,) = found.scenario["cluster"]["stragglers"]
    assert straggler["kind"] == "slow_rank"
    assert straggler["rank"] == 1
    assert straggler["factor"] == pytest.approx(1.5, rel=0.05)


def test_a_job_of_one_rank_says_what_it_cannot_know(tmp_path):
    trace = trace_of(tmp_path, size=1)
    found = replay_of([trace])
    assert found.num_ranks == 1
    assert any("no transfer tells of the network" in line for line in found.remarks)
    eight = found.simulate({"cluster.world_size": 8, "cluster.machine": "dgx-a100"}).metrics
    assert eight["bucket_bytes"] == [NBYTES * 2 // 3, NBYTES // 3]


def test_where_ranks_meet_within_a_step_the_slowest_of_each_phase_counts(tmp_path):
    """One rank's forward is slow, the other's backward; an all_to_all lies between."""
    traces = []
    for rank, slow in enumerate((FORWARD, BACKWARD)):
        job = Job(every=10.0, busy=100.0, slow=slow, meets=True)
        traces.append(read_trace(job.write(tmp_path / f"rank{rank}.json", rank)))
    found = replay_of(traces)
    assert any("rank 0 in forward, 1 in backward" in line for line in found.remarks)
    assert "stragglers" not in found.scenario["cluster"]
    again = found.simulate().metrics["compute_s"]
    assert again == pytest.approx(LAYERS * (1.5 + 2 * 1.5) * 100e-6, rel=0.05)
