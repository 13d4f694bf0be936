"""A workload: batches step by step, initial weights, and models of every output shape."""

from itertools import islice

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from small_workload import workload as small

from simdp.errors import ScenarioError
from simdp.workload import Workload, workload_problems
from simdp.workload.sampling import distributed_sampler, read_permutation
from simdp.workload.schedules.base import Progress

BASIC = {
    "model": {"kind": "mlp", "widths": [4, 3]},
    "dataset": {"kind": "regression", "num_samples": 20},
}


def workload(**options):
    return Workload.model_validate({**BASIC, **options})


def batches(chosen, world_size, base, seed=0):
    return list(islice(chosen.batches(world_size, seed, base), 1000))


def sizes(chosen, world_size, base):
    return [step.sizes.tolist() for step in batches(chosen, world_size, base)]


def order_of(steps):
    """Samples in the order in which one rank sees them."""
    return [int(i) for step in steps for ranks in step.micro for i in ranks[0]]


# How long ----------------------------------------------------------------------------------------


def test_one_epoch_is_the_default(tmp_path):
    assert sizes(workload(microbatch=8), 1, tmp_path) == [[[8]], [[8]], [[4]]]


def test_epochs_follow_one_another(tmp_path):
    assert sizes(workload(microbatch=8, epochs=2), 1, tmp_path) == [[[8]], [[8]], [[4]]] * 2


@for_each("steps", [1, 2, 3, 4, 7])
def test_steps_begin_new_epochs_as_they_need_them(steps, tmp_path):
    wanted = [[[8]], [[8]], [[4]]] * 3
    assert sizes(workload(microbatch=8, steps=steps), 1, tmp_path) == wanted[:steps]


@given(
    world_size=st.integers(1, 9),
    microbatch=st.integers(1, 9),
    length=st.sampled_from([{}, {"epochs": 2}, {"epochs": 3}, {"steps": 1}, {"steps": 11}]),
    drop_last=st.booleans(),
    whole=st.booleans(),
)
def test_the_number_of_steps_is_known_before_they_are_made(
    world_size, microbatch, length, drop_last, whole
):
    size = {"global_batch": microbatch} if whole else {"microbatch": microbatch}
    chosen = workload(**size, **length, drop_last=drop_last)
    if drop_last and chosen.samples_per_step(world_size) > 20:
        return  # refused by the scenario
    assert len(batches(chosen, world_size, None)) == chosen.num_steps(world_size, None)


@for_each(
    ("options", "closing"),
    [
        ({"microbatch": 8}, [0, 0, 1]),
        ({"microbatch": 8, "epochs": 2}, [0, 0, 1] * 2),
        ({"microbatch": 8, "steps": 4}, [0, 0, 1, 1]),  # the run ends within an epoch
        ({"microbatch": 20, "steps": 2}, [1, 1]),
        ({"global_batch": 10, "epochs": 1}, [0, 1]),
    ],
)
def test_the_last_step_of_an_epoch_or_of_the_run_says_so(options, closing, tmp_path):
    steps = batches(workload(**options), 1, tmp_path)
    assert [step.closes_epoch for step in steps] == [bool(closes) for closes in closing]


# Batches -----------------------------------------------------------------------------------------


def test_uneven_parts_are_dealt_in_contiguous_pieces(tmp_path):
    chosen = workload(microbatch=4, samples_per_rank=[9, 3])
    assert sizes(chosen, 2, tmp_path) == [[[4, 3]], [[4, 0]], [[1, 0]]]
    (first, *_) = batches(chosen, 2, tmp_path)
    assert [part.tolist() for part in first.micro[0]] == [[0, 1, 2, 3], [9, 10, 11]]
    assert chosen.num_steps(2, tmp_path) == 3


def test_a_list_of_grad_accum_gives_the_sizes_of_micro_steps(tmp_path):
    chosen = workload(grad_accum=[3, 1])
    assert chosen.samples_per_step(2) == 8
    assert sizes(chosen, 2, tmp_path) == [[[3, 3], [1, 1]], [[3, 3], [1, 1]], [[2, 2]]]


def test_a_global_batch_is_cut_by_torch_chunk(tmp_path):
    chosen = workload(global_batch=10)
    assert chosen.samples_per_step(8) == 10
    assert sizes(chosen, 8, tmp_path) == [[[2, 2, 2, 2, 2, 0, 0, 0]]] * 2


def test_a_global_batch_is_cut_over_ranks_before_micro_steps(tmp_path):
    assert (
        sizes(workload(global_batch=10, grad_accum=2), 3, tmp_path) == [[[2, 2, 1], [2, 2, 1]]] * 2
    )
    assert sizes(workload(global_batch=20, grad_accum=[7, 3]), 2, tmp_path) == [[[7, 7], [3, 3]]]


@for_each(
    ("options", "world_size", "wanted"),
    [
        ({"microbatch": 4}, 3, [[[4, 4, 4]]]),  # 6 each: 4, and 2 are left out
        ({"global_batch": 12}, 3, [[[4, 4, 4]]]),
        ({"microbatch": 2, "grad_accum": 2}, 2, [[[2, 2], [2, 2]]] * 2),
    ],
)
def test_drop_last_leaves_out_what_fills_no_step(options, world_size, wanted, tmp_path):
    assert sizes(workload(**options, drop_last=True), world_size, tmp_path) == wanted


@for_each(
    ("options", "world_size", "samples"),
    [
        ({"microbatch": 4}, 3, 12),
        ({"microbatch": 4, "grad_accum": 2}, 3, 24),
        ({"global_batch": 10}, 3, 10),
        ({"grad_accum": [4, 1]}, 3, 15),
    ],
)
def test_samples_of_a_full_step(options, world_size, samples):
    assert workload(**options).samples_per_step(world_size) == samples


# Order -------------------------------------------------------------------------------------------


def test_without_shuffle_samples_come_in_file_order(tmp_path):
    assert order_of(batches(workload(microbatch=8, epochs=2), 1, tmp_path)) == [*range(20)] * 2


def test_with_shuffle_every_epoch_has_an_order_of_its_own(tmp_path):
    order = order_of(batches(workload(microbatch=8, epochs=2, shuffle=True), 1, tmp_path))
    first, second = order[:20], order[20:]
    assert sorted(first) == sorted(second) == [*range(20)]
    assert first != second


def test_the_seed_decides_the_order_and_the_world_size_does_not(tmp_path):
    chosen = workload(microbatch=20, shuffle=True)
    alone = order_of(batches(chosen, 1, tmp_path))
    assert alone != order_of(batches(chosen, 1, tmp_path, seed=1))
    (step,) = batches(workload(microbatch=10, shuffle=True), 2, tmp_path)
    assert step.micro[0][0].tolist() == alone[::2]
    assert step.micro[0][1].tolist() == alone[1::2]


def test_an_order_from_a_file_is_followed_row_by_row(tmp_path):
    rows = np.stack([np.arange(20)[::-1], np.roll(np.arange(20), 5)])
    np.savez(tmp_path / "order.npz", rows)
    chosen = workload(microbatch=8, epochs=3, shuffle={"path": "order.npz"})
    order = order_of(batches(chosen, 1, tmp_path))
    assert order == [*rows[0], *rows[1], *rows[0]]


def test_one_order_serves_every_epoch(tmp_path):
    np.savez(tmp_path / "order.npz", np.arange(3)[::-1])
    for epoch in range(3):
        assert read_permutation(tmp_path / "order.npz", 3, epoch).tolist() == [2, 1, 0]


def test_a_file_that_is_no_order_is_refused(tmp_path):
    path = tmp_path / "order.npz"
    np.savez(path, np.array([0, 0, 1]))
    with pytest.raises(ScenarioError) as caught:
        read_permutation(path, 3, 0)
    assert str(caught.value) == (
        f"{path}: is no order of the dataset; store one array of shape (3,) or (epochs, 3), "
        "each row a permutation of 0 ... 2."
    )


# Learning rate -----------------------------------------------------------------------------------


@for_each(("scaling", "factor"), [("none", 1), ("linear", 16), ("sqrt", 4)])
def test_the_learning_rate_may_grow_with_the_world_size(scaling, factor):
    schedule = {"kind": "step_lr", "step_size": 1, "gamma": 0.5}
    chosen = workload(microbatch=1, lr_scaling=scaling, lr_schedule=schedule)
    assert [chosen.learning_rate(0.3, Progress(step), 16) for step in (1, 2, 3)] == pytest.approx(
        [0.3 * factor, 0.15 * factor, 0.075 * factor], rel=1e-15
    )
    assert chosen.learning_rate(0.3, Progress(1), 1) == 0.3


def test_rates_that_a_schedule_names_stay_as_they_are():
    schedule = {"kind": "cosine_annealing_lr", "T_max": 4, "eta_min": 0.01}
    chosen = workload(microbatch=1, lr_scaling="linear", lr_schedule=schedule)
    rates = [chosen.learning_rate(0.1, Progress(step), 8) for step in (1, 3, 5)]
    assert rates == pytest.approx([0.8, (0.8 + 0.01) / 2, 0.01], rel=1e-12)


# Model -------------------------------------------------------------------------------------------

BATCH_NORM = {
    "kind": "sequential",
    "layers": [
        {"kind": "linear", "in_features": 4, "out_features": 3},
        {"kind": "batch_norm1d", "num_features": 3, "momentum": 0.2},
    ],
}


def test_batch_norms_become_synchronised_with_the_same_tensors(tmp_path):
    plain, other = (
        workload(model=BATCH_NORM, microbatch=1, sync_batchnorm=sync).settled(tmp_path).graph
        for sync in (False, True)
    )
    assert [call.layer.kind for call in other.calls] == ["linear", "sync_batch_norm"]
    assert other.calls[1].layer.momentum == 0.2
    assert other.registered[1] is other.calls[1].layer
    assert (other.parameters, other.buffers) == (plain.parameters, plain.buffers)
    assert other.ready_order == plain.ready_order
    assert other.is_synchronised
    assert not plain.is_synchronised


@for_each(("precision", "itemsize"), [("full", 4), ("amp", 4), ("mixed", 2)])
def test_gradients_are_sent_in_the_precisions_dtype(precision, itemsize):
    assert workload(microbatch=1, precision=precision).gradient_itemsize == itemsize


@for_each(
    ("layers", "said"),
    [
        (["relu"], "it has no trainable parameters; add a layer such as linear."),
        (
            [{"name": "wide", "kind": "linear", "in_features": 5, "out_features": 3}],
            "the layers do not chain: wide: takes 5 features, but gets samples of shape (4,).",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(layers, said, tmp_path):
    model = {"kind": "sequential", "layers": layers, "input_shape": [4]}
    chosen = workload(model=model, microbatch=1)
    assert workload_problems(chosen, tmp_path) == [f"model: {said}"]


# Weights -----------------------------------------------------------------------------------------


@for_each("dtype", ["float32", "float64"])
def test_initial_weights_are_uniform_within_torchs_bound(dtype, tmp_path):
    chosen = workload(model={"kind": "mlp", "widths": [400, 300]}, microbatch=1, dtype=dtype)
    weights = chosen.initial_weights(0, 0, tmp_path)
    assert {name: array.shape for name, array in weights.items()} == {
        "layers.0.weight": (300, 400),
        "layers.0.bias": (300,),
    }
    assert all(array.dtype == dtype for array in weights.values())
    weight = weights["layers.0.weight"]
    assert abs(weight).max() <= 0.05
    assert weight.std() == pytest.approx(0.05 / np.sqrt(3), rel=0.01)
    assert chosen.itemsize == np.dtype(dtype).itemsize


def test_every_rank_draws_weights_of_its_own(tmp_path):
    chosen = workload(microbatch=1)
    draws = [chosen.initial_weights(0, rank, tmp_path)["layers.0.weight"] for rank in (0, 1, 0)]
    assert not np.array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])


def test_weights_from_a_file_serve_every_rank(tmp_path):
    stored = {"layers.0.weight": np.arange(12.0).reshape(3, 4), "layers.0.bias": np.ones(3)}
    np.savez(tmp_path / "w.npz", **stored)
    chosen = workload(microbatch=1, weights="w.npz")
    assert workload_problems(chosen, tmp_path) == []
    for rank in (0, 3):
        weights = chosen.initial_weights(0, rank, tmp_path)
        for name, array in stored.items():
            np.testing.assert_array_equal(weights[name], array)
            assert weights[name].dtype == np.float32


# Outputs of every shape --------------------------------------------------------------------------

SCALAR = {"kind": "einsum", "equation": "bd,d->b", "d": 4}


def test_a_model_may_make_one_number_of_each_sample(tmp_path):
    assert workload_problems(workload(model=SCALAR, microbatch=1), tmp_path) == []


@for_each("loss", ["mse", "cross_entropy"])
def test_blobs_do_not_suit_a_model_without_classes(loss, tmp_path):
    chosen = workload(model=SCALAR, dataset="blobs", loss=loss, microbatch=1)
    (line,) = workload_problems(chosen, tmp_path)
    assert line.startswith("dataset: ")


def test_a_copy_has_a_graph_of_its_own_where_a_key_changes_it():
    one = workload(microbatch=2)
    graph = one.graph
    assert one.model_copy(update={"microbatch": 3}).graph is graph
    name = graph.parameters[0].name
    assert one.model_copy(update={"frozen": (name,)}).graph.frozen == {name}
    assert one.graph.frozen == frozenset()


@given(
    num_samples=st.integers(1, 30),
    world_size=st.integers(1, 4),
    microbatch=st.integers(1, 4),
    accumulate=st.integers(1, 3),
    sampler=st.booleans(),
    loader=st.booleans(),
)
def test_sampler_and_loader_drop_what_torchs_do(
    num_samples, world_size, microbatch, accumulate, sampler, loader
):
    chosen = small(
        microbatch=microbatch,
        grad_accum=accumulate,
        dataset={"kind": "regression", "num_samples": num_samples},
        drop_last={"sampler": sampler, "loader": loader},
    )
    # torch: DistributedSampler(drop_last=sampler), DataLoader(batch_size, drop_last=loader).
    per_rank = distributed_sampler(np.arange(num_samples), world_size, sampler)[0].tolist()
    batches = [per_rank[i : i + microbatch] for i in range(0, len(per_rank), microbatch)]
    if loader and batches and len(batches[-1]) < microbatch:
        batches.pop()
    wanted = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    steps = chosen.steps_of_epoch(np.arange(num_samples), world_size)
    assert [[micro[0].tolist() for micro in step.micro] for step in steps] == wanted
    assert bool(wanted) == (num_samples >= chosen.least_left(world_size))


def test_sampler_and_loader_need_microbatches():
    with pytest.raises(ValidationError, match="which global_batch does without; write true or"):
        small(microbatch=None, global_batch=4, drop_last={"sampler": True})


def test_a_seed_may_have_64_bits():
    chosen = small(shuffle={"torch": "distributed_sampler", "seed": 2**63 - 1})
    # torch takes the lowest 32 bits of it.
    other = small(shuffle={"torch": "distributed_sampler", "seed": 2**32 - 1})
    np.testing.assert_array_equal(chosen.shuffle.order(20, 0), other.shuffle.order(20, 0))
