"""Every strategy in whole runs: equal to one device on the same batches, and on time."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.strategies import STRATEGIES

pytestmark = pytest.mark.slow

WORLD_SIZE = 3
WORKLOAD = {
    "model": {"kind": "mlp", "widths": [5, 8, 6, 2]},
    "dataset": {"kind": "regression", "num_samples": 48},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "microbatch": None,
    "global_batch": 12,
    "dtype": "float64",
    "epochs": 1,
}
NO_DATA = {
    "dataset": "none",
    "optimizer": "none",
    "steps": 2,
    "epochs": None,
    "dtype": "float32",
}
NUMBER = {"kind": "parameters", "num_params": 10**6}
OPTIONS = [
    *({"kind": kind} for kind in STRATEGIES if kind not in ("single", "local_sgd", "diloco")),
    {"kind": "local_sgd", "local_steps": 1},  # whose weights are averaged after every step
    {"kind": "ddp", "version": "1.4"},
    {"kind": "horovod", "merge": "none", "cycle_time": "0 s"},
    {"kind": "horovod", "merge": "all", "overlap": False},
    {"kind": "horovod", "merge": "mg_wfbp"},
    {"kind": "horovod", "fusion_threshold": "300 B", "cycle_time": "20 us"},
    {"kind": "apex", "message_size": 30},
    {"kind": "apex", "delay_allreduce": True, "gradient_predivide_factor": 2.0},
    {"kind": "apex", "message_size": 30, "retain_allreduce_buffers": True},
]

REDUCING = [
    options
    for options in OPTIONS
    if options["kind"]
    not in ("data_parallel", "diloco", "fsdp", "fsdp1", "hsdp", "local_sgd", "parameter_server")
    and options["kind"] not in ("zero2", "zero3")
]
"""Those whose gradients travel once per step, in all_reduces; others have tests of their own."""


def written(options):
    return ", ".join(map(str, options.values()))


def play(strategy, world_size=WORLD_SIZE, cluster=None, numerics=True, **workload):
    raw = {
        "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
        "workload": {**WORKLOAD, **workload},
        "strategy": strategy,
        "numerics": numerics,
    }
    return simdp.simulate(checked(raw, Path()))


def spans(result, activity, step=1, rank=0):
    found = [s for s in result.trace.spans if s.activity == activity and s.lane != "send"]
    return [s for s in found if s.step == step and s.rank == rank]


@pytest.fixture(scope="module")
def alone():
    return play("single", world_size=1)


# Numbers -----------------------------------------------------------------------------------------


@for_some("strategy", OPTIONS, 3, ids=written)
def test_ranks_learn_what_one_device_does_from_the_same_batches(strategy, alone):
    together = play(strategy)
    assert together.metrics["replicas_identical"] is not False  # null where there is one model
    assert together.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-12)
    for name, weights in alone.replicas[0].items():
        np.testing.assert_allclose(together.replicas[0][name], weights, rtol=0, atol=1e-14)


@for_some("strategy", REDUCING, 3, ids=written)
def test_micro_steps_are_reduced_once_and_learn_the_same(strategy, alone):
    once, twice = play(strategy), play(strategy, grad_accum=2)
    assert len(spans(once, "comm")) == len(spans(twice, "comm"))
    for name, weights in alone.replicas[0].items():
        np.testing.assert_allclose(twice.replicas[0][name], weights, rtol=0, atol=1e-14)


@for_some("strategy", OPTIONS, 3, ids=written)
def test_stragglers_change_no_bit(strategy):
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 3.0}]}
    steady, delayed = play(strategy), play(strategy, cluster=slow)
    assert delayed.metrics["step_time_s"] > steady.metrics["step_time_s"]
    for name, weights in steady.replicas[0].items():
        assert weights.tobytes() == delayed.replicas[0][name].tobytes()


@for_each("strategy", REDUCING, ids=written)
def test_bucket_bytes_are_what_a_steady_step_sends(strategy):
    result = play(strategy)
    found = [span for span in spans(result, "comm") if "bucket" in span.name]
    share = 2 * (WORLD_SIZE - 1) / WORLD_SIZE  # of a ring
    sent = [span.nbytes / share for span in found]
    assert result.metrics["bucket_bytes"] == pytest.approx(sent)
    assert sum(sent) == pytest.approx(sum(w.nbytes for w in result.replicas[0].values()))


def test_16_bit_messages_are_half_as_long_and_learn_nearly_the_same():
    single = play("single", 1, dtype="float32")  # torch draws other first weights in float64
    full = play({"kind": "horovod"}, dtype="float32")
    half = play({"kind": "horovod", "compression": "fp16"}, dtype="float32")
    assert sum(half.metrics["bucket_bytes"]) * 2 == sum(full.metrics["bucket_bytes"])
    for name, weights in single.replicas[0].items():
        assert np.abs(full.replicas[0][name] - weights).max() < 1e-6
        difference = np.abs(half.replicas[0][name] - weights).max()
        assert 1e-6 < difference < 1e-2


def test_sums_stay_sums_where_apex_is_not_to_average():
    first = play({"kind": "apex"}, steps=1, epochs=None)
    summed = play({"kind": "apex", "gradient_average": False}, steps=1, epochs=None)
    assert summed.metrics["grad_norm"][0] == pytest.approx(3 * first.metrics["grad_norm"][0])


def test_apex_can_send_16_bit_gradients_in_32():
    mixed = {"dtype": "float32", "precision": "mixed"}
    plain = play({"kind": "apex"}, **mixed).metrics["bucket_bytes"]
    wide = play({"kind": "apex", "allreduce_always_fp32": True}, **mixed)
    assert wide.metrics["bucket_bytes"] == [2 * nbytes for nbytes in plain]
    assert wide.metrics["replicas_identical"] is True


UNUSED = {
    "model": {
        "kind": "sequential",
        "layers": [
            {"kind": "linear", "in_features": 4, "out_features": 3},
            {"name": "idle", "kind": "linear", "in_features": 4, "out_features": 7},
        ],
        "unused": ["idle"],
        "input_shape": [4],
    }
}


def test_horovod_sends_zeros_for_unused_parameters_and_apex_nothing():
    used, idle = 8 * (4 * 3 + 3), 8 * (4 * 7 + 7)
    assert sum(play({"kind": "horovod"}, **UNUSED).metrics["bucket_bytes"]) == used + idle
    assert sum(play({"kind": "apex"}, **UNUSED).metrics["bucket_bytes"]) == used


@for_each("kind", ["apex", "horovod"])
def test_unused_parameters_do_not_disturb_the_others(kind):
    one, three = play("single", 1, **UNUSED), play({"kind": kind}, **UNUSED)
    for name, weights in one.replicas[0].items():
        np.testing.assert_allclose(three.replicas[0][name], weights, rtol=0, atol=1e-14)


def test_buffers_are_broadcast_once_by_horovod_and_never_by_apex():
    norm = {"kind": "batch_norm1d", "num_features": 3}
    layers = [{"kind": "linear", "in_features": 4, "out_features": 3}, norm]
    model = {"kind": "sequential", "layers": layers, "input_shape": [4]}
    broadcasts = {}
    for kind in ("ddp", "horovod", "apex"):
        trace = play({"kind": kind}, model=model).trace
        sent = [s for s in trace.spans if s.rank == 0 and s.activity == "comm"]
        broadcasts[kind] = sum(s.name.startswith("broadcast") for s in sent)
    # Of a batch norm: weight, bias, running mean and variance, number of batches.
    assert broadcasts["apex"] == 1
    assert broadcasts["horovod"] == 2 + 5
    assert broadcasts["ddp"] > 3


def test_what_travels_together_may_change_from_step_to_step():
    """The last batch is a single sample per rank, so that more gradients fall into a cycle."""
    slow = {"device": {**FAST["device"], "peak": {"float64": "1 MFLOP/s"}}}
    data = {"kind": "regression", "num_samples": 27}
    fused = {"kind": "horovod", "cycle_time": "500 us"}
    one = play("single", 1, dataset=data)
    three = play(fused, cluster=slow, dataset=data)
    numbers = [len(spans(three, "comm", step=step)) for step in range(3)]
    assert numbers == [3, 3, 2]
    for name, weights in one.replicas[0].items():
        np.testing.assert_allclose(three.replicas[0][name], weights, rtol=0, atol=1e-13)


# Times -------------------------------------------------------------------------------------------


def test_a_message_leaves_at_the_next_tick_after_backward_began():
    cycle = 50e-6
    result = play({"kind": "horovod", "cycle_time": "50 us"})
    begin = spans(result, "backward")[0].start
    for span in spans(result, "comm"):
        ticks = (span.start - begin) / cycle
        assert ticks == pytest.approx(round(ticks), abs=1e-6)


def test_a_single_rank_of_horovod_takes_no_time_to_agree_with_itself():
    alone, one = (play(kind, 1).metrics for kind in ("single", "horovod"))
    assert one["step_time_s"] == alone["step_time_s"]
    assert one["bucket_bytes"] is None
    assert one["loss"] == alone["loss"]


def test_a_model_that_is_only_a_number_of_parameters_has_one_gradient():
    result = play("horovod", model=NUMBER, numerics=False, **NO_DATA)
    assert result.metrics["bucket_bytes"] == [4 * 10**6]


def test_longer_cycles_fuse_more_and_cost_more_here():
    quick = play({"kind": "horovod", "cycle_time": "0 s"}).metrics
    slow = play({"kind": "horovod", "cycle_time": "5 ms"}).metrics
    assert len(quick["bucket_bytes"]) > len(slow["bucket_bytes"]) == 1
    assert slow["step_time_s"] > quick["step_time_s"] + 4e-3


COPYING = [
    {"kind": "ddp"},
    {"kind": "apex"},
    {"kind": "horovod", "merge": "all"},
]


@pytest.mark.parametrize("strategy", COPYING, ids=written)
def test_copies_are_charged_where_the_cluster_says_so_and_the_strategy_does_not(strategy):
    costly = {"overheads": {"copies": True}}

    def moved(cluster=None, **options):
        result = play({**strategy, **options}, cluster=cluster, numerics=False)
        return sum(span.nbytes for span in spans(result, "copy"))

    both_ways = 2 * 2 * sum(play(strategy).metrics["bucket_bytes"])
    assert moved() == 0
    assert moved(costly) == moved(charge_copies=True) == both_ways
    assert moved(costly, charge_copies=False) == 0


def test_retained_buffers_and_bucket_views_save_copies():
    def moved(**strategy):
        result = play({"charge_copies": True, **strategy}, numerics=False)
        return sum(span.nbytes for span in spans(result, "copy"))

    there = moved(kind="apex", retain_allreduce_buffers=True)
    assert there == moved(kind="apex") / 2
    assert moved(kind="ddp", gradient_as_bucket_view=True) == 0
