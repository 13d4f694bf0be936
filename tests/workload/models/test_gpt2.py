"""GPT-2 against transformers, and the presets' published figures."""

from math import sqrt

import numpy as np
import pytest
from for_each import for_each
from image_nets import model, published, refusal, weights
from text_nets import (
    FULL,
    Run,
    assert_agrees_with_torch,
    assert_has_the_published_flops,
    assert_has_torchs_tensors,
    bucket_nbytes,
)

from simdp.workload.layers.base import constant, normal
from simdp.workload.step_costs import forward_flops

# transformers 5.23, torch 2.13.0: elements, and digests of named_parameters and of the order in
# which hooks on the parameters see their gradients, which eager and sdpa attention share
TENSORS = [
    ("gpt2", 124439808, "5560a1f1aed7b65c", "182fcd8c611ef20d"),
    ("gpt2-medium", 354823168, "1dec883446d03b83", "2557c2a01c304d3e"),
]

# torch 2.13.0, _compute_bucket_assignment_by_size with its default limits, float32
BUCKETS = [
    ("gpt2", [9446400, *[28351488] * 11, 176446464]),
    (
        "gpt2-medium",
        [16789504, *[33595392, 33583104, 33591296] * 11, 33595392, 33583104, 226856960],
    ),
]

TINY = {
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": 12,
    "vocab_size": 10,
    "n_positions": 6,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "sequence_length": 5,
}


def gpt2(**keys):
    return model("gpt2", **TINY | keys)


@for_each(("name", "elements", "tensors", "ready"), TENSORS)
def test_gpt2_has_torchs_tensors_and_ready_order(name, elements, tensors, ready):
    assert_has_torchs_tensors(model(name), elements, tensors, ready)
    assert elements == published(name, "parameters")


@for_each(("name", "nbytes"), BUCKETS)
def test_ddp_fills_torchs_buckets(name, nbytes):
    assert bucket_nbytes(model(name)) == nbytes


def test_parameters_are_named_and_shaped_as_transformers():
    shapes = {p.name: p.shape for p in gpt2().parameters()}
    names = list(shapes)
    assert names[:4] == [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.h.0.ln_1.weight",
        "transformer.h.0.ln_1.bias",
    ]
    assert shapes["transformer.h.0.attn.c_attn.weight"] == (8, 24)
    assert shapes["transformer.h.1.mlp.c_fc.weight"] == (8, 12)
    assert names[-2:] == ["transformer.ln_f.weight", "transformer.ln_f.bias"]


def test_the_tied_embedding_becomes_ready_last():
    order = gpt2().ready_order()
    assert order[:2] == ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    assert order[-2:] == ["transformer.wpe.weight", "transformer.wte.weight"]


def test_a_small_gpt2_agrees_with_torch():
    # transformers 5.23, torch 2.13.0
    figures = (-2.8889889106133246, 27.114394354812546, -3.1363767439992767)
    assert_agrees_with_torch(gpt2(), FULL, *figures)


def test_no_token_sees_those_after_it():
    chosen = gpt2()
    values, later = weights(chosen), FULL.copy()
    later[:, 3:] = 9
    one, other = (Run(chosen, values, tokens).output for tokens in (FULL, later))
    np.testing.assert_array_equal(one[:, :3], other[:, :3])
    assert (one[:, 3:] != other[:, 3:]).any()


def test_float32_stays_float32():
    chosen = gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    values = {name: value.astype("float32") for name, value in weights(chosen).items()}
    run = Run(chosen, values, FULL)
    assert {run.output.dtype, *(g.dtype for g in run.gradients().values())} == {np.dtype("float32")}


def test_weights_in_front_of_a_sum_start_smaller_as_in_transformers():
    chosen = gpt2()
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["transformer.wte.weight"] == normal(0.02)
    assert initial["transformer.h.0.mlp.c_fc.weight"] == normal(0.02)
    assert initial["transformer.h.0.mlp.c_proj.weight"] == normal(0.02 / sqrt(4))
    assert initial["transformer.h.1.attn.c_proj.weight"] == normal(0.02 / sqrt(4))
    assert initial["transformer.h.1.attn.c_proj.bias"] == constant(0.0)
    assert initial["transformer.ln_f.weight"] == constant(1.0)


@for_each("name", ["gpt2", "gpt2-medium"])
def test_a_preset_has_the_published_flops(name):
    assert_has_the_published_flops(name)


@for_each("length", [256, 1024])
def test_flops_follow_the_published_formula(length):
    # Narayanan et al., SC 2021 (arXiv 2104.04473), section 5.1, forward alone:
    # 24 B s l h^2 (1 + s / 6 h + V / 12 l h)
    layers, width, words = 12, 768, 50257
    share = 1 + length / (6 * width) + words / (12 * layers * width)
    chosen = model("gpt2", sequence_length=length)
    found = forward_flops(chosen.graph, chosen.known_shapes())
    assert found.products == pytest.approx(24 * length * layers * width**2 * share, rel=0.01)


def test_a_sample_is_as_long_as_the_data_or_as_the_model_allows():
    chosen = model("gpt2")
    assert chosen.input_shapes() == {"x": (1024,)}
    assert chosen.output_shape() == (1024, 50257)
    assert chosen.target_follows == "x"
    assert chosen.with_input_shapes({"x": (64,)}).output_shape() == (64, 50257)


def test_heads_that_do_not_fit_are_refused():
    (line,) = refusal(kind="gpt2", n_embd=30, n_head=4)
    assert line == "n_head: 4 heads do not share n_embd 30 evenly; choose a divisor of it."


def test_more_tokens_than_places_are_refused():
    (line,) = refusal(kind="gpt2", sequence_length=1025)
    assert line == (
        "sequence_length: 1025 tokens are more than the 1024 positions of the model; shorten "
        "it, or enlarge the model."
    )
