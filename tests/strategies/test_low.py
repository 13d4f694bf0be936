"""Low: the dtypes that a strategy itself lets layers compute in, and outputs have."""

from pathlib import Path

import pytest
from recorded_mlp import trained

import simdp
from simdp.engine.simulate import memory_needed
from simdp.errors import ScenarioError
from simdp.scenario import checked

TOKENS, VOCABULARY = 64, 5000


def scenario(output_dtype, param_dtype="bfloat16", numerics=False):
    model = {
        "kind": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": TOKENS,
        "sequence_length": TOKENS,
    }
    strategy = {"kind": "fsdp", "param_dtype": param_dtype, "output_dtype": output_dtype}
    raw = {
        "cluster": {"machine": "dgx-h100", "world_size": 2},
        "workload": {
            "model": model,
            "dataset": {"kind": "tokens", "num_samples": 16},
            "optimizer": "adamw",
            "microbatch": 4,
            "steps": 2,
        },
        "strategy": {key: value for key, value in strategy.items() if value is not None},
        "numerics": numerics,
    }
    return checked(raw, Path())


def test_outputs_that_are_widened_stay_in_32_bits_to_the_steps_end():
    narrow, wide = (memory_needed(scenario(dtype)).peak.max() for dtype in (None, "float32"))
    assert wide - narrow == 4 * TOKENS * VOCABULARY * (4 - 2)
    assert memory_needed(scenario("bfloat16")).peak.max() == narrow


def test_to_widen_outputs_takes_time_and_changes_no_number():
    narrow, wide = (simdp.simulate(scenario(dtype)).metrics for dtype in (None, "float32"))
    moved = 4 * TOKENS * VOCABULARY * (4 + 2)
    launch_and_more = wide["step_time_s"] - narrow["step_time_s"]
    assert launch_and_more >= 2 * moved / 3.35e12
    losses = [
        simdp.simulate(scenario(dtype, numerics=True)).metrics["loss"]
        for dtype in (None, "float32")
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("param_dtype", "line"),
    [
        ("bfloat16", "layers compute in bfloat16; write float32 or bfloat16, or leave it out."),
        (None, "layers compute in float32; write float32, or leave it out."),
    ],
)
def test_outputs_of_another_16_bits_are_refused(param_dtype, line):
    with pytest.raises(ScenarioError) as caught:
        scenario("float16", param_dtype)
    assert caught.value.problems == [f"strategy.output_dtype: float16, but {line}"]


FLOAT16_LOSSES = [1.194318413734436, 0.884888917207718, 1.232884675264358, 0.856126755475998]
"""Of torch 2.14's fully_shard and FullyShardedDataParallel, float16, on two gloo ranks."""


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "fsdp", "units": ["a", "b", "c"], "param_dtype": "float16"},
        {"kind": "hsdp", "units": ["a", "b", "c"], "param_dtype": "float16", "shard_size": 2},
        {"kind": "fsdp1", "units": ["a", "b", "c"], "param_dtype": "float16"},
        {"kind": "ddp", "mixed_precision": {"param_dtype": "float16"}},
    ],
)
def test_float16_of_a_strategy_scales_no_loss(strategy):
    result = trained(strategy, 2, scale=3.0)
    assert result.metrics["loss"] == pytest.approx(FLOAT16_LOSSES, rel=1e-6)
    assert result.metrics["loss_scale"] is None
    assert result.metrics["skipped_steps"] is None


def test_float16_of_a_strategy_beside_mixed_has_the_scaler_of_mixed():
    strategy = {"kind": "fsdp", "units": ["a", "b", "c"], "param_dtype": "float16"}
    options = {"precision": {"kind": "mixed", "dtype": "float16", "init_scale": 1024}}
    assert trained(strategy, 2, **options).metrics["loss_scale"] == [1024.0] * 4
