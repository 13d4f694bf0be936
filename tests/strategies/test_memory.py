"""What a rank keeps, counted by hand."""

import pytest

from simdp.strategies.apex import Apex
from simdp.strategies.ddp import DDP
from simdp.strategies.horovod import Horovod
from simdp.strategies.memory import host_memory_needed, largest_microbatches, rank_memory
from simdp.strategies.single import Single
from simdp.workload import Workload

NUM_ELEMENTS = 4 * 3 + 3 + 2 * 3  # the linear layer's, and the batch norm's
MICROBATCH = 8


def workload(**options):
    layers = [
        {"kind": "linear", "in_features": 4, "out_features": 3},
        {"kind": "batch_norm1d", "num_features": 3},
    ]
    raw = {
        "model": {"kind": "sequential", "layers": layers, "input_shape": [4]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "optimizer": {"kind": "adam"},
        "microbatch": MICROBATCH,
        **options,
    }
    return Workload.model_validate(raw)


def memory(strategy=Single(), **options):  # noqa: B008  a frozen value
    return rank_memory(workload(**options), strategy, MICROBATCH)


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float64", 8)])
def test_every_part_is_counted_in_the_workloads_dtype(dtype, itemsize):
    found = memory(dtype=dtype)
    assert found.parameters == found.gradients == NUM_ELEMENTS * itemsize
    assert found.optimizer_state == 2 * NUM_ELEMENTS * itemsize  # Adam's two moments
    assert found.buckets == 0
    # What the second layer is given; the first one keeps the micro-batch, which is there anyway.
    assert found.activations == MICROBATCH * 3 * itemsize
    # The micro-batch, the running statistics, and a counter of 64 bits.
    assert found.other == (MICROBATCH * 4 + 2 * 3) * itemsize + 8
    assert found.total() == sum(found)


def test_autocast_keeps_16_bit_activations_beside_32_bit_weights():
    full, amp = memory(), memory(precision="amp")
    # The linear layer runs in 16 bits, and so does the batch norm on what it makes.
    assert amp.activations == full.activations / 2
    assert amp._replace(activations=full.activations) == full


def test_16_bit_weights_and_gradients_come_with_a_master_copy():
    full, mixed = memory(), memory(precision="mixed")
    assert mixed.parameters == mixed.gradients == NUM_ELEMENTS * 2
    assert mixed.optimizer_state == full.optimizer_state + NUM_ELEMENTS * 4


@pytest.mark.parametrize("precision", ["full", "amp", "mixed"])
def test_buckets_hold_the_gradients_once_more_in_their_own_dtype(precision):
    found = memory(DDP(), precision=precision)
    assert found.buckets == found.gradients
    assert memory(DDP(gradient_as_bucket_view=True), precision=precision).buckets == 0


@pytest.mark.parametrize(
    ("strategy", "nbytes"),
    [
        (Horovod(fusion_threshold="1 kB"), 1000),
        (Horovod(merge="all"), NUM_ELEMENTS * 4),
        (Apex(), NUM_ELEMENTS * 4),
        (Apex(message_size=1), 4 * 3 * 4),  # the largest tensor
    ],
)
def test_other_strategies_keep_their_own_buffers(strategy, nbytes):
    assert memory(strategy).buckets == nbytes


def test_parameter_groups_may_keep_less_state():
    group = {"params": ["1.*"], "amsgrad": True}
    found = memory(optimizer={"kind": "adam", "param_groups": [group]})
    assert found.optimizer_state == (2 * NUM_ELEMENTS + 2 * 3) * 4


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({}, [8, 8, 8]),
        ({"microbatch": None, "grad_accum": [3, 5]}, [5, 5, 5]),
        ({"microbatch": None, "global_batch": 10}, [4, 4, 2]),
        ({"microbatch": None, "global_batch": 10, "grad_accum": 2}, [2, 2, 1]),
        ({"microbatch": None, "global_batch": 2}, [1, 1, 0]),
    ],
)
def test_the_largest_micro_step_counts(options, largest):
    assert largest_microbatches(workload(**options), 3) == largest


def test_this_machine_keeps_what_every_rank_has_and_the_data():
    chosen = workload()
    one, four = (host_memory_needed(chosen, DDP(), n, 64) for n in (1, 4))
    each = (four - one) / 3
    assert each >= memory().total() + NUM_ELEMENTS * 4  # with flat buffers
    data = 64 * (4 + 3) * (8 + 4)
    assert one - each >= data
    assert host_memory_needed(chosen, Single(), 1, 64) < one
