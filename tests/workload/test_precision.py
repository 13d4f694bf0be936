"""Who stores, sends and computes what in which dtype, and which loss scale goes with it."""

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.precision import PRECISIONS, AnyPrecision, ScalerSettings

every_precision = pytest.mark.parametrize("kind", PRECISIONS)
with_16_bits = for_each("kind", ["amp", "mixed"])
every_low = for_each("low", ["bfloat16", "float16"])
every_policy = pytest.mark.parametrize("policy", ["float32", "lower", "promote"])


def precision(kind, **options):
    return TypeAdapter(AnyPrecision).validate_python({"kind": kind, **options})


def refused(**raw):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyPrecision).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


# Every precision ---------------------------------------------------------------------------------


@every_precision
def test_a_precision_is_written_as_its_kind_alone(kind):
    assert type(TypeAdapter(AnyPrecision).validate_python(kind)) is PRECISIONS[kind]


@every_precision
def test_a_precision_is_read_back_as_it_was_written(kind):
    chosen = precision(kind, **({} if kind == "full" else {"dtype": "bfloat16", "init_scale": 8}))
    adapter = TypeAdapter(AnyPrecision)
    assert adapter.validate_python(adapter.dump_python(chosen, mode="json")) == chosen


@every_precision
@every_policy
def test_what_flows_between_layers_is_16_bit_or_the_workloads(kind, policy):
    chosen = precision(kind)
    for given in ([], ["int64"], ["float32"], ["float16"], ["float16", "float32"]):
        assert chosen.compute_dtype(policy, given, "float32") in (chosen.low, "float32")


# Full --------------------------------------------------------------------------------------------


@for_each("dtype", ["float32", "float64"])
@every_policy
def test_full_precision_keeps_sends_and_computes_in_the_workloads_dtype(dtype, policy):
    chosen = precision("full")
    assert chosen.low is None
    assert chosen.scaler() is None
    assert chosen.problem_with(dtype) is None
    assert not chosen.has_master
    assert chosen.weight_dtype(dtype) == chosen.gradient_dtype(dtype) == dtype
    assert chosen.compute_dtype(policy, [dtype, "int64"], dtype) == dtype


def test_full_precision_has_no_options():
    assert refused(kind="full", dtype="float16") == ["unknown key 'dtype'; none are known here."]


# 16 bit ------------------------------------------------------------------------------------------


@every_low
def test_amp_keeps_32_bit_weights_and_gradients_and_mixed_a_master_of_16_bit_ones(low):
    amp, mixed = precision("amp", dtype=low), precision("mixed", dtype=low)
    assert amp.weight_dtype("float32") == amp.gradient_dtype("float32") == "float32"
    assert mixed.weight_dtype("float32") == mixed.gradient_dtype("float32") == low
    assert (amp.has_master, mixed.has_master) == (False, True)
    assert amp.low == mixed.low == low


@with_16_bits
def test_float16_is_the_usual_16_bit_dtype(kind):
    assert precision(kind).low == "float16"


@every_low
@for_each(
    ("policy", "inputs", "wide"),
    [
        ("lower", ["float32"], False),
        ("lower", [], False),
        ("float32", ["low"], True),
        ("promote", ["low"], False),
        ("promote", ["low", "low"], False),
        ("promote", ["low", "int64"], False),
        ("promote", ["low", "float32"], True),
        ("promote", ["float32"], True),
        ("promote", ["int64"], True),
        ("promote", [], True),
    ],
)
def test_autocast_follows_torchs_lists(low, policy, inputs, wide):
    given = [low if name == "low" else name for name in inputs]
    found = precision("amp", dtype=low).compute_dtype(policy, given, "float32")
    assert found == ("float32" if wide else low)


@every_low
@every_policy
def test_mixed_precision_runs_every_layer_in_16_bits(low, policy):
    chosen = precision("mixed", dtype=low)
    assert chosen.compute_dtype(policy, ["float32"], "float32") == low


@with_16_bits
def test_16_bits_go_with_float32_only(kind):
    chosen = precision(kind, dtype="bfloat16")
    assert chosen.problem_with("float32") is None
    assert chosen.problem_with("float64") == (
        f"dtype is float64, but precision {kind} joins bfloat16 with float32; "
        "write dtype: float32, or precision: full."
    )


# Loss scale --------------------------------------------------------------------------------------


@with_16_bits
def test_float16_has_torchs_loss_scale_and_bfloat16_has_none(kind):
    assert precision(kind).scaler() == ScalerSettings(65536.0, 2.0, 0.5, 2000)
    assert precision(kind, dtype="bfloat16").scaler() is None


@with_16_bits
@every_low
@for_each(
    "given",
    [
        {"init_scale": 1024},
        {"growth_factor": 4},
        {"backoff_factor": 0.25},
        {"growth_interval": 5},
        {"init_scale": 1, "growth_factor": 3, "backoff_factor": 0.1, "growth_interval": 1},
    ],
)
def test_a_key_of_the_loss_scale_asks_for_one_and_leaves_the_others_as_torchs(kind, low, given):
    assert precision(kind, dtype=low, **given).scaler() == ScalerSettings()._replace(**given)


@with_16_bits
def test_a_loss_is_scaled_as_grad_scaler_says(kind):
    assert precision(kind, grad_scaler=False).scaler() is None
    assert precision(kind, dtype="bfloat16", grad_scaler=True).scaler() == ScalerSettings()
    assert refused(kind=kind, grad_scaler=False, init_scale=4) == [
        "grad_scaler is false, but init_scale is given, which is a setting of the scaler; leave "
        "one of them out."
    ]


# Errors ------------------------------------------------------------------------------------------


@for_each(
    ("raw", "line"),
    [
        (
            {"kind": "ampp"},
            "unknown precision 'ampp'. Did you mean 'amp'? Known: amp, full, mixed.",
        ),
        (
            {"kind": "amp", "dtype": "float8"},
            "dtype: 'float8' is not allowed; known: 'bfloat16' or 'float16'.",
        ),
        (
            {"kind": "amp", "init_scale": 0},
            "init_scale: 0 is out of range; it must be >= 1.1754943508222875e-38.",
        ),
        (
            {"kind": "amp", "init_scale": 1e39},
            "init_scale: 1e+39 is out of range; it must be <= 3.4028234663852886e+38.",
        ),
        (
            {"kind": "mixed", "growth_factor": 1},
            "growth_factor: 1 is out of range; it must be > 1.0.",
        ),
        (
            {"kind": "mixed", "growth_factor": 1e39},
            "growth_factor: 1e+39 is out of range; it must be <= 3.4028234663852886e+38.",
        ),
        (
            {"kind": "amp", "backoff_factor": 1},
            "backoff_factor: 1 is out of range; it must be < 1.0.",
        ),
        (
            {"kind": "amp", "backoff_factor": 0},
            "backoff_factor: 0 is out of range; it must be > 0.0.",
        ),
        (
            {"kind": "amp", "growth_interval": 0},
            "growth_interval: 0 is out of range; it must be >= 1.",
        ),
        (
            {"kind": "amp", "growth_interval": 1.5},
            "growth_interval: 1.5 is not a whole number.",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(raw, line):
    assert refused(**raw) == [line]
