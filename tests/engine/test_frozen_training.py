"""Training with frozen parameters: the numbers of one device, whoever shares the work."""

from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st
from one_batch import play, scenario

import simdp
import simdp.engine.simulate
from simdp.scenario import checked

FROZEN = ["layers.0.*", "layers.1.weight"]
LLAMA = {
    "kind": "llama",
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sequence_length": 5,
}
TEXT = {"model": LLAMA, "dataset": {"kind": "tokens", "num_samples": 60}, "steps": 2}
DECAY = {"optimizer": {"kind": "adamw", "lr": 0.1, "weight_decay": 0.3}, "epochs": None, "steps": 2}
CASES = [
    "ddp",
    {"kind": "ddp", "find_unused_parameters": True, "gradient_as_bucket_view": True},
    "apex",
    "horovod",
    "data_parallel",
    {"kind": "local_sgd", "warmup_steps": 9},
    "zero1",
    {"kind": "zero1", "communication": "reduce_scatter"},
    {"kind": "zero1", "communication": "deepspeed"},
    "zero2",
    {"kind": "zero2", "communication": "deepspeed"},
    "zero3",
    {"kind": "zero3", "param_persistence_threshold": 5, "prefetch_bucket_size": 30},
    "fsdp",
    {"kind": "fsdp", "reshard_after_forward": False, "units": "torchtitan"},
    {"kind": "fsdp", "sync": "last", "backward_prefetch": 2},
    {"kind": "hsdp", "shard_size": 1},
    "fsdp1",
    {"kind": "fsdp1", "sharding_strategy": "SHARD_GRAD_OP", "units": "whole"},
    {"kind": "fsdp1", "forward_prefetch": True, "backward_prefetch": "backward_post"},
]


def weights(strategy, world_size, **options):
    return play(strategy, world_size, **{**DECAY, **options}).replicas


@for_some("strategy", CASES, 3)
def test_every_strategy_learns_what_one_device_does_and_leaves_frozen_bits_alone(strategy):
    (alone,) = weights("single", 1, frozen=FROZEN)
    first = play("single", 1, optimizer={"kind": "sgd", "lr": 1e-300}).replicas[0]
    accumulate = {} if strategy == "data_parallel" else {"grad_accum": 2}
    for own in weights(strategy, 3, frozen=FROZEN, **accumulate):
        for name, found in own.items():
            np.testing.assert_allclose(found, alone[name], rtol=0, atol=1e-13)
            stays = name.startswith("layers.0.") or name == "layers.1.weight"
            assert np.array_equal(found, first[name]) == stays, name


NAMES = [f"layers.{number}.{kind}" for number in range(3) for kind in ("weight", "bias")]
subsets = st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=5)
ALIKE = [case for case in CASES if case != "data_parallel"]


@pytest.mark.slow
@draws(6, 12)
@given(subsets, st.sampled_from(ALIKE), st.integers(2, 4), st.integers(1, 2))
def test_any_parameters_may_be_frozen(frozen, strategy, world_size, accumulate):
    options = {"frozen": frozen, "global_batch": 24}
    (alone,) = weights("single", 1, **options)
    for own in weights(strategy, world_size, grad_accum=accumulate, **options):
        for name, found in own.items():
            np.testing.assert_allclose(found, alone[name], rtol=0, atol=1e-12)


def test_one_step_of_what_learns_is_that_of_the_whole_model():
    plain = {"optimizer": {"kind": "sgd", "lr": 0.1}, "steps": 1}
    (whole,), (some,) = (weights("single", 1, frozen=f, **plain) for f in ([], FROZEN))
    for name in ("layers.1.bias", "layers.2.weight", "layers.2.bias"):
        np.testing.assert_array_equal(some[name], whole[name])


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", pytest.param("blocks", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "frozen",
    [
        pytest.param(["*embed*", "*layers.0.*"], marks=pytest.mark.long),  # no gradient flows there
        pytest.param(["*layers.1.*"], marks=pytest.mark.long),  # gradients pass through it
        ["*norm*", "*q_proj*", "*layers.2.*", "lm_head*"],
    ],
)
def test_decoders_learn_above_below_and_around_what_is_frozen(frozen, recompute):
    options = {**TEXT, "frozen": frozen, "recompute": recompute}
    (alone,) = weights("single", 1, **options)
    for strategy in ("ddp", "fsdp", "fsdp1", "zero2", "zero3"):
        for own in weights(strategy, 2, **options):
            for name, found in own.items():
                np.testing.assert_allclose(found, alone[name], rtol=0, atol=1e-12)


def test_averaged_weights_keep_frozen_bits():
    first = weights("single", 1, steps=1, optimizer={"kind": "sgd", "lr": 1e-300})[0]
    strategy = {"kind": "local_sgd", "local_steps": 1}
    for own in weights(strategy, 3, frozen=FROZEN, steps=3):
        np.testing.assert_array_equal(own["layers.0.weight"], first["layers.0.weight"])


@for_each("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_a_run_that_stopped_goes_on_with_frozen_weights_and_keeps_no_state_of_theirs(strategy):
    chosen = checked(scenario(strategy, 2, **{**DECAY, "frozen": FROZEN, "steps": 3}), Path())
    past = simdp.engine.simulate.simulate(chosen, stop_after=2, keep_state=True).state
    held = {key for key in past.arrays if key.endswith("layers.0.weight")}
    assert held == {"0/weights/layers.0.weight"}
    again = simdp.engine.simulate.simulate(chosen, resume=past).replicas
    for own, whole in zip(again, simdp.simulate(chosen).replicas, strict=True):
        for name, found in own.items():
            np.testing.assert_array_equal(found, whole[name])
