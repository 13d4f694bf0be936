"""Metrics against a second opinion: every instant of every rank is put into one class by hand."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.engine.simulate import simulate
from simdp.results import metrics
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, TraceBuilder
from simdp.scenario import checked

CONTRACT = [
    *("step_time_s", "interval_s", "without_stragglers_s"),
    *("throughput_samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_flops"),
    *("mfu", "hfu", "scaling_efficiency", "utilization"),
    *("compute_s", "update_s", "comm_s", "exposed_comm_s", "wait_s", "other_s", "simulated_s"),
    *("bytes_sent_per_rank", "bucket_bytes", "memory_bytes", "peak_memory_bytes"),
    *("reserved_memory_bytes", "fits_memory"),
    *("loss", "loss_per_rank", "lr", "grad_norm", "loss_scale", "skipped_steps"),
    "replicas_identical",
]

PARTS = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
UNIT = 1e-3
"""Traces are built on a grid of milliseconds."""

STRAGGLERS = [
    {"kind": "slow_rank", "rank": 2, "factor": 1.7},
    {"kind": "lognormal", "sigma": 0.3},
    {"kind": "pause", "rank": 1, "every": "100 us", "duration": "70 us"},
]

REAL = {
    "one rank": {"cluster.world_size": 1},
    "one rank alone": {"cluster.world_size": 1, "strategy": "single"},
    "three ranks": {"cluster.world_size": 3},
    "four ranks": {},
    "stragglers": {"cluster.stragglers": STRAGGLERS},
    "no overlap": {"strategy": {"kind": "ddp", "overlap": False}},
    "copies": {"strategy": {"kind": "ddp", "charge_copies": True, "bucket_cap": "0 B"}},
    "accumulation": {"workload.grad_accum": 3},
    "every micro-step": {
        "workload.grad_accum": 2,
        "strategy": {"kind": "ddp", "no_sync": False},
        "cluster.stragglers": STRAGGLERS,
    },
    "unused parameters": {"strategy": {"kind": "ddp", "find_unused_parameters": True}},
    "shared links": {
        "collectives": {"all_reduce": "tree", "cost": "links"},
        "cluster.stragglers": STRAGGLERS,
    },
    "one step": {"workload.steps": 1},
    "a short last step": {"workload.global_batch": 13, "workload.epochs": 1},
    "no optimizer": {"workload.optimizer": "none"},
}


def scenario(overrides):
    """A small network on slow links, with some keys replaced."""
    raw = {
        "cluster": {
            "world_size": 4,
            "device": "t4-16gb",
            "topology": "ring",
            "link": {"alpha": "3 us", "bandwidth": "1 GB/s"},
        },
        "collectives": {"cost": "links"},
        "workload": {
            "model": {"kind": "mlp", "widths": [32, 64, 64, 8]},
            "dataset": {"kind": "regression", "num_samples": 40},
            "microbatch": 4,
            "steps": 4,
        },
        "strategy": {"kind": "ddp", "bucket_cap": "4 KiB"},
        "numerics": False,
    }
    for key, value in overrides.items():
        *parents, last = key.split(".")
        here = raw
        for part in parents:
            here = here[part]
        here[last] = value
    if "workload.global_batch" in overrides:
        del raw["workload"]["microbatch"]
    if "workload.epochs" in overrides:
        del raw["workload"]["steps"]
    return checked(raw, Path())


real = for_each("overrides", REAL.values(), ids=REAL)


# The second opinion ------------------------------------------------------------------------------


def classify(spans, instant):
    """What a rank does at an instant; None where nothing runs."""
    now = [span for span in spans if span.start <= instant < span.end]
    work = [span.activity for span in now if span.lane == "compute"]
    talk = [span.activity for span in now if span.lane == "comm"]
    assert len(work) <= 1
    assert len(talk) <= 1
    if work:
        named = {"forward": "compute_s", "backward": "compute_s", "update": "update_s"}
        return named.get(work[0], "other_s")
    if talk:
        return {"comm": "exposed_comm_s", "wait": "wait_s"}[talk[0]]
    return "other_s"


def opinion(trace, world_size, num_steps):
    """Mean seconds per steady step and rank, by cutting each rank's time at every start and end."""
    first = 1 if num_steps > 1 else 0
    found = dict.fromkeys(("step_time_s", *PARTS), 0.0)
    for rank in range(world_size):
        spans = [span for span in trace.spans if span.rank == rank]
        begin = max((span.end for span in spans if span.step < first), default=0.0)
        end = max((span.end for span in spans), default=0.0)
        found["step_time_s"] += end - begin
        cuts = {begin, end, *(t for span in spans for t in (span.start, span.end))}
        cuts = sorted(t for t in cuts if begin <= t <= end)
        for left, right in pairwise(cuts):
            found[classify(spans, (left + right) / 2)] += right - left
    return {name: value / world_size / (num_steps - first) for name, value in found.items()}


def assert_agrees(found, trace, world_size, num_steps):
    wanted = opinion(trace, world_size, num_steps)
    scale = max(wanted["step_time_s"], 1e-30)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9 * scale), name
    assert sum(found[name] for name in PARTS) == pytest.approx(found["step_time_s"], rel=1e-12)


@st.composite
def lane(draw, begin, activities):
    """Spans of one stream after an instant: gaps and lengths in units of the grid."""
    now, spans = begin, []
    for activity in draw(st.lists(st.sampled_from(activities), max_size=4)):
        now += draw(st.integers(0, 3))
        length = draw(st.integers(1, 5))
        spans.append((activity, now, now + length))
        now += length
    return spans


@st.composite
def traces(draw):
    """Steps of some ranks, each with both streams; a step begins when the one before has ended."""
    builder = TraceBuilder()
    world_size, num_steps = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    for rank in range(world_size):
        now = 0
        for step in range(-1, num_steps):
            work = draw(lane(now, ["forward", "backward", "update", "copy"]))
            talk = draw(lane(now, ["comm", "wait"]))
            for number, spans in ((COMPUTE_LANE, work), (COMM_LANE, talk)):
                for activity, start, end in spans:
                    now = max(now, end)
                    nbytes = end - start if activity == "comm" else 0.0
                    builder.add_one(
                        rank, step, number, activity, "x", start * UNIT, end * UNIT, nbytes
                    )
    return builder.build(), world_size, num_steps


@pytest.mark.slow
@draws(8, 20, deadline=None)
@given(traces())
def test_every_instant_of_a_step_is_counted_once_and_rightly(made):
    trace, world_size, num_steps = made
    found = metrics.times(trace, world_size, num_steps, [6] * num_steps)
    assert_agrees(found, trace, world_size, num_steps)


@pytest.mark.slow
@real
def test_the_parts_of_a_real_step_are_what_its_spans_say(overrides):
    chosen = scenario(overrides)
    result = simulate(chosen)
    num_steps = len(result.metrics["lr"])
    assert_agrees(result.metrics, result.trace, chosen.cluster.world_size, num_steps)


@pytest.mark.slow
@real
def test_the_parts_add_up_on_every_rank(overrides):
    chosen = scenario(overrides)
    result = simulate(chosen)
    found = metrics.per_rank(result.trace, chosen.cluster.world_size, len(result.metrics["lr"]))
    found = found._asdict()
    total = sum(found[name] for name in PARTS)
    np.testing.assert_allclose(total, found["step_time_s"], rtol=1e-12)
    for name, values in found.items():
        assert (values >= 0).all(), name


# Single figures ----------------------------------------------------------------------------------


@pytest.fixture
def two_steps():
    """One rank: setup until 1 ms, a step of 10 ms, and one of 4 ms with 2 ms of hidden comm."""
    builder = TraceBuilder()
    for step, lane_number, activity, start, end, nbytes in (
        (-1, COMM_LANE, "comm", 0, 1, 7.0),
        (0, COMPUTE_LANE, "forward", 1, 11, 0.0),
        (1, COMPUTE_LANE, "forward", 11, 13, 0.0),
        (1, COMM_LANE, "comm", 11, 14, 30.0),
        (1, COMPUTE_LANE, "update", 14, 15, 0.0),
    ):
        builder.add_one(0, step, lane_number, activity, "x", start * UNIT, end * UNIT, nbytes)
    return builder.build()


def test_the_first_of_several_steps_is_warm_up(two_steps):
    found = metrics.times(two_steps, 1, 2, [5, 8])
    assert found["step_time_s"] == pytest.approx(4e-3)
    assert found["compute_s"] == pytest.approx(2e-3)
    assert found["update_s"] == pytest.approx(1e-3)
    assert found["comm_s"] == pytest.approx(3e-3)
    assert found["exposed_comm_s"] == pytest.approx(1e-3)
    assert found["wait_s"] == found["other_s"] == 0
    assert found["utilization"] == pytest.approx(0.5)
    assert found["throughput_samples_per_s"] == pytest.approx(8 / 4e-3)
    assert found["bytes_sent_per_rank"] == [30]


def test_the_clock_at_the_end_counts_setup_and_warm_up(two_steps):
    assert metrics.times(two_steps, 1, 2, [5, 8])["simulated_s"] == pytest.approx(15e-3)


def test_a_single_step_is_the_one():
    builder = TraceBuilder()
    builder.add_one(0, -1, COMM_LANE, "comm", "x", 0.0, 1.0, 4.0)
    builder.add_one(0, 0, COMPUTE_LANE, "forward", "x", 1.0, 3.0)
    found = metrics.times(builder.build(), 1, 1, [6])
    assert (found["step_time_s"], found["compute_s"]) == (2.0, 2.0)
    assert found["throughput_samples_per_s"] == 3.0
    assert found["bytes_sent_per_rank"] == [0]


def test_a_run_in_which_nothing_happens_has_no_throughput():
    found = metrics.times(TraceBuilder().build(), 2, 3, [6, 6, 6])
    assert found["step_time_s"] == found["simulated_s"] == 0
    assert found["throughput_samples_per_s"] is None
    assert found["utilization"] is None
    assert found["bytes_sent_per_rank"] == [0, 0]


@for_each("world_size", [1, 2, 3, 8])
def test_a_ring_sends_its_share_of_the_buckets(world_size):
    m = simulate(scenario({"cluster.world_size": world_size})).metrics
    share = 2 * (world_size - 1) / world_size * sum(m["bucket_bytes"])
    assert m["bytes_sent_per_rank"] == pytest.approx([share] * world_size, rel=1e-12)


@pytest.mark.slow
@real
def test_what_a_rank_sends_is_the_sum_of_its_transfers(overrides):
    trace = simulate(scenario(overrides)).trace
    sums = {}
    for activity in ("comm", "transfer"):
        mask = trace.select(activity)
        sums[activity] = np.bincount(trace.rank[mask], trace.nbytes[mask], minlength=8)
    np.testing.assert_allclose(sums["comm"], sums["transfer"], rtol=1e-12)


def test_a_straggler_makes_the_others_wait():
    calm = simulate(scenario({})).metrics
    slow = {"kind": "slow_rank", "rank": 2, "factor": 2.0}
    late = simulate(scenario({"cluster.stragglers": [slow]}))
    found = metrics.per_rank(late.trace, 4, 4)._asdict()
    assert calm["wait_s"] == pytest.approx(0, abs=1e-12)
    assert late.metrics["wait_s"] > 0
    assert found["wait_s"][2] < 0.1 * found["wait_s"][0]
    assert found["compute_s"][2] == pytest.approx(2 * found["compute_s"][0], rel=1e-12)


# The list of metrics -----------------------------------------------------------------------------


def test_the_metrics_have_the_order_of_the_contract():
    assert list(metrics.LABELS) == CONTRACT
    assert list(simulate(scenario({})).metrics) == CONTRACT


def test_what_does_not_apply_is_null_and_never_invented():
    m = simulate(scenario({})).metrics  # time only, no loss scaling, no sweep
    null = {name for name, value in m.items() if value is None}
    assert null == {
        "interval_s",  # what other runs tell
        "without_stragglers_s",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "scaling_efficiency",
        "reserved_memory_bytes",
        "loss",
        "loss_per_rank",
        "grad_norm",
        "loss_scale",
        "skipped_steps",
        "replicas_identical",
    }
    assert len(m["lr"]) == 4


def test_numbers_are_lists_over_steps():
    m = simulate(scenario({"numerics": True, "workload.steps": 3})).metrics
    assert [len(m[name]) for name in ("loss", "loss_per_rank", "lr", "grad_norm")] == [3] * 4
    assert all(len(ranks) == 4 for ranks in m["loss_per_rank"])
    assert m["loss"] == pytest.approx([np.mean(ranks) for ranks in m["loss_per_rank"]])
    assert m["replicas_identical"] is True


def test_a_metric_of_another_version_is_left_out():
    assert "speed" not in metrics.Metrics.of({"speed": 1})
    with pytest.raises(KeyError, match="speed"):
        metrics.Metrics()["speed"]


def record(**found):
    """What a step without numerics did, with some of it replaced."""
    nothing = dict.fromkeys(("loss", "loss_per_rank", "grad_norm", "loss_scale", "skipped"))
    return SimpleNamespace(**nothing | {"lr": 0.5} | found)


def numbers(records):
    """Return the numeric metrics of steps that are known."""
    found = metrics.with_numbers(metrics.Metrics(), records)
    names = ("loss", "loss_per_rank", "lr", "grad_norm", "loss_scale", "skipped_steps")
    return {name: found[name] for name in names if found[name] is not None}


def test_no_steps_have_no_numbers():
    assert numbers([]) == {"lr": []}
    assert numbers([record(), record()]) == {"lr": [0.5, 0.5]}


def test_numbers_are_lists_over_steps_and_without_a_loss_scale_none_is_told():
    steps = [record(loss=loss, loss_per_rank=[loss], grad_norm=2 * loss) for loss in (3.0, 1.0)]
    assert numbers(steps) == {
        "loss": [3.0, 1.0],
        "loss_per_rank": [[3.0], [1.0]],
        "lr": [0.5, 0.5],
        "grad_norm": [6.0, 2.0],
    }


def test_a_loss_scale_is_told_step_by_step_and_skipped_steps_count_from_one():
    scales, skipped = [8.0, 4.0, 4.0], [True, False, True]
    steps = [
        record(loss=1.0, loss_per_rank=[1.0], grad_norm=1.0, loss_scale=scale, skipped=bad)
        for scale, bad in zip(scales, skipped, strict=True)
    ]
    found = numbers(steps)
    assert found["loss_scale"] == scales
    assert found["skipped_steps"] == [1, 3]
    assert numbers(steps[1:2])["skipped_steps"] == []


def test_steps_skipped_by_a_fault_are_known_without_numerics():
    steps = [record(skipped=bad) for bad in (False, True)]
    assert numbers(steps) == {"lr": [0.5, 0.5], "skipped_steps": [2]}


# Scaling efficiency ------------------------------------------------------------------------------


def point(world_size, throughput):
    return world_size, metrics.Metrics(throughput_samples_per_s=throughput)


def test_efficiency_is_relative_to_the_smallest_world_size():
    points = [point(8, 400.0), point(2, 200.0), point(4, 300.0)]
    assert metrics.scaling_efficiency(points) == [0.5, 1.0, 0.75]


def test_no_throughput_has_no_efficiency():
    assert metrics.scaling_efficiency([point(1, 100.0), point(2, None)]) == [1.0, None]
    assert metrics.scaling_efficiency([point(1, None), point(2, 100.0)]) == [None, None]
