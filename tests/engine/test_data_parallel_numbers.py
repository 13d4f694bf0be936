"""torch.nn.DataParallel in numbers: what it learns is what one device does."""

import json
from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from one_batch import play, scenario
from test_identities import BATCH_NORM, CONVOLUTIONS, EINSUM, GELU, MLP, TRANSFORMER

from simdp.engine.replicas import Replicas
from simdp.engine.samples import BatchSamples, pieces
from simdp.engine.shards import Scattered
from simdp.scenario import checked

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "g01_scatter.json").read_text())
TOKENS = {
    "model": {
        "kind": "transformer",
        "task": "seq2seq",
        "vocab_size": 11,
        "tgt_vocab_size": 9,
        "d_model": 8,
        "nhead": 2,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "dim_feedforward": 12,
        "dropout": 0.2,
        "sequence_length": 7,
        "pad_id": 0,
    },
    "dataset": {"kind": "tokens", "num_samples": 40, "min_length": 2},
    "loss": {"kind": "cross_entropy", "ignore_index": 0},
}
DATA = {"dataset": {"kind": "regression", "num_samples": 40}}
MODELS = [
    {**DATA, **MLP},
    {**DATA, **GELU},
    {**DATA, **EINSUM},
    {**DATA, **CONVOLUTIONS},
    {**TRANSFORMER, "dataset": {"kind": "tokens", "num_samples": 40}},
    TOKENS,
]
few = draws(4, 8)


def assert_same_weights(one, other, atol=1e-12):
    for name, weights in one.replicas[0].items():
        np.testing.assert_allclose(other.replicas[0][name], weights, rtol=0, atol=atol)


# Scatter -----------------------------------------------------------------------------------------


@pytest.mark.slow
@for_each("batch", sorted(map(int, GOLDEN["sizes"]))[::7])
def test_pieces_are_those_of_torch(batch):
    for world_size, sizes in GOLDEN["sizes"][str(batch)].items():
        more = {"global_batch": batch, "dataset": {"kind": "regression", "num_samples": batch}}
        raw = scenario("data_parallel", int(world_size), **more)
        (step,) = pieces(checked(raw, Path()))
        assert [piece.inputs[0] for piece in step if piece.inputs] == [(n, 5) for n in sizes]
        assert [piece.output[0] for piece in step] == sizes + [0] * (int(world_size) - len(sizes))


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(
    st.sampled_from(MODELS),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from([{}, {"output_device": 0}, {"gil": 0.5}]),
    st.sampled_from([None, 2]),
    st.sampled_from([None, 0.5]),
)
def test_it_learns_what_one_device_does(model, world_size, batch, options, accumulate, clip):
    more = {**model, "global_batch": batch, "steps": 2, "epochs": None, "clip_grad_norm": clip}
    more["optimizer"] = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
    if model is not TOKENS:  # where tokens are ignored, micro-steps of other samples weigh others
        more["grad_accum"] = accumulate
    alone = play("single", 1, **more)
    together = play({"kind": "data_parallel", **options}, world_size, **more)
    assert together.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-11)
    assert together.metrics["grad_norm"] == pytest.approx(alone.metrics["grad_norm"], rel=1e-9)
    assert_same_weights(alone, together)


@pytest.mark.slow
@few
@given(
    st.sampled_from(MODELS[:5]), st.integers(1, 5), st.integers(1, 4), st.sampled_from([None, 2])
)
def test_a_loss_in_forward_is_the_same_where_pieces_are_equal(model, world_size, each, accumulate):
    if accumulate:
        each *= accumulate
    more = {**model, "global_batch": each * world_size, "steps": 2, "epochs": None}
    more |= {"grad_accum": accumulate, "optimizer": {"kind": "sgd", "lr": 0.1}}
    more["drop_last"] = True  # a smaller batch at an epoch's end may have unequal pieces
    at_the_end = play("data_parallel", world_size, **more)
    inside = play({"kind": "data_parallel", "loss_in_forward": True}, world_size, **more)
    assert inside.metrics["loss"] == pytest.approx(at_the_end.metrics["loss"], rel=1e-12)
    assert_same_weights(at_the_end, inside)


def test_a_loss_in_forward_is_another_one_where_pieces_differ():
    """30 samples over 8 devices: the last one's two count twice as much as any four others'."""
    plain, inside = (
        play({"kind": "data_parallel", "loss_in_forward": x}, 8, steps=1, epochs=None)
        for x in (False, True)
    )
    each = inside.metrics["loss_per_rank"][0]
    assert inside.metrics["loss"][0] == pytest.approx(np.mean(each), rel=1e-14)
    weighted = np.average(each, weights=[4] * 7 + [2])
    assert plain.metrics["loss"][0] == pytest.approx(weighted, rel=1e-14)
    assert abs(plain.metrics["loss"][0] - inside.metrics["loss"][0]) > 1e-3
    difference = plain.replicas[0]["layers.0.weight"] - inside.replicas[0]["layers.0.weight"]
    assert np.abs(difference).max() > 1e-4


def test_the_loss_is_that_of_the_output_device_alone():
    result = play({"kind": "data_parallel", "output_device": 2}, 4)
    for loss, per_rank in zip(result.metrics["loss"], result.metrics["loss_per_rank"], strict=True):
        assert per_rank == [None, None, loss, None]


def test_there_is_one_model_and_it_stands_for_every_rank():
    result = play("data_parallel", 3)
    assert result.metrics["replicas_identical"] is None
    assert all(replica is result.replicas[0] for replica in result.replicas)
    assert list(result.weights()) == list(result.replicas[0])


def test_running_statistics_are_those_of_device_0s_pieces():
    """What the other replicas' batch norms learn is lost."""
    more = {**BATCH_NORM, "global_batch": 12, "optimizer": {"kind": "none"}}
    more["dataset"] = {"kind": "regression", "num_samples": 24}
    result = play("data_parallel", 3, **more)
    raw = scenario("single", 1, **more)
    point = checked(raw, Path())
    inputs = BatchSamples(point).arrays["x"]
    weights = Replicas(point, BatchSamples(point)).weights[0]
    mean = np.zeros(5)
    for begin in (0, 12):
        hidden = inputs[begin : begin + 4] @ weights["l1.weight"].T + weights["l1.bias"]
        mean += 0.1 * (hidden.mean(axis=0) - mean)
    np.testing.assert_allclose(result.replicas[0]["bn.running_mean"], mean, rtol=1e-12)
    assert result.replicas[0]["bn.num_batches_tracked"] == 2


def test_an_overflow_in_any_piece_skips_the_step_of_the_only_optimizer():
    more = {
        "dtype": "float32",
        "precision": {"kind": "amp", "dtype": "float16"},
        "inject": [{"kind": "inf", "rank": 2, "step": 2}],
        "global_batch": 15,
    }
    skipped = play("data_parallel", 3, **more)
    assert skipped.metrics["skipped_steps"] == [2]
    assert skipped.metrics["loss_scale"] == [65536.0, 65536.0, 32768.0, 32768.0]
    timed = play("data_parallel", 3, numerics=False, **more)
    assert timed.metrics["skipped_steps"] == [2]


def test_a_fault_on_a_device_without_samples_hurts_nobody():
    more = {
        "dtype": "float32",
        "precision": {"kind": "amp", "dtype": "float16"},
        "inject": [{"kind": "inf", "rank": 3, "step": 1}],
        "global_batch": 3,
        "steps": 2,
        "epochs": None,
    }
    for numerics in (True, False):
        assert play("data_parallel", 4, numerics=numerics, **more).metrics["skipped_steps"] == []


def test_sixteen_bit_weights_train_as_on_one_device():
    more = {"dtype": "float32", "precision": {"kind": "mixed"}, "optimizer": {"kind": "adam"}}
    alone, together = play("single", 1, **more), play("data_parallel", 4, **more)
    assert together.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-2)
    assert_same_weights(alone, together, atol=2e-2)


def test_parameters_that_nothing_uses_get_a_gradient_of_zero():
    """One function copies the model out; its backward takes zeros for what was not used."""
    model = {
        "kind": "sequential",
        "layers": [{"name": "l1", "kind": "linear", "in_features": 5, "out_features": 2}],
    }
    point = checked(scenario("data_parallel", 2, model=model), Path())
    replicas = Replicas(point, BatchSamples(point))
    replicas.shapes["idle"] = (3,)
    replicas.weights[0]["idle"] = replicas.weights[1]["idle"] = np.ones(3)
    scattered = Scattered(replicas)
    scattered.forward([np.arange(4), np.arange(4, 6)], keeps=True)
    scattered.loss_of_all(1.0)
    scattered.backward()
    assert [gradients["idle"].tolist() for gradients in replicas.gradients] == [[0, 0, 0]] * 2


def test_targets_that_do_not_count_leave_nothing_to_learn():
    more = {**TOKENS, "global_batch": 8, "steps": 1, "epochs": None}
    for loss_in_forward in (False, True):
        strategy = {"kind": "data_parallel", "loss_in_forward": loss_in_forward}
        point = checked(scenario(strategy, 2, **more), Path())
        replicas = Replicas(point, BatchSamples(point))
        replicas.samples.arrays["y"][:4] = 0  # those of device 0
        scattered = Scattered(replicas)
        scattered.forward([np.arange(4), np.arange(4, 8)], keeps=True)
        if loss_in_forward:
            losses = scattered.loss_of_each(1.0)
            assert np.isnan(losses[0])
            assert np.isfinite(losses[1])
            scattered.backward()
            assert not any(g.any() for g in replicas.gradients[0].values())
            assert any(g.any() for g in replicas.gradients[1].values())
        replicas.samples.arrays["y"][:8] = 0
        scattered.forward([np.arange(4), np.arange(4, 8)], keeps=True)
        assert np.isnan(scattered.loss_of_all(1.0))
        scattered.backward()
        assert not any(g.any() for found in replicas.gradients for g in found.values())


@for_each("loss_in_forward", [False, True])
def test_stragglers_and_the_lock_change_no_bit(loss_in_forward):
    strategy = {"kind": "data_parallel", "loss_in_forward": loss_in_forward}
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 3.0}]}
    steady = play(strategy, 4)
    delayed = play({**strategy, "gil": 0.0}, 4, cluster=slow)
    for name, weights in steady.replicas[0].items():
        assert weights.tobytes() == delayed.replicas[0][name].tobytes()
