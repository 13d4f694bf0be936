"""Weights in 4 bits: what is stored and sent of them, what unpacking costs, what is refused."""

from pathlib import Path

import pytest
from every_strategy import launches, run_of
from for_each import for_each
from small_scenario import FAST

from simdp.scenario import checked
from simdp.workload.finetuning import backward_kernels
from simdp.workload.layers.base import Kernel
from simdp.workload.layers.linear import QuantizedLinear
from simdp.workload.transforms import stored_weights

LLAMA = {
    "kind": "llama",
    "vocab_size": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "sequence_length": 8,
}
LORA = {"rank": 2, "targets": ["q_proj"]}
MIXED = {"kind": "mixed", "dtype": "bfloat16"}
PACKED = {"quantized": {"targets": ["*_proj"]}, "lora": LORA}
ELEMENTS = 4 * 64 * 64 + 3 * 64 * 128
"""Of the weights of a block that are in 4 bits."""


def scenario(strategy="ddp", **workload):
    raw = {
        "cluster": {**FAST, "world_size": 2},
        "workload": {"model": LLAMA, "microbatch": 2, "optimizer": "adamw", **workload},
        "strategy": strategy,
        "numerics": False,
    }
    return checked(raw, Path())


def test_weights_are_packed_into_the_dtype_of_the_others():
    for options, itemsize in (({}, 4), ({"precision": MIXED}, 2)):
        graph = scenario(**PACKED, **options).workload.graph
        shapes = {p.name: p.shape for p in graph.parameters}
        assert shapes["model.layers.0.mlp.up_proj.weight"] == (64 * 128 // 2 // itemsize, 1)
        assert shapes["model.layers.0.self_attn.q_proj.lora_A.default.weight"] == (2, 64)
        assert shapes["lm_head.weight"] == (16, 64)
    assert len(stored_weights(graph)) == 14


def test_the_dtype_that_a_strategy_asks_for_is_that_of_the_packed_weights():
    chosen = scenario({"kind": "fsdp", "param_dtype": "bfloat16"}, **PACKED)
    weight = next(p for p in chosen.workload.graph.parameters if p.name.endswith("up_proj.weight"))
    assert weight.shape == (64 * 128 // 4, 1)


ZERO3 = {"kind": "zero3", "param_persistence_threshold": 0, "prefetch_bucket_size": 0}


@for_each("strategy", ["fsdp", "fsdp1", ZERO3])
def test_half_a_byte_is_gathered_for_each_element(strategy):
    def gathered(**options):
        run = run_of(scenario(strategy, precision=MIXED, lora=LORA, **options))
        found = [op for op in launches(run) if op.step >= 0]
        return sum(op.nbytes for op in found), len(found)

    (packed, times), (whole, as_often) = gathered(quantized=PACKED["quantized"]), gathered()
    assert times == as_often
    rounds = (whole - packed) / (ELEMENTS * 2 * (2 - 0.5))
    if strategy != ZERO3:  # which leaves layers of the first block alone in backward
        assert rounds == pytest.approx(round(rounds))
    assert rounds >= 2


def layer(**options):
    settings = {"storage_itemsize": 2, "block": 64, "double": True, "bias": False, **options}
    return QuantizedLinear(name="q", in_features=64, out_features=128, **settings)


def test_unpacking_reads_half_a_byte_and_writes_what_the_product_reads():
    scales, mean, weight, product = layer().forward_cost([(8, 64)], 2)
    assert scales == Kernel(0.0, 0.0, 128 * 5)
    assert mean == Kernel(0.0, 0.0, 128 * 8)
    assert weight == Kernel(0.0, 0.0, 64 * 128 * 2.5 + 128 * 4)
    assert layer(double=False).forward_cost([(8, 64)], 2) == [weight, product]
    assert layer().model_flops([(8, 64)]) == product.flops == 8 * 2 * 64 * 128


def test_backward_unpacks_again_where_a_gradient_goes_on():
    graph = scenario(**PACKED, precision=MIXED).workload.graph
    calls = [call.layer.name for call in graph.calls]
    down = calls.index("model.layers.0.mlp.down_proj")
    found = backward_kernels(graph, down, [(8, 128)], 2)
    assert len(found) == 4
    assert found[-1].flops == 8 * 2 * 64 * 128
    up = calls.index("model.layers.0.self_attn.v_proj")  # nothing is learned below it
    assert backward_kernels(graph, up, [(8, 64)], 2) == []


def test_scales_take_an_eighth_of_a_bit_or_half_a_bit():
    large = layer().model_copy(update={"in_features": 4096, "out_features": 4096})
    assert 8 * large.constant_nbytes / 4096**2 == pytest.approx(0.127, abs=5e-4)
    single = large.model_copy(update={"double": False})
    assert 8 * single.constant_nbytes / 4096**2 == 0.5


def test_they_lie_on_every_rank():
    run = run_of(scenario("fsdp", **PACKED, precision=MIXED))
    plain = run_of(scenario("fsdp", lora=LORA, precision=MIXED))
    more = run.memory.footprint.buffers() - plain.memory.footprint.buffers()
    assert more >= 2 * ELEMENTS / 64


@for_each(
    ("given", "line"),
    [
        (
            {"quantized": {"targets": ["0"]}},
            "workload.quantized: layers.0.weight is trainable, but weights in 4 bits are frozen; "
            "list it in frozen, or add lora.",
        ),
        (
            {"quantized": {"targets": ["fc"]}, "lora": {"targets": ["0"]}},
            "workload.quantized: targets: no linear layer is called 'fc'; known: layers.0.",
        ),
        (
            {"quantized": {"targets": ["0"]}, "mode": "inference"},
            "workload.quantized: mode: inference trains nothing; leave this out.",
        ),
        (
            {"quantized": {"targets": ["0"]}, "model": {"kind": "profile", "path": "x.csv"}},
            "workload.quantized: the model profile has times but no numbers; leave this out.",
        ),
        (
            {"quantized": {"targets": ["0"]}, "weights": "weights.npz"},
            "workload.weights: weights in 4 bits have times but no numbers; leave this out.",
        ),
    ],
)
def test_what_cannot_be_quantized_is_refused(refuse, given, line):
    found = refuse({f"workload.{key}": value for key, value in given.items()})
    assert any(said.startswith(line) for said in found), found


def test_numbers_are_refused(refuse):
    given = {"workload.quantized.targets": ["0"], "workload.lora.targets": ["0"], "numerics": True}
    assert refuse(given) == [
        "numerics: weights in 4 bits (workload.quantized) have times but no numbers; leave this "
        "out, or write numerics: false."
    ]


def test_runs_without_numbers_where_nobody_says(load):
    found = load({"workload.quantized.targets": ["0"], "workload.lora.targets": ["0"]})
    assert not found.numerics
