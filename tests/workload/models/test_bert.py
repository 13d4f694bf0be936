"""BERT against transformers and torch.nn, in both layouts, and the presets' published figures."""

import numpy as np
import pytest
from for_each import for_each
from image_nets import model, published, refusal, weights
from text_nets import (
    FULL,
    PADDED,
    Run,
    assert_agrees_with_torch,
    assert_has_the_published_flops,
    assert_has_torchs_tensors,
    bucket_nbytes,
)

from simdp.workload.layers.base import ShapeError, constant
from simdp.workload.step_costs import forward_flops

PRESETS = ["bert-base", "bert-large"]
TORCH = {"layout": "torch"}
HEADLESS = {"head": "none"}
BARE = {"head": "none", "pooler": False}

# transformers 5.23, torch 2.13.0: elements, and digests of named_parameters and of the order in
# which hooks on the parameters see their gradients, which eager and sdpa attention share
TENSORS = [
    ("bert-base", {}, 109483778, "b0dc5b3c67935c9e", "e6ce5dcbd976506b"),
    ("bert-base", {"num_labels": 3}, 109484547, "19ef80614cf18b46", "e6ce5dcbd976506b"),
    ("bert-base", HEADLESS, 109482240, "a96adcdedeef8a3d", "82dcf40bbb2082a2"),
    ("bert-base", BARE, 108891648, "66cc52b449a900e5", "2a191df8f1153e61"),
    ("bert-base", {"head": "masked_lm"}, 109514298, "6d80eb4418067be4", "169e31589fbcfd1c"),
    ("bert-base", TORCH, 109483778, "e05b676b86fec17c", "7c61518548bc708a"),
    ("bert-base", TORCH | BARE, 108891648, "5426d9e0a3da75a0", "f26b6ed789d083dc"),
    ("bert-large", {}, 335143938, "c40ba0bd9459e2c2", "27124c4656a0944d"),
    ("bert-large", HEADLESS, 335141888, "2a20af64d7a1b517", "ff2ea3c438e906ed"),
    ("bert-large", TORCH, 335143938, "1a53dc691c94bd04", "98677a08e6652016"),
]

LAYER_OF_BASE = 28351488
"""Bytes of an encoder layer, which fill a bucket of 25 MiB."""

# torch 2.13.0, _compute_bucket_assignment_by_size with its default limits, float32; a process
# group of gloo reduces the same buckets from the second iteration on
BUCKETS = [
    ("bert-base", {}, [2368520, *[LAYER_OF_BASE] * 12, 95348736]),
    ("bert-base", HEADLESS, [2362368, *[LAYER_OF_BASE] * 12, 95348736]),
    ("bert-base", {"head": "masked_lm"}, [2490600, *[LAYER_OF_BASE] * 12, 95348736]),
    ("bert-base", TORCH, [2368520, *[LAYER_OF_BASE] * 12, 95348736]),
    ("bert-base", TORCH | BARE, [9446400, *[LAYER_OF_BASE] * 11, 114253824]),
    (
        "bert-large",
        {},
        [4206600, 33583104, *[33591296, 29396992, 37781504] * 11, 33591296, 29396992, 131330048],
    ),
    (
        "bert-large",
        TORCH,
        [4206600, *[33583104, 33591296, 33595392] * 11, 33583104, 33591296, 33595392, 127131648],
    ),
]

TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 10,
    "max_position_embeddings": 6,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "sequence_length": 5,
}


def bert(**keys):
    return model("bert", **TINY | keys)


def wrong(**keys):
    (line,) = refusal(kind="bert", **keys)
    return line


# Torch's tensors ---------------------------------------------------------------------------------


@for_each(("name", "keys", "elements", "tensors", "ready"), TENSORS)
def test_bert_has_torchs_tensors_and_ready_order(name, keys, elements, tensors, ready):
    assert_has_torchs_tensors(model(name, **keys), elements, tensors, ready)


@for_each(("name", "keys", "nbytes"), BUCKETS)
def test_ddp_fills_torchs_buckets(name, keys, nbytes):
    assert bucket_nbytes(model(name, **keys)) == nbytes


def test_parameters_are_named_as_transformers():
    names = [p.name for p in bert().parameters()]
    assert names[:5] == [
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.weight",
        "bert.embeddings.LayerNorm.bias",
    ]
    assert names[5] == "bert.encoder.layer.0.attention.self.query.weight"
    assert names[-4:] == [
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    ]


def test_parameters_are_named_as_those_of_torchs_modules():
    names = [p.name for p in bert(layout="torch").parameters()]
    assert names[:6] == [
        "embedding.weight",
        "position_embedding.weight",
        "token_type_embedding.weight",
        "norm.weight",
        "norm.bias",
        "encoder.layers.0.self_attn.in_proj_weight",
    ]
    assert names[-4:] == ["pooler.weight", "pooler.bias", "classifier.weight", "classifier.bias"]


def test_without_a_head_the_names_are_those_of_the_model_inside():
    whole = [p.name for p in bert().parameters()][:-2]
    assert [f"bert.{p.name}" for p in bert(head="none").parameters()] == whole


def test_a_tied_weight_is_there_once_and_becomes_ready_last():
    chosen = bert(head="masked_lm")
    names = [p.name for p in chosen.parameters()]
    assert names[-5] == "cls.predictions.bias"
    assert not any("decoder" in name or "pooler" in name for name in names)
    assert chosen.ready_order()[0] == "cls.predictions.bias"
    assert chosen.ready_order()[-1] == "bert.embeddings.word_embeddings.weight"


# Numerics ----------------------------------------------------------------------------------------


@for_each(
    ("keys", "tokens", "figures"),
    [  # transformers 5.23, torch 2.13.0
        ({}, FULL, (0.3276373491424723, 4.692345625147174, -0.23825380383947772)),
        ({"pad_id": 0}, PADDED, (0.101754045572817, 5.548919041441443, -0.4755879960991716)),
        (
            {"pad_id": 0, "hidden_act": "gelu_new"},
            PADDED,
            (0.1017077461239608, 5.549041461768753, -0.4772820573497436),
        ),
        (
            {"pad_id": 0, "layout": "torch"},
            PADDED,
            (0.12855931678066457, 4.7838860996951755, 2.190886710826888),
        ),
    ],
)
def test_a_small_classifier_agrees_with_torch(keys, tokens, figures):
    assert_agrees_with_torch(bert(num_labels=3, **keys), tokens, *figures)


@for_each(
    ("keys", "tokens", "figures"),
    [  # transformers 5.23, torch 2.13.0
        (
            {"head": "masked_lm", "pad_id": 0},
            PADDED,
            (2.8301032342900854, 26.039150027825638, 2.5235778298376985),
        ),
        (
            {"head": "none", "pad_id": 0},
            PADDED,
            (0.3081091247424428, 5.6816986274546695, -3.2616807575993363),
        ),
        (TORCH | BARE, FULL, (-3.3141572395140835, 14.571518156575795, -3.699097635110631)),
    ],
)
def test_other_heads_agree_with_torch(keys, tokens, figures):
    assert_agrees_with_torch(bert(**keys), tokens, *figures)


@for_each("layout", ["huggingface", "torch"])
def test_padding_changes_nothing(layout):
    chosen = bert(layout=layout, pad_id=0)
    values = weights(chosen)
    long, short = (Run(chosen, values, tokens) for tokens in (PADDED[1:], PADDED[1:, :3]))
    np.testing.assert_allclose(long.output, short.output, rtol=1e-13)
    wanted = short.gradients()
    for name, gradient in long.gradients().items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-10, atol=1e-13, err_msg=name)


def test_the_padding_has_no_embedding_to_learn():
    chosen = bert(pad_id=0)
    gradient = Run(chosen, weights(chosen), PADDED).gradients()
    words = gradient["bert.embeddings.word_embeddings.weight"]
    assert not words[0].any()
    assert words[3].any()


def test_float32_stays_float32():
    chosen = bert(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pad_id=0)
    values = {name: value.astype("float32") for name, value in weights(chosen).items()}
    run = Run(chosen, values, PADDED)
    assert {run.output.dtype, *(g.dtype for g in run.gradients().values())} == {np.dtype("float32")}


@for_each("layout", ["huggingface", "torch"])
def test_weights_start_as_transformers(layout):
    chosen = bert(layout=layout, initializer_range=0.5, pad_id=0)
    for parameter in chosen.parameters():
        start, is_norm = chosen.initial(parameter), "norm" in parameter.name.lower()
        if len(parameter.shape) == 2:
            assert (start.kind, start.size) == ("normal", 0.5), parameter.name
        else:
            one = is_norm and parameter.name.endswith("weight")
            assert start == constant(1.0 if one else 0.0), parameter.name


def test_the_row_of_the_padding_starts_at_zero_as_transformers():
    chosen = bert(pad_id=3)
    words = chosen.parameters()[0]
    drawn = chosen.initial(words).draw(np.random.default_rng(0), words.shape)
    assert not drawn[3].any()
    assert drawn[2].all()


# Presets -----------------------------------------------------------------------------------------


@for_each("name", PRESETS)
def test_a_preset_has_the_published_parameters(name):
    assert model(name).num_parameters() == published(name, "parameters")


@for_each("name", PRESETS)
def test_a_preset_has_the_published_flops(name):
    assert_has_the_published_flops(name)


@for_each("length", [128, 512])
def test_flops_follow_the_published_formula(length):
    # Narayanan et al., SC 2021 (arXiv 2104.04473), section 5.1, forward alone:
    # 24 B s l h^2 (1 + s / 6 h), here without the vocabulary
    layers, width = 12, 768
    formula = 24 * length * layers * width**2 * (1 + length / (6 * width))
    chosen = model("bert-base", sequence_length=length)
    found = forward_flops(chosen.graph, chosen.known_shapes())
    assert found.products == pytest.approx(formula, rel=0.01)


def test_bert_without_other_keys_is_the_base_model():
    assert model("bert") == model("bert-base")


# The samples -------------------------------------------------------------------------------------


def test_a_sample_is_as_long_as_the_data_or_as_those_of_glue():
    chosen = model("bert-base")
    assert chosen.input_shapes() == {"x": (128,)}
    assert chosen.with_input_shapes({"x": (64,)}).input_shapes() == {"x": (64,)}
    fixed = model("bert-base", sequence_length=32)
    assert fixed.with_input_shapes({"x": (64,)}).input_shapes() == {"x": (32,)}
    assert model("bert-base", max_position_embeddings=16).input_shapes() == {"x": (16,)}


@for_each(
    ("keys", "shape", "follows", "padding"),
    [
        ({"num_labels": 3}, (3,), None, 0),
        ({"pooler": False}, (2,), None, 0),
        (HEADLESS, (8,), None, 0),
        (BARE, (5, 8), None, None),
        ({"head": "masked_lm"}, (5, 10), "x", 0),
    ],
)
def test_the_head_decides_what_comes_out(keys, shape, follows, padding):
    chosen = bert(pad_id=0, **keys)
    assert chosen.output_shape() == shape
    assert chosen.target_follows == follows
    assert chosen.padding == padding
    assert chosen.num_tokens("x") == 10


# Errors ------------------------------------------------------------------------------------------


def test_more_tokens_than_places_are_refused():
    assert wrong(sequence_length=600) == (
        "sequence_length: 600 tokens are more than the 512 positions of the model; shorten "
        "it, or enlarge the model."
    )
    with pytest.raises(ShapeError, match="has 6 positions, but gets 7 tokens"):
        bert().shapes(((7,),))


def test_sizes_that_do_not_fit_are_refused():
    assert wrong(hidden_size=30, num_attention_heads=4) == (
        "num_attention_heads: 4 heads do not share hidden_size 30 evenly; choose a divisor of it."
    )
    assert wrong(vocab_size=10, pad_id=10) == "pad_id: 10 is not a token; tokens are 0 ... 9."


def test_keys_of_another_head_are_refused():
    assert wrong(head="none", num_labels=2) == (
        "num_labels goes with head: classification, but the head is none; leave it out, or change "
        "the head."
    )
    assert wrong(head="masked_lm", pooler=True) == (
        "pooler: head: masked_lm does not use it; leave it out."
    )


def test_what_torchs_layers_lack_is_refused():
    assert wrong(layout="torch", head="masked_lm") == (
        "head: masked_lm needs layout: huggingface; change one of them."
    )
    assert wrong(layout="torch", hidden_act="gelu_new") == (
        "hidden_act: layout: torch has gelu and relu; choose one of them."
    )
    assert wrong(layout="torch", attention_probs_dropout_prob=0.2) == (
        "hidden_dropout_prob is 0.1 and attention_probs_dropout_prob 0.2, but an encoder layer of "
        "layout: torch has one dropout; give both the same."
    )
