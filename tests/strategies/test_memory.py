"""What a rank keeps, counted by hand."""

from pathlib import Path

from for_each import for_each

from simdp.cluster import Cluster
from simdp.cluster.allocators import Cuda, Exact
from simdp.strategies.data_parallel import Single
from simdp.strategies.ddp import DDP
from simdp.strategies.memory import (
    fits,
    host_memory_needed,
    largest_microbatches,
    micro_step_nbytes,
    sample_nbytes,
    update_temporaries,
)
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


@for_each(("dtype", "itemsize"), [("float32", 4), ("float64", 8)])
def test_a_sample_is_its_inputs_and_its_target_in_the_workloads_dtype(dtype, itemsize):
    assert sample_nbytes(workload(dtype=dtype)) == [4 * itemsize, 3 * itemsize]


def test_tokens_and_class_indices_have_64_bits():
    model = {"kind": "gpt2", "sequence_length": 16}
    chosen = workload(
        model=model, dataset={"kind": "tokens", "num_samples": 4}, loss="cross_entropy"
    ).settled(Path())
    assert sample_nbytes(chosen) == [16 * 8, 16 * 8]


def test_inference_has_no_targets_and_a_model_of_times_no_samples():
    asked = {"mode": "inference", "optimizer": "none"}
    assert sample_nbytes(workload(**asked)) == [4 * 4]
    counted = {"kind": "parameters", "num_params": 10}
    assert sample_nbytes(workload(model=counted, dataset="none")) == []


SIZES = {"0.weight": 12, "0.bias": 3, "1.weight": 3, "1.bias": 3}


def temporaries(allocator=Exact(), **options):  # noqa: B008  a frozen value
    return update_temporaries(workload(**options), SIZES, allocator)


def test_tensor_by_tensor_the_largest_ones_temporaries_count():
    one_by_one = {"kind": "adam", "foreach": False}
    assert temporaries(optimizer=one_by_one) == 2 * 12 * 4
    assert temporaries(optimizer=one_by_one, allocator=Cuda()) == 2 * 512


def test_all_at_once_those_of_a_group_count_together():
    assert temporaries() == NUM_ELEMENTS * 4
    assert temporaries(allocator=Cuda()) == 4 * 512
    group = {"params": ["0.*"], "lr": 0.1}
    assert temporaries(optimizer={"kind": "adam", "param_groups": [group]}) == 15 * 4
    assert temporaries(optimizer="sgd") == 0


@for_each(
    ("k", "peaks", "enough"),
    [(1, [42e9, 10e9], True), (1, [42e9, 43e9], False), (2, [22e9, 21e9], False)],
)
def test_a_device_has_room_for_all_of_its_ranks(k, peaks, enough):
    cluster = Cluster(world_size=2, ranks_per_device=k, device="a100-sxm4-40gb", link="nvlink3")
    assert fits(cluster, peaks) is enough


def test_activations_and_what_flows_are_counted_at_their_highest():
    chosen = workload()
    one, many = (micro_step_nbytes(chosen, n) for n in (1, MICROBATCH))
    # In the batch norm's backward: its input, the output, and the gradients of both.
    assert one == 4 * 3 * 4
    assert many == MICROBATCH * one
    assert micro_step_nbytes(chosen, 0) == 0


@for_each(
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
    chosen = workload(dataset={"kind": "regression", "num_samples": 10_000})
    one, four = (host_memory_needed(chosen, DDP(), n, 10_000) for n in (1, 4))
    data = 10_000 * (4 + 3)
    assert one >= data * (4 + 8)  # drawn in float64, then cast
    assert four >= one
    assert host_memory_needed(chosen, Single(), 1, 10_000) <= one


def test_only_where_gradients_are_reduced_this_machine_keeps_flat_buffers():
    deep = workload(model={"kind": "mlp", "widths": [64] * 9}, microbatch=1)
    ddp, alone = (host_memory_needed(deep, strategy, 1, 2) for strategy in (DDP(), Single()))
    assert ddp - alone == 8 * (64 * 64 + 64) * 4
