"""What holds exactly, whatever the model, the number of ranks and the stragglers."""

from pathlib import Path

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.workload.models import AnyModel
from simdp.workload.weights import as_torch

pytestmark = pytest.mark.slow

MLP = {"model": {"kind": "mlp", "widths": [5, 7, 3], "activation": "tanh"}}
GELU = {"model": {"kind": "mlp", "widths": [4, 6, 6, 2], "activation": "gelu"}}
EINSUM = {"model": {"kind": "einsum", "equation": "bd,df->bf", "d": 6, "f": 4}}
CONVOLUTIONS = {
    "model": {
        "kind": "sequential",
        "input_shape": [2, 5, 5],
        "layers": [
            {"name": "conv", "kind": "conv2d", "in_channels": 2, "out_channels": 3}
            | {"kernel_size": 3, "padding": 1},
            "relu",
            {"kind": "max_pool2d", "kernel_size": 2},
            "flatten",
            {"name": "fc", "kind": "linear", "in_features": 12, "out_features": 3},
        ],
    }
}
SKIPS = {
    "model": {
        "kind": "sequential",
        "input_shape": [2, 4, 4],
        "layers": [
            {"name": "down", "kind": "conv2d", "in_channels": 2, "out_channels": 4}
            | {"kernel_size": 2, "stride": 2},
            {"kind": "group_norm", "num_groups": 2, "num_channels": 4},
            {"name": "slope", "kind": "prelu"},
            {"name": "up", "kind": "conv_transpose2d", "in_channels": 4, "out_channels": 3}
            | {"kernel_size": 2, "stride": 2},
            {"name": "both", "kind": "concat", "inputs": ["up", "input"]},
            {"name": "out", "kind": "conv2d", "in_channels": 5, "out_channels": 2}
            | {"kernel_size": 1},
            {"kind": "add", "inputs": ["out", "input"]},
        ],
    },
    "loss": "bce_with_logits",
}
RECURRENT = {
    "model": {
        "kind": "sequential",
        "input_shape": [4, 3],
        "layers": [
            {"name": "lstm", "kind": "lstm", "input_size": 3, "hidden_size": 4}
            | {"num_layers": 2, "dropout": 0.3, "bidirectional": True},
            "last_token",
            {"name": "fc", "kind": "linear", "in_features": 8, "out_features": 3},
            {"kind": "log_softmax"},
        ],
    },
    "loss": {"kind": "kl_div", "reduction": "batchmean"},
}
TRANSFORMER = {
    "model": {
        "kind": "transformer",
        "task": "language_model",
        "vocab_size": 11,
        "d_model": 8,
        "nhead": 2,
        "num_layers": 1,
        "dim_feedforward": 12,
        "dropout": 0.3,  # random, but its stream belongs to the sample
        "sequence_length": 6,
    },
    "dataset": "tokens",
}
DECODER = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_dropout": 0.3,
    "sequence_length": 6,
}
LLAMA = {"model": {"kind": "llama", **DECODER}, "dataset": "tokens"}
QWEN2 = {
    "model": {"kind": "qwen2", **DECODER, "tie_word_embeddings": True},
    "dataset": "tokens",
    "attention": "eager",
}
MISTRAL = {"model": {"kind": "mistral", **DECODER, "sliding_window": 3}, "dataset": "tokens"}
MPT = {
    "model": {
        "kind": "mpt",
        "vocab_size": 11,
        "d_model": 6,
        "n_heads": 3,
        "n_layers": 1,
        "max_seq_len": 6,
        "resid_pdrop": 0.2,
    },
    "dataset": "tokens",
}
GPT_NEOX = {
    "model": {
        "kind": "gpt_neox",
        "vocab_size": 11,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 6,
    },
    "dataset": "tokens",
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
    }
}

DECODERS = [LLAMA, QWEN2, MISTRAL, MPT, GPT_NEOX]

models = st.sampled_from(
    [MLP, GELU, EINSUM, CONVOLUTIONS, SKIPS, RECURRENT, TRANSFORMER, *DECODERS]
)
optimizers = st.sampled_from(
    [
        {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        {"kind": "sgd", "lr": 0.05, "weight_decay": 0.1},
        # The gradient of an attention's key bias is zero but for rounding; a larger eps keeps
        # Adagrad from dividing that by itself.
        {"kind": "adagrad", "lr": 0.1, "eps": 1e-3},
    ]
)
world_sizes = st.integers(2, 6)
seeds = st.integers(0, 2**16)
few = draws(3, 6)


@st.composite
def stragglers(draw, world_size):
    """Any mix of slow ranks, jitter and pauses."""
    ranks = st.integers(0, world_size - 1)
    slow = st.fixed_dictionaries(
        {"kind": st.just("slow_rank"), "rank": ranks, "factor": st.floats(1, 4)}
    )
    jitter = st.fixed_dictionaries({"kind": st.just("lognormal"), "sigma": st.floats(0, 1)})
    pause = st.fixed_dictionaries(
        {"kind": st.just("pause"), "rank": ranks, "every": st.integers(1, 3)}
        | {"duration": st.just("3 ms")}
    )
    return draw(st.lists(slow | jitter | pause, max_size=3))


def play(world_size, seed, workload, strategy=None, stragglers=(), **more):
    """A small scenario in float64; every model has as many samples as it needs."""
    raw = {
        "seed": seed,
        "cluster": {
            "world_size": world_size,
            **FAST,
            "stragglers": list(stragglers),
        },
        "workload": {
            "dataset": "regression",
            "dtype": "float64",
            "shuffle": True,
            "optimizer": {"kind": "sgd", "lr": 0.1},
            **workload,
        },
        "strategy": strategy or ("ddp" if world_size > 1 else "single"),
        **more,
    }
    dataset = raw["workload"]["dataset"]
    num_samples = {"num_samples": 120}
    raw["workload"]["dataset"] = {**num_samples, "kind": dataset}
    return simdp.simulate(checked(raw, Path()))


def assert_close(got, wanted, tolerance=1e-12):
    for own in got.replicas:
        for name, array in wanted.replicas[0].items():
            np.testing.assert_allclose(own[name], array, rtol=0, atol=tolerance, err_msg=name)


def difference(got, wanted):
    first = wanted.replicas[0]
    return max(np.abs(got.replicas[0][name] - first[name]).max() for name in first)


@few
@given(models, world_sizes, st.integers(1, 4), optimizers, seeds, st.data())
def test_equal_shards_equal_one_device(model, world_size, per_rank, optimizer, seed, data):
    workload = {**model, "optimizer": optimizer, "global_batch": world_size * per_rank, "steps": 3}
    slow = data.draw(stragglers(world_size))
    many = play(world_size, seed, workload, stragglers=slow)
    one = play(1, seed, workload)
    assert_close(many, one)
    assert many.metrics["replicas_identical"]
    np.testing.assert_allclose(many.metrics["loss"], one.metrics["loss"], rtol=1e-12)
    np.testing.assert_allclose(many.metrics["grad_norm"], one.metrics["grad_norm"], rtol=1e-10)


@few
@given(models, world_sizes, st.integers(1, 3), seeds, st.data())
def test_unequal_shards_equal_one_device_only_with_weights(model, world_size, chunk, seed, data):
    batch = chunk * world_size - data.draw(st.integers(1, chunk * world_size - world_size or 1))
    batch = max(batch, world_size)
    workload = {**model, "global_batch": batch, "steps": 2}
    slow = data.draw(stragglers(world_size))
    weighted = {"kind": "ddp", "weight_by_shard": True}
    one = play(1, seed, workload)
    assert_close(play(world_size, seed, workload, weighted, slow), one)
    if batch % world_size:
        plain = play(world_size, seed, workload)
        assert difference(plain, one) > 1e-9


@few
@given(world_sizes, st.integers(2, 4), seeds, st.data())
def test_batch_norm_breaks_the_equality_and_synchronising_restores_it(
    world_size, per_rank, seed, data
):
    workload = {**BATCH_NORM, "global_batch": world_size * per_rank, "steps": 3}
    slow = data.draw(stragglers(world_size))
    one = play(1, seed, workload)
    local = play(world_size, seed, workload, stragglers=slow)
    assert difference(local, one) > 1e-6
    assert_close(play(world_size, seed, {**workload, "sync_batchnorm": True}, None, slow), one)


@few
@given(world_sizes, seeds)
def test_synchronised_batch_norm_weighs_unequal_shards(world_size, seed):
    workload = {**BATCH_NORM, "global_batch": 3 * world_size - 1, "steps": 2}
    workload["sync_batchnorm"] = True
    weighted = {"kind": "ddp", "weight_by_shard": True}
    assert_close(play(world_size, seed, workload, weighted), play(1, seed, workload))


@few
@given(models, world_sizes, st.integers(1, 4), optimizers, seeds, st.data())
def test_accumulated_micro_steps_equal_one_large_batch(
    model, world_size, accumulate, optimizer, seed, data
):
    batch = 2 * world_size * accumulate
    workload = {**model, "optimizer": optimizer, "global_batch": batch, "steps": 2}
    slow = data.draw(stragglers(world_size))
    whole = play(world_size, seed, workload)
    cut = play(world_size, seed, {**workload, "grad_accum": accumulate}, stragglers=slow)
    assert_close(cut, whole)
    sent = [r.metrics["bytes_sent_per_rank"] for r in (whole, cut)]
    assert sent[0] == sent[1]  # one reduction, whatever the number of micro-steps


@few
@given(models, world_sizes, st.floats(0.01, 10), seeds, st.data())
def test_clipping_after_the_reduction_equals_one_device(model, world_size, limit, seed, data):
    workload = {**model, "clip_grad_norm": limit, "global_batch": 2 * world_size, "steps": 2}
    slow = data.draw(stragglers(world_size))
    assert_close(play(world_size, seed, workload, stragglers=slow), play(1, seed, workload))


@few
@given(models, st.integers(3, 6), seeds)
def test_ring_and_tree_differ_in_bits_but_not_beyond_rounding(
    tmp_path_factory, model, world_size, seed
):
    # torch draws other weights in float64 than in float32: both start from the same file
    start = tmp_path_factory.mktemp("start") / "w.npz"
    np.savez(start, **as_torch(TypeAdapter(AnyModel).validate_python(model["model"]), "float64", 0))
    workload = {**model, "global_batch": 2 * world_size, "steps": 1, "dtype": "float32"}
    workload["weights"] = str(start)
    exact = play(world_size, seed, {**workload, "dtype": "float64"})
    results = []
    for algorithm in ("ring", "tree"):
        run = play(world_size, seed, workload, collectives={"all_reduce": algorithm})
        assert run.metrics["replicas_identical"]
        assert_close(run, exact, tolerance=1e-5)
        results.append(run)
    # n - 1 additions of n terms: each rounds by half a unit in the last place at most.
    step = {
        name: np.abs(a - b)
        for (name, a), b in zip(
            *((results[0].replicas[0].items(), results[1].replicas[0].values())), strict=True
        )
    }
    for name, gap in step.items():
        scale = np.abs(results[0].replicas[0][name]).max() + 1
        assert gap.max() <= 2 * world_size * np.finfo(np.float32).eps * scale, name


@few
@given(world_sizes, st.sampled_from(["inf", "nan"]), st.integers(1, 4), seeds, st.data())
def test_a_skipped_step_is_skipped_on_every_rank(world_size, kind, step, seed, data):
    rank = data.draw(st.integers(0, world_size - 1))
    precision = {"kind": "amp", "dtype": "bfloat16", "init_scale": 256}
    workload = {**MLP, "precision": precision, "dtype": "float32", "steps": 4}
    workload["microbatch"] = 2
    slow = data.draw(stragglers(world_size))
    fault = {"inject": [{"kind": kind, "rank": rank, "step": step}]}
    skipped = play(world_size, seed, {**workload, **fault}, stragglers=slow)
    assert skipped.metrics["skipped_steps"] == [step]
    assert skipped.metrics["replicas_identical"]
    scale = skipped.metrics["loss_scale"]
    assert scale == [256.0] * step + [128.0] * (4 - step)
    assert all(np.isfinite(own[name]).all() for own in skipped.replicas for name in own)
    # The step before and the one after are as in a run that never had it.
    assert skipped.metrics["loss"][:step] == play(world_size, seed, workload).metrics["loss"][:step]


@few
@given(models, world_sizes, seeds, st.data())
def test_stragglers_change_when_but_never_what(model, world_size, seed, data):
    workload = {**model, "microbatch": 3, "steps": 2, "dtype": "float32"}
    plain = play(world_size, seed, workload)
    slow = play(world_size, seed, workload, stragglers=data.draw(stragglers(world_size)))
    for own, other in zip(plain.replicas, slow.replicas, strict=True):
        assert all(own[name].tobytes() == other[name].tobytes() for name in own)
    assert slow.metrics["loss"] == plain.metrics["loss"]
