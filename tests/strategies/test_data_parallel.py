"""What data_parallel asks for, and how it sorts tensors into buffers."""

from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import FAST
from small_workload import program, workload

from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.steps.partition import assign
from simdp.strategies.data_parallel import BUFFER_NBYTES, DataParallel, pieces
from simdp.strategies.memory import host_memory_needed
from simdp.workload.layers.base import Parameter, constant

MiB = 2**20
SYNC = {
    "kind": "sequential",
    "layers": [
        {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 3},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 3},
    ],
}


def tensors(*sizes):
    return [Parameter(f"p{i}", (size,), constant(0.0)) for i, size in enumerate(sizes)]


def scenario(cluster=None, strategy=None, **more):
    return {
        "cluster": {**FAST, "world_size": 4, **(cluster or {})},
        "workload": {
            "model": {"kind": "mlp", "widths": [4, 3]},
            "dataset": {"kind": "regression", "num_samples": 64},
            "global_batch": 30,
            **more,
        },
        "strategy": {"kind": "data_parallel", **(strategy or {})},
    }


def refusal(**given):
    with pytest.raises(ScenarioError) as error:
        checked(scenario(**given), Path())
    return error.value.problems


# Buffers -----------------------------------------------------------------------------------------


def test_sums_travel_in_buffers_that_close_before_they_are_too_full():
    found = pieces(tensors(6 * MiB, 4 * MiB, 1, 12 * MiB, 3), 1)
    assert found == [["p0", "p1"], ["p2"], ["p3"], ["p4"]]


def test_copies_travel_in_buffers_that_close_when_they_are_full():
    found = assign(tensors(6 * MiB, 5 * MiB, 1, 12 * MiB, 3), 1, [BUFFER_NBYTES])
    assert found == [["p0", "p1"], ["p2", "p3"], ["p4"]]


@given(st.lists(st.integers(1, 8 * MiB), min_size=1, max_size=30))
def test_every_gradient_is_in_one_buffer_in_order_and_none_is_too_large(sizes):
    found = pieces(tensors(*sizes), 4)
    assert [name for names in found for name in names] == [f"p{i}" for i in range(len(sizes))]
    held = [sum(4 * sizes[int(name[1:])] for name in names) for names in found]
    assert all(
        total <= BUFFER_NBYTES or len(names) == 1 for total, names in zip(held, found, strict=True)
    )


# What is refused ---------------------------------------------------------------------------------


def test_a_batch_per_rank_is_refused_with_the_batch_to_write_instead():
    assert refusal(global_batch=None, microbatch=8) == [
        "strategy.kind: data_parallel scatters one batch over its devices; write "
        "workload.global_batch: 32 instead of a batch per rank."
    ]


def test_several_nodes_are_refused():
    nodes = {
        "world_size": 4,
        "devices_per_node": 2,
        "inter_node": {"link": {"alpha": "5 us", "bandwidth": "25 GB/s"}},
    }
    assert refusal(cluster=nodes) == [
        "strategy.kind: data_parallel is one process, which has devices of one node, but there are "
        "2 nodes; use ddp, or set cluster.world_size to 2."
    ]


def test_several_ranks_on_a_device_are_refused():
    assert refusal(cluster={"ranks_per_device": 2}) == [
        "strategy.kind: data_parallel has one copy of the model on a device, but "
        "cluster.ranks_per_device is 2; set it to 1, or use ddp."
    ]


def test_an_output_device_that_does_not_exist_is_refused():
    assert refusal(strategy={"output_device": 4}) == [
        "strategy.output_device: device 4 does not exist; with world_size 4, devices are 0 ... 3."
    ]


@for_each("value", [-0.1, 1.5])
def test_a_share_of_the_lock_is_between_0_and_1(value):
    (line,) = refusal(strategy={"gil": value})
    assert line.startswith("strategy.gil: ")
    assert str(value) in line


def test_synchronised_batch_norm_is_refused():
    assert refusal(model=SYNC, sync_batchnorm=True) == [
        "strategy.kind: SyncBatchNorm needs several processes, but data_parallel is one; use "
        "strategy: ddp, or plain batch norm."
    ]


def test_a_loss_in_forward_needs_a_loss():
    timed = {
        "model": {"kind": "parameters", "num_params": 1000},
        "compute": {
            "kind": "measured",
            "points": [{"microbatch": 8, "step_time": "10 ms"}],
        },
        "dataset": "none",
        "optimizer": "none",
    }
    lines = refusal(strategy={"loss_in_forward": True}, **timed)
    assert lines == [
        "strategy.loss_in_forward: the model parameters has times but no loss; leave this out."
    ]


def test_where_nothing_is_learned_nothing_is_summed():
    serving = workload(microbatch=None, global_batch=8, mode="inference")
    inference = program(DataParallel(), serving)
    assert inference.calls == [("broadcast", 0)]
    assert inference.scatters


def test_fewer_samples_than_devices_are_no_problem():
    raw = scenario(global_batch=3)
    assert checked(raw, Path()).workload.global_batch == 3


# Memory of this machine --------------------------------------------------------------------------


def needed(**workload):
    chosen = checked(scenario(model={"kind": "mlp", "widths": [400, 300]}, **workload), Path())
    return host_memory_needed(chosen.workload, chosen.strategy, 4, 64)


def test_devices_without_samples_get_no_copy_of_the_model():
    copy = 4 * (400 * 300 + 300)
    assert needed(global_batch=4) - needed(global_batch=2) == 2 * copy


def test_outputs_of_inference_are_kept_to_the_end():
    steps = [needed(mode="inference", steps=number) for number in (2000, 3000)]
    assert steps[1] - steps[0] == 1000 * 30 * 300 * 4
    epochs = [needed(mode="inference", epochs=number) for number in (2000, 3000)]
    assert epochs[1] - epochs[0] == 1000 * 64 * 300 * 4
    assert needed(mode="inference") == needed(mode="inference", epochs=1)
