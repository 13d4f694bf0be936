"""Sharded training in numbers: pieces that are real, and the weights that DDP gives."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given, settings
from hypothesis import strategies as st
from small_scenario import FAST

import simdp
from simdp.engine.collective import Planner
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario import checked
from simdp.steps.ops import AllGather, Free, Unshard, Update

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
MLP = {
    "model": {"kind": "mlp", "widths": [5, 7, 6, 3], "activation": "tanh"},
    "dataset": {"kind": "regression", "num_samples": 60},
}
BATCH_NORM = {
    "model": {
        "kind": "sequential",
        "layers": [
            {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 5},
            {"name": "bn", "kind": "batch_norm1d", "num_features": 5},
            "relu",
            {"name": "l2", "kind": "linear", "in_features": 5, "out_features": 2},
        ],
    },
    "dataset": {"kind": "regression", "num_samples": 60},
}
TRANSFORMER = {
    "model": {
        "kind": "transformer",
        "task": "language_model",
        "vocab_size": 11,
        "d_model": 8,
        "nhead": 2,
        "num_layers": 2,
        "dim_feedforward": 12,
        "dropout": 0.3,
        "sequence_length": 6,
    },
    "dataset": {"kind": "tokens", "num_samples": 60},
}
OPTIMIZERS = [
    {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    # A larger eps keeps Adam from dividing an attention's rounding errors by themselves.
    {"kind": "adam", "lr": 0.01, "eps": 1e-3},
    {"kind": "adagrad", "lr": 0.1, "eps": 1e-3},
    {"kind": "adadelta", "lr": 0.5, "eps": 1e-3},
    {
        "kind": "adamw",
        "lr": 0.01,
        "eps": 1e-3,
        "param_groups": [{"params": ["*bias"], "lr": 0.02, "weight_decay": 0.0}],
    },
]
DEEPSPEED = {
    "communication": "deepspeed",
    "reduce_bucket_size": 30,
    "allgather_bucket_size": 20,
}
SHARDED = [
    {"kind": "zero1"},
    {"kind": "zero1", "parameters_as_bucket_view": True, "bucket_cap": "100 B"},
    {"kind": "zero1", "communication": "reduce_scatter"},
    {"kind": "zero1", "communication": "reduce_scatter", "bucket_cap": "100 B"},
    {"kind": "zero2"},
    {"kind": "zero2", "bucket_cap": "0 B", "overlap": False},
    {"kind": "zero1", **DEEPSPEED},
    {"kind": "zero2", **DEEPSPEED, "overlap_comm": True},
    {"kind": "zero2", **DEEPSPEED, "contiguous_gradients": False},
    {"kind": "zero3"},
    {"kind": "zero3", "param_persistence_threshold": 0, "max_reuse_distance": 0},
    {"kind": "zero3", "param_persistence_threshold": 8, "reduce_bucket_size": 30}
    | {"prefetch_bucket_size": 20, "overlap_comm": False},
    {"kind": "fsdp"},
    {"kind": "fsdp", "units": "whole"},
    {"kind": "fsdp", "reshard_after_forward": False},
    {"kind": "fsdp", "reshard_after_forward": True, "backward_prefetch": 2},
    {"kind": "fsdp", "sync": "last", "reshard_after_backward": False},
    {"kind": "fsdp1"},
    {"kind": "fsdp1", "units": "whole"},
    {"kind": "fsdp1", "sharding_strategy": "SHARD_GRAD_OP", "backward_prefetch": "none"},
    {"kind": "fsdp1", "backward_prefetch": "backward_post", "limit_all_gathers": False},
    {"kind": "fsdp1", "sharding_strategy": "HYBRID_SHARD"},
    {"kind": "hsdp"},
    {"kind": "hsdp", "shard_size": 1, "forward_prefetch": 2},
]
few = settings(max_examples=2)


def scenario(strategy, world_size, workload, base=Path(), **more):
    raw = {
        "cluster": {**FAST, "world_size": world_size},
        "workload": {"dtype": "float64", "steps": 2, **workload},
        "strategy": strategy,
        **more,
    }
    return checked(raw, base)


def play(*arguments, **options):
    return simdp.simulate(scenario(*arguments, **options))


@cache
def _reference(text):
    return play(*json.loads(text))


def reference(strategy, world_size, workload):
    """The same of a strategy that others are compared with, which runs once."""
    return _reference(json.dumps([strategy, world_size, workload]))


def prepared(strategy, world_size, workload):
    """A run after its setup, and what its first step consists of."""
    found = scenario(strategy, world_size, workload)
    run = Run(found, Slowdown(found.cluster, 0), Planner(found.cluster))
    list(run.setup())
    batches = next(found.workload.batches(world_size, found.seed, found.base))
    run.numbers.begin(0, batches)
    return run, run.program.plan(0, batches)


def read(run, plan, until=()):
    """Do what operations say, up to the first of some kind."""
    for op in plan:
        run.numbers.read(op)
        if isinstance(op, until):
            break


def difference(got, wanted):
    return max(
        float(np.abs(own[name] - weights).max())
        for own in got.replicas
        for name, weights in wanted.replicas[0].items()
        if "running" not in name and "num_batches" not in name
    )


@pytest.mark.long
@for_each("strategy", SHARDED, ids=str)
@few
@given(
    st.sampled_from([MLP, BATCH_NORM, TRANSFORMER]),
    st.sampled_from([3, 2, 5, 4, 1]),  # the first example has the first
    st.sampled_from(OPTIMIZERS),
    st.integers(1, 3),
    st.sampled_from([None, 0.05]),
)
def test_every_way_of_sharding_gives_the_parameters_that_ddp_gives(
    strategy, model, world_size, optimizer, accumulate, limit
):
    workload = {**model, "optimizer": optimizer, "microbatch": 2, "grad_accum": accumulate}
    if limit is not None:
        workload["clip_grad_norm"] = limit
    sharded = play(strategy, world_size, workload)
    plain = play("ddp", world_size, workload)
    assert difference(sharded, plain) < 5e-12  # some optimizers divide rounding errors
    assert sharded.metrics["replicas_identical"] is True
    norms = [result.metrics["grad_norm"] for result in (sharded, plain)]
    np.testing.assert_allclose(*norms, rtol=1e-10)


@for_some("strategy", SHARDED, 3, first=2, ids=str)
def test_two_ranks_add_in_one_order_so_that_all_bits_are_those_of_ddp(strategy):
    workload = {**MLP, "optimizer": OPTIMIZERS[1], "microbatch": 2, "dtype": "float32"}
    assert difference(play(strategy, 2, workload), reference("ddp", 2, workload)) == 0


def test_whole_tensors_are_updated_from_the_sums_of_ddp_bit_for_bit_on_any_ranks():
    workload = {**MLP, "optimizer": OPTIMIZERS[0], "microbatch": 2, "dtype": "float32"}
    assert difference(play("zero1", 5, workload), play("ddp", 5, workload)) == 0


@for_some("strategy", SHARDED, 3, ids=str)
def test_unequal_shards_may_be_weighted(strategy):
    workload = {**MLP, "optimizer": OPTIMIZERS[0], "global_batch": 10}
    weighted = play({**strategy, "weight_by_shard": True}, 4, workload)
    single = reference("single", 1, workload)
    assert difference(weighted, single) < 1e-12
    assert difference(play(strategy, 4, workload), single) > 1e-6


@for_some("strategy", SHARDED, 3, first=1, ids=str)
def test_synchronised_batch_norm_equals_one_device(strategy):
    workload = {**BATCH_NORM, "sync_batchnorm": True, "global_batch": 12}
    assert difference(play(strategy, 3, workload), reference("single", 1, workload)) < 1e-12


PRECISIONS = [
    {"kind": "amp", "dtype": "float16", "init_scale": 1024.0},
    {"kind": "amp", "dtype": "bfloat16"},
    {"kind": "mixed", "dtype": "bfloat16"},
    {"kind": "mixed", "dtype": "float16", "init_scale": 1024.0},
]


@pytest.mark.long
@for_each("strategy", SHARDED, ids=str)
@for_each("precision", PRECISIONS, ids=str)
def test_16_bit_training_has_the_bits_of_ddp_on_two_ranks(strategy, precision):
    workload = {**MLP, "dtype": "float32", "precision": precision, "microbatch": 4, "steps": 3}
    workload["optimizer"] = OPTIMIZERS[1]
    sharded, plain = play(strategy, 2, workload), reference("ddp", 2, workload)
    assert difference(sharded, plain) == 0
    assert sharded.metrics["loss_scale"] == plain.metrics["loss_scale"]


@for_some("strategy", SHARDED, 3, first=2, ids=str)
def test_an_inf_on_one_rank_skips_the_step_on_all(strategy):
    workload = {
        **MLP,
        "dtype": "float32",
        "precision": {"kind": "amp", "dtype": "float16", "init_scale": 1024.0},
        "microbatch": 4,
        "steps": 3,
        "inject": [{"kind": "inf", "rank": 1, "step": 2}],
    }
    sharded, plain = play(strategy, 2, workload), reference("ddp", 2, workload)
    assert sharded.metrics["skipped_steps"] == plain.metrics["skipped_steps"] == [2]
    assert sharded.metrics["replicas_identical"] is True
    assert difference(sharded, plain) == 0


UNUSED = {
    "model": {
        "kind": "sequential",
        "layers": [
            {"kind": "linear", "in_features": 4, "out_features": 3},
            {"name": "idle", "kind": "linear", "in_features": 4, "out_features": 7},
        ],
        "unused": ["idle"],
        "input_shape": [4],
    },
    "dataset": {"kind": "regression", "num_samples": 60},
}


@for_some("strategy", SHARDED, 3, first=1, ids=str)
def test_unused_parameters_stay_as_they_are(strategy):
    if strategy == {"kind": "zero1"} or "parameters_as_bucket_view" in strategy:
        strategy = {**strategy, "find_unused_parameters": True}
    workload = {**UNUSED, "optimizer": OPTIMIZERS[0], "microbatch": 2}
    plain = {"kind": "ddp", "find_unused_parameters": True}
    assert difference(play(strategy, 3, workload), play(plain, 3, workload)) < 1e-14


# Pieces are real -------------------------------------------------------------------------------


def test_a_fully_sharded_rank_has_no_weights_between_steps_but_its_pieces():
    workload = {**MLP, "optimizer": OPTIMIZERS[1], "microbatch": 2}
    run, plan = prepared("fsdp", 3, workload)
    read(run, plan)
    replicas, facts = run.numbers.replicas, run.program.facts
    assert all(not weights for weights in replicas.weights)
    elements = sum(facts.sizes.values())
    kept = [sum(p.size for p in replicas.trainer.pieces(rank).values()) for rank in range(3)]
    assert sum(kept) == elements
    assert max(kept) <= elements / 3 + len(run.program.partition.units)


@for_each("strategy", SHARDED, ids=str)
def test_optimizer_state_lies_on_its_owners_alone(strategy):
    workload = {**MLP, "optimizer": OPTIMIZERS[1], "microbatch": 2}
    run, _ = prepared(strategy, 4, workload)
    state = [
        sum(tensor.size for kept in of_rank.values() for tensor in kept.values())
        for of_rank in run.numbers.replicas.trainer._state
    ]
    copies = len(run.program.partition.ranks)
    elements = sum(run.program.facts.sizes.values())
    assert sum(state) == 2 * elements * copies  # Adam's two moments


def test_a_gather_that_is_missing_does_not_pass_unseen():
    workload = {**MLP, "optimizer": OPTIMIZERS[1], "microbatch": 2}
    run, plan = prepared("fsdp", 2, workload)
    with pytest.raises(KeyError):
        read(run, [op for op in plan if not isinstance(op, AllGather)])


def test_what_is_freed_turns_to_nan_wherever_it_is_still_seen():
    workload = {**MLP, "optimizer": OPTIMIZERS[1], "microbatch": 2}
    run, plan = prepared({"kind": "fsdp", "units": "whole"}, 2, workload)
    read(run, plan, until=Unshard)
    seen = run.numbers.replicas.weights[1]["layers.0.weight"]
    assert np.isfinite(seen).all()
    run.numbers.read(Free(0))
    assert np.isnan(seen).all()


def test_gradients_of_zero2_are_pieces_once_they_are_summed():
    workload = {**MLP, "optimizer": OPTIMIZERS[1], "microbatch": 2}
    run, plan = prepared("zero2", 3, workload)
    read(run, plan[: plan.index(Update())])
    replicas = run.numbers.replicas
    assert all(not gradients for gradients in replicas.gradients)
    pieces = replicas.shards.take_gradients()
    sizes = [sum(piece.size for piece in of_rank.values()) for of_rank in pieces]
    assert sum(sizes) == sum(run.program.facts.sizes.values())


# torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 4])
def test_zero_redundancy_optimizer_equals_torch(world_size, tmp_path):
    golden = np.load(GOLDEN / "g10_zero.npz")
    notes = json.loads((GOLDEN / "g10_zero.json").read_text())["equivalence"][f"w{world_size}"]
    names = [f"layers.{layer}.{kind}" for layer in range(3) for kind in ("weight", "bias")]
    first = {name: golden[f"init{number}"] for number, name in enumerate(names)}
    np.savez(tmp_path / "weights.npz", **first)
    np.savez(tmp_path / "data.npz", x=golden["X"], y=golden["T"])
    workload = {
        "model": {"kind": "mlp", "widths": [5, 8, 6, 2]},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "adam", "lr": 0.01},
        "microbatch": 64 // world_size,
    }
    for steps, wanted in enumerate(golden[f"zero_w{world_size}_w"], start=1):
        result = play("zero1", world_size, {**workload, "steps": steps}, tmp_path)
        for own in result.replicas:
            flat = np.concatenate([own[name].reshape(-1) for name in names])
            np.testing.assert_allclose(flat, wanted, rtol=0, atol=1e-14)
    found = scenario("zero1", world_size, {**workload, "steps": 1}, tmp_path)
    sizes = [sorted(mine.values(), reverse=True) for mine in found.program.partition.owned]
    assert sizes == notes["partition_numels"]
    assert [2 * sum(mine) for mine in sizes] == notes["adam_state_numel_per_rank"]
