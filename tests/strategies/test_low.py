"""Low: the dtypes that a strategy itself lets layers compute in, and outputs have."""

from pathlib import Path

import pytest
from for_each import for_each
from recorded_mlp import INSIDE, LAYERS, trained

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


@pytest.mark.long
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


@for_each(
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


@for_each(
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


# Outputs of nested units -------------------------------------------------------------------------

WIDE = {"kind": "fsdp", "param_dtype": "bfloat16", "reduce_dtype": "float32"}
WIDE_LOSSES = [0.7813951373100281, 1.0203804969787598, 1.1681469678878784, 0.8091369867324829]
"""Of torch 2.14's fully_shard on two gloo ranks, all of whose units have output_dtype float32: gelu
and tanh run between them."""
WIDE_SUMS = {
    "a.weight": -0.9812087710015476,
    "a.bias": 0.3042932078242302,
    "b.weight": -1.2341251249599736,
    "b.bias": -0.18004287383519113,
    "c.weight": -1.5442304611206055,
    "c.bias": 0.09872151538729668,
}
"""Of the elements of each weight after four steps."""
ONE_WIDE = 0.7813781499862671
"""The first loss where the activations between a and b run in a unit with both."""
NARROW = 0.781303882598877
"""The first loss without output_dtype."""


def wide(units, layers=LAYERS, **strategy):
    strategy = {**WIDE, "units": units, "output_dtype": "float32", **strategy}
    return trained(strategy, 2, layers, between=("gelu", "tanh"))


@for_each(
    ("units", "layers", "strategy"),
    [
        (["a", "b", "c"], LAYERS, {}),
        (["a", "b", "c"], LAYERS, {"kind": "hsdp", "shard_size": 2}),
        (["e.a", "e.b", "c"], INSIDE, {}),
    ],
)
def test_what_runs_between_units_with_wide_outputs_is_torchs(units, layers, strategy):
    result = wide(units, layers, **strategy)
    assert result.metrics["loss"] == pytest.approx(WIDE_LOSSES, rel=3e-7)
    for name, array in result.replicas[0].items():
        found = float(array.astype("float64").sum())
        assert found == pytest.approx(WIDE_SUMS[name.removeprefix("e.")], abs=1e-7)


def test_inside_a_unit_nothing_is_widened():
    assert wide(["e", "c"], INSIDE).metrics["loss"][0] == pytest.approx(ONE_WIDE, rel=1e-7)


@for_each(("units", "layers"), [(["a", "b"], LAYERS), (["e.a", "c"], INSIDE)])
def test_a_policy_that_torch_could_not_give_units_is_the_roots_alone(units, layers):
    """Linear layers outside of the units would take 32-bit values with 16-bit weights."""
    assert wide(units, layers).metrics["loss"][0] == pytest.approx(NARROW, rel=1e-7)


def test_a_policy_of_the_root_alone_is_written_as_such():
    alone = wide(["a", "b", "c"], output_dtype_at="root").metrics["loss"]
    assert alone[0] == pytest.approx(NARROW, rel=1e-7)
    explicit = wide(["a", "b", "c"], output_dtype_at="units").metrics["loss"]
    assert explicit == pytest.approx(WIDE_LOSSES, rel=3e-7)


@for_each(
    ("options", "line"),
    [
        (
            {"units": ["a", "b"], "output_dtype": "float32", "output_dtype_at": "units"},
            "output_dtype_at: units, but c is the root's: torch fails where its bfloat16 weights "
            "or inputs meet float32 ones; name its module in units, or write root.",
        ),
        (
            {"units": ["a", "b"], "output_dtype_at": "root"},
            "output_dtype_at: needs output_dtype; write both, or none.",
        ),
    ],
)
def test_a_place_for_wide_outputs_that_torch_has_not_is_refused(options, line):
    with pytest.raises(ScenarioError) as caught:
        trained({**WIDE, **options}, 2)
    assert caught.value.problems == [f"strategy.{line}"]


def test_casts_between_units_take_time():
    """Out of a and b, into b and c, and back in backward; out of c the loss casts."""
    all_units, root = (wide(units).metrics["step_time_s"] for units in (["a", "b", "c"], ["a"]))
    narrow = trained({**WIDE, "units": ["a"]}, 2, between=("gelu", "tanh")).metrics["step_time_s"]
    cast = (root - narrow) / 2  # of the outputs, forward and backward
    narrow = trained({**WIDE, "units": ["a", "b", "c"]}, 2, between=("gelu", "tanh"))
    found = all_units - narrow.metrics["step_time_s"]
    assert found == pytest.approx(10 * cast, rel=0.01)


def test_what_a_scenario_resolves_to_widens_the_same_outputs():
    first = checked(MLP, Path())
    precision = first.workload.precision
    assert precision.output_units == ("a", "c")
    raw = {**MLP, "workload": {**MLP["workload"], "precision": precision.model_dump(mode="json")}}
    again = checked(raw, Path())
    assert again.workload.precision == precision
    assert simdp.simulate(again).metrics["loss"] == simdp.simulate(first).metrics["loss"]


MLP = {
    "cluster": {"machine": "dgx-h100", "world_size": 2},
    "workload": {
        "model": {
            "kind": "sequential",
            "input_shape": [4],
            "layers": [
                {"kind": "linear", "name": "a", "in_features": 4, "out_features": 5},
                "gelu",
                {"kind": "linear", "name": "c", "in_features": 5, "out_features": 3},
            ],
        },
        "dataset": {"kind": "regression", "num_samples": 16},
        "microbatch": 4,
    },
    "strategy": {**WIDE, "units": ["a", "c"], "output_dtype": "float32"},
}


@for_each(
    ("options", "line"),
    [
        (
            {"output_dtype": None},
            ": output_units needs output_dtype: float32; write both, or none.",
        ),
        (
            {"output_units": ["a", "q"]},
            ".output_units: no layer runs in a module 'q'; name modules of the model.",
        ),
        (
            {"output_units": ["a"]},
            ".output_units: c is in none of these, so that its bfloat16 weights or inputs meet "
            "float32 ones, which torch refuses; add its module, or leave output_units out.",
        ),
    ],
)
def test_units_whose_outputs_cannot_be_widened_are_refused(options, line):
    precision = {"kind": "mixed", "dtype": "bfloat16", "output_dtype": "float32"}
    precision |= {"output_units": ["a", "c"], **options}
    raw = {**MLP, "workload": {**MLP["workload"], "precision": precision}}
    with pytest.raises(ScenarioError) as caught:
        checked(raw, Path())
    assert caught.value.problems == [f"workload.precision{line}"]
