"""Llama and its like: transformers' names, keys that do not fit, and published figures."""

import json
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from for_each import for_each
from image_nets import model, published, refusal, weights
from layer_checks import kept_nbytes
from text_nets import FULL, Run

from simdp.workload.layers.base import constant, normal
from simdp.workload.step_costs import forward_flops
from simdp.workload.transforms import in_kernels

GOLDEN = Path(__file__).parents[2] / "golden"

LLAMAS = ["llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3.2-1b"]
QWENS = [f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b")]
MPTS = [f"mpt-{size}" for size in ("125m", "350m", "760m", "1b", "3b", "7b", "13b", "30b", "70b")]
PRESETS = [*LLAMAS, *QWENS, *MPTS, "mistral-7b", "pythia-1b", "gpt2-large", "gpt2-xl"]

TINY = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 6,
    "sequence_length": 5,
}
TINY_MPT = {"vocab_size": 10, "d_model": 6, "n_heads": 3, "n_layers": 2, "max_seq_len": 5}
TINY_NEOX = {
    "vocab_size": 10,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 5,
}


# Published figures -------------------------------------------------------------------------------


@for_each("name", PRESETS)
def test_a_preset_has_the_published_parameters_and_flops(name):
    chosen = model(name)
    assert chosen.num_parameters() == published(name, "parameters")
    found = forward_flops(in_kernels(chosen.graph, "eager"), chosen.known_shapes())
    wanted = published(name, "flops")
    assert found.products / 1e9 == pytest.approx(wanted, rel=0.02)
    if getattr(chosen, "sliding_window", None) is None:  # plain kernels work on hidden pairs too
        assert found.total / 1e9 == pytest.approx(wanted, rel=0.05)


@for_each(
    ("name", "length", "elements"),
    [
        ("mpt-125m", 512, 124131840),
        ("mpt-125m", 65536, 174070272),
        ("mpt-1b", 8192, 1328533504),
        ("mpt-7b", 1024, 6654664704),
        ("mpt-7b", 32768, 6784688128),
        ("mpt-30b", 512, 29964204032),
        ("mpt-30b", 8192, 30019254272),
    ],
)
def test_mpt_has_llm_foundrys_parameters_at_every_length(name, length, elements):
    assert model(name, max_seq_len=length).num_parameters() == elements


def test_the_published_mpt_7b_has_alibi_and_no_biases():
    # huggingface.co/mosaicml/mpt-7b
    chosen = model("mpt", vocab_size=50432, d_model=4096, n_heads=32, n_layers=32)
    assert chosen.num_parameters() == 6649286656


def test_a_causal_flash_kernel_saves_half_of_the_scores():
    chosen = model("llama3-8b")
    eager, flash = (
        forward_flops(in_kernels(chosen.graph, way), chosen.known_shapes()).total
        for way in ("eager", "flash")
    )
    softmax = 5 * 32 * 32 * 8192**2
    assert eager - flash == 32 * 2 * 8192**2 * 4096 + softmax


def test_a_large_graph_is_made_quickly_and_holds_no_arrays():
    model("llama3-8b").graph.blocks  # noqa: B018 what is made once is made
    begin = process_time()
    graph = model("llama3-70b", num_hidden_layers=81).graph
    assert len(graph.blocks) == 81
    assert process_time() - begin < 1.5
    assert not any(
        isinstance(value, np.ndarray) for layer in graph.registered for _, value in layer
    )


# Names, orders, first values ---------------------------------------------------------------------

MPT_BLOCK = ["norm_1", "attn.Wqkv", "attn.out_proj", "norm_2", "ffn.up_proj", "ffn.down_proj"]
NEOX_LAYER = [
    "input_layernorm",
    "post_attention_layernorm",
    "attention.query_key_value",
    "attention.dense",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
]


def test_mpt_is_named_as_in_transformers():
    names = [p.name for p in model("mpt", **TINY_MPT).parameters()]
    blocks = [f"transformer.blocks.{i}.{name}.weight" for i in (0, 1) for name in MPT_BLOCK]
    assert names == ["transformer.wte.weight", *blocks, "transformer.norm_f.weight"]


def test_llm_foundrys_mpt_has_places_and_biases_too():
    chosen = model("mpt", **TINY_MPT, learned_pos_emb=True, no_bias=False)
    names = [p.name for p in chosen.parameters()]
    assert names[:4] == [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.blocks.0.norm_1.weight",
        "transformer.blocks.0.norm_1.bias",
    ]
    assert chosen.ready_order()[-2:] == ["transformer.wpe.weight", "transformer.wte.weight"]


def test_gpt_neox_is_named_as_in_transformers():
    chosen = model("gpt_neox", **TINY_NEOX)
    layers = [
        f"gpt_neox.layers.{i}.{name}.{of}"
        for i in (0, 1)
        for name in NEOX_LAYER
        for of in ("weight", "bias")
    ]
    last = ["gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias"]
    assert [p.name for p in chosen.parameters()] == [
        "gpt_neox.embed_in.weight",
        *layers,
        *last,
        "lm_head.weight",
    ]
    assert model("gpt_neox", **TINY_NEOX, tie_word_embeddings=True).ready_order()[-1] == (
        "gpt_neox.embed_in.weight"
    )


@for_each(("kind", "biased"), [("llama", 0), ("mistral", 0), ("qwen2", 3)])
def test_biases_are_those_of_the_kind(kind, biased):
    chosen = model(kind, **TINY)
    names = [p.name for p in chosen.parameters() if p.name.startswith("model.layers.1.")]
    assert sum(name.endswith("bias") for name in names) == biased
    assert len(names) == 9 + biased


def test_llama_may_have_biases_and_a_tied_head():
    chosen = model("llama", **TINY, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    names = [p.name for p in chosen.parameters()]
    assert sum(name.endswith("bias") for name in names) == 2 * 7
    assert "lm_head.weight" not in names
    assert chosen.ready_order()[-1] == "model.embed_tokens.weight"


def test_blocks_are_the_decoder_layers():
    found = {
        "llama": (TINY, "model.layers.1"),
        "mpt": (TINY_MPT, "transformer.blocks.1"),
        "gpt_neox": (TINY_NEOX, "gpt_neox.layers.1"),
    }
    for kind, (keys, name) in found.items():
        assert [block.name for block in model(kind, **keys).graph.blocks][1:] == [name]


def test_weights_start_as_in_transformers():
    chosen = model("qwen2", **TINY)
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["lm_head.weight"] == initial["model.embed_tokens.weight"] == normal(0.02)
    assert initial["model.layers.0.self_attn.k_proj.bias"] == constant(0.0)
    assert initial["model.norm.weight"] == constant(1.0)


def test_a_sample_is_as_long_as_the_data_or_as_somebody_chose():
    assert model("llama2-7b").input_shapes() == {"x": (4096,)}
    assert model("llama3-70b").input_shapes() == {"x": (8192,)}
    assert model("pythia-1b").with_input_shapes({"x": (64,)}).output_shape() == (64, 50304)


# Numbers, against the same models written plainly ------------------------------------------------


def layer_norm(x, values, name):
    x = x - x.mean(axis=-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * values[f"{name}.weight"]
    return y + values.get(f"{name}.bias", 0)


def linear(x, values, name):
    return x @ values[f"{name}.weight"].T + values.get(f"{name}.bias", 0)


def gelu(x):
    from scipy.special import ndtr

    return x * ndtr(x)


def look(q, k, v, bias):
    """One head of one sample; nobody looks ahead."""
    scores = q @ k.T / np.sqrt(q.shape[1]) + bias
    weights = np.tril(np.exp(scores))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def turned(x):
    """GPT-NeoX: the first quarter of 8 columns is a pair, which turns by its place."""
    angle = np.arange(len(x))
    left = x[:, 0] * np.cos(angle) - x[:, 1] * np.sin(angle)
    right = x[:, 1] * np.cos(angle) + x[:, 0] * np.sin(angle)
    return np.concatenate([left[:, None], right[:, None], x[:, 2:]], axis=1)


def plain_mpt(values, tokens):
    x = values["transformer.wte.weight"][tokens]
    far = np.arange(len(tokens)) - np.arange(len(tokens))[:, None]
    for number in range(2):
        name = f"transformer.blocks.{number}"
        qkv = linear(layer_norm(x, values, f"{name}.norm_1"), values, f"{name}.attn.Wqkv")
        q, k, v = (np.split(part, 3, axis=1) for part in np.split(qkv, 3, axis=1))
        slopes = (2**-4, 2**-8, 2**-2)
        heads = [look(*qkv, s * far) for *qkv, s in zip(q, k, v, slopes, strict=True)]
        x = x + linear(np.concatenate(heads, axis=1), values, f"{name}.attn.out_proj")
        h = linear(layer_norm(x, values, f"{name}.norm_2"), values, f"{name}.ffn.up_proj")
        x = x + linear(gelu(h), values, f"{name}.ffn.down_proj")
    return layer_norm(x, values, "transformer.norm_f") @ values["transformer.wte.weight"].T


def plain_neox(values, tokens, parallel):
    x = values["gpt_neox.embed_in.weight"][tokens]
    for number in range(2):
        name = f"gpt_neox.layers.{number}"
        h = layer_norm(x, values, f"{name}.input_layernorm")
        qkv = linear(h, values, f"{name}.attention.query_key_value")
        heads = []
        for head in np.split(qkv, 2, axis=1):
            q, k, v = np.split(head, 3, axis=1)
            heads.append(look(turned(q), turned(k), v, 0))
        seen = linear(np.concatenate(heads, axis=1), values, f"{name}.attention.dense")
        given = x if parallel else x + seen
        h = layer_norm(given, values, f"{name}.post_attention_layernorm")
        h = linear(gelu(linear(h, values, f"{name}.mlp.dense_h_to_4h")), values, name + DOWN)
        x = x + seen + h
    return layer_norm(x, values, "gpt_neox.final_layer_norm") @ values["lm_head.weight"].T


DOWN = ".mlp.dense_4h_to_h"


def test_mpt_computes_what_is_written_plainly():
    chosen = model("mpt", **TINY_MPT)
    values = weights(chosen)
    found = Run(chosen, values, FULL).output
    for own, tokens in zip(found, FULL, strict=True):
        np.testing.assert_allclose(own, plain_mpt(values, tokens), rtol=1e-10, atol=1e-12)


@for_each("parallel", [True, False])
def test_gpt_neox_computes_what_is_written_plainly(parallel):
    chosen = model("gpt_neox", **TINY_NEOX, use_parallel_residual=parallel)
    values = weights(chosen)
    found = Run(chosen, values, FULL).output
    for own, tokens in zip(found, FULL, strict=True):
        np.testing.assert_allclose(own, plain_neox(values, tokens, parallel), rtol=1e-10)


def test_a_window_as_long_as_the_sample_changes_nothing():
    values = weights(model("mistral", **TINY))
    whole, narrow, llama = (
        Run(model(kind, **TINY, **keys), values, FULL).output
        for kind, keys in (("mistral", {}), ("mistral", {"sliding_window": 2}), ("llama", {}))
    )
    np.testing.assert_array_equal(whole, llama)
    np.testing.assert_array_equal(narrow[:, :2], llama[:, :2])
    assert (narrow[:, 2:] != llama[:, 2:]).all()


@for_each("kind", ["llama", "mistral", "qwen2"])
def test_float32_stays_float32(kind):
    chosen = model(kind, **TINY, attention_dropout=0.1)
    values = {name: value.astype("float32") for name, value in weights(chosen).items()}
    run = Run(chosen, values, FULL)
    assert {run.output.dtype, *(g.dtype for g in run.gradients().values())} == {np.dtype("float32")}


# What a layer keeps ------------------------------------------------------------------------------


@for_each(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
@for_each(("ours", "theirs"), [("eager", "eager"), ("flash", "sdpa")])
def test_a_layer_keeps_the_bytes_that_torch_keeps(dtype, itemsize, ours, theirs):
    told = json.loads((GOLDEN / "g20_saved.json").read_text())["cases"]
    wanted = told[f"{dtype}|{theirs}|none"]["total_bytes"]
    chosen = model("llama", **TINY_OF_GOLDEN)
    graph, (block,) = in_kernels(chosen.graph, ours), chosen.graph.blocks
    shapes = graph.shapes(chosen.known_shapes())
    values, beside = set(), 0.0
    for number in block.calls:
        call = graph.calls[number]
        kept = call.layer.kept([shapes[value] for value in call.inputs], itemsize)
        values |= {call.inputs[i] for i in kept.inputs}
        values |= {number + 1} if kept.output else set()
        beside += kept.nbytes
    held = sum(int(np.prod(shapes[value])) for value in values) * itemsize
    assert 3 * (held + beside) == wanted


TINY_OF_GOLDEN = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sequence_length": 10,
}


def test_what_flash_keeps_does_not_grow_with_the_square():
    def kept(length, way):
        chosen = model("llama3-8b", sequence_length=length)
        graph = in_kernels(chosen.graph, way)
        shapes = graph.shapes(chosen.known_shapes())
        return sum(
            kept_nbytes(call.layer, [shapes[value] for value in call.inputs], 2)
            for call in graph.calls
            if call.layer.kind == "attention"
        )

    assert kept(8192, "flash") == 4 * kept(2048, "flash")
    assert kept(8192, "eager") > 15 * kept(2048, "eager")


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("keys", "line"),
    [
        (
            {"kind": "llama", "hidden_size": 30, "num_attention_heads": 4},
            "num_attention_heads: 4 heads do not share hidden_size 30 evenly; "
            "choose a divisor of it.",
        ),
        (
            {"kind": "llama", "num_attention_heads": 32, "num_key_value_heads": 5},
            "num_key_value_heads: 5 heads of keys and values do not share 32 attention heads "
            "evenly; choose a divisor of it.",
        ),
        (
            {"kind": "qwen2", "hidden_size": 12, "num_attention_heads": 4},
            "num_attention_heads: heads of 3 features cannot rotate in pairs; "
            "choose another number of heads, or an even head_dim.",
        ),
        (
            {"kind": "llama", "rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}},
            "rope_theta and rope_parameters are both given; keep one of them.",
        ),
        (
            {"kind": "llama", "rope_scaling": {"rope_type": "linear"}},
            "rope_scaling: factor is required for rope_type: linear; add it.",
        ),
        (
            {"kind": "llama", "sequence_length": 2049},
            "sequence_length: 2049 tokens are more than the 2048 positions of the model; "
            "shorten it, or enlarge the model.",
        ),
        (
            {"kind": "mpt", "d_model": 30, "n_heads": 4},
            "n_heads: 4 heads do not share d_model 30 evenly; choose a divisor of it.",
        ),
        (
            {"kind": "gpt_neox", "hidden_size": 64, "num_attention_heads": 16},
            "rotary_pct: 0.25 of 4 features leaves no pair to rotate; enlarge it.",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys, line):
    assert refusal(**keys) == [line]
