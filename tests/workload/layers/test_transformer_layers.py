"""Layers of transformers against plain formulas, torch's figures and identities.

That gradients equal differences is tested for every layer in `test_every_layer`.
"""

from math import erf, exp, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from kept import kept_nbytes
from layer_checks import new_pass, weights_of
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.graph import GraphBuilder
from simdp.workload.layers import LAYERS, AnyModule, Kernel, attention, layer_norm
from simdp.workload.layers.attention import Attention, softmax
from simdp.workload.layers.base import Kept, Pass, ShapeError
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.first_token import FirstToken
from simdp.workload.layers.gelu import GELU
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.mean_pool import MeanPool
from simdp.workload.layers.multihead_attention import MultiheadAttention
from simdp.workload.layers.position_embedding import PositionEmbedding
from simdp.workload.layers.positional_encoding import PositionalEncoding
from simdp.workload.layers.projection import Projection
from simdp.workload.layers.scale import Scale
from simdp.workload.models import AnyModel

GOLDEN = Path(__file__).parents[2] / "golden"


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def forward(layer, *inputs, weights=None):
    """What comes out, and a function that gives the gradients of inputs and parameters."""
    run = new_pass(layer, weights_of(layer) if weights is None else weights, len(inputs[0]))
    y, saved = layer.forward(run, *inputs)

    def backward(dy):
        found = layer.backward(run, saved, dy, [True] * len(inputs))
        return found, run.gradients

    return y, backward


def refusal(**raw):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModule).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


# Embedding ---------------------------------------------------------------------------------------


def test_an_embedding_looks_rows_up_and_adds_the_gradients_of_equal_tokens():
    layer = Embedding(name="e", num_embeddings=6, embedding_dim=3)
    tokens, weights = np.array([[1, 4, 1], [5, 1, 0]]), weights_of(layer)
    y, backward = forward(layer, tokens, weights=weights)
    np.testing.assert_array_equal(y, weights["e.weight"][tokens])
    dy = drawn(2, 3, 3)
    (none,), gradients = backward(dy)
    wanted = np.zeros((6, 3))
    np.add.at(wanted, tokens, dy)
    np.testing.assert_allclose(gradients["e.weight"], wanted, rtol=1e-14)
    assert none is None


def test_the_row_of_the_padding_starts_at_zero_and_stays_there():
    layer = Embedding(name="e", num_embeddings=4, embedding_dim=3, padding_idx=2)
    (parameter,) = layer.parameters()
    start = parameter.initial.draw(np.random.default_rng(0), parameter.shape)
    free = Embedding(name="e", num_embeddings=4, embedding_dim=3).parameters()[0].initial
    others = [0, 1, 3]
    assert (start[2] == 0).all()
    np.testing.assert_array_equal(
        start[others], free.draw(np.random.default_rng(0), (4, 3))[others]
    )
    _, backward = forward(layer, np.array([[2, 1], [2, 3]]))
    _, gradients = backward(np.ones((2, 2, 3)))
    assert gradients["e.weight"][:, 0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("index", [-1, 4])
def test_padding_that_is_no_token_is_refused(index):
    raw = {"kind": "embedding", "num_embeddings": 4, "embedding_dim": 3, "padding_idx": index}
    assert refusal(**raw) == [f"padding_idx: {index} is not a token; tokens are 0 ... 3."]


def test_an_embedding_costs_a_gather_and_backward_clears_a_dense_gradient():
    layer = Embedding(name="e", num_embeddings=1000, embedding_dim=64)
    row = 64 * 4
    assert layer.forward_cost([(10,)], 4) == [Kernel(0, 10 * (2 * row + 8))]
    assert layer.backward_cost([(10,)], 4, [False]) == [
        Kernel(0, 0, 1000 * row),
        Kernel(10 * 64, 10 * (3 * row + 8)),
    ]
    assert layer.kept([(10,)], 4) == Kept(inputs=(0,))


def test_a_position_embedding_adds_a_row_for_each_place():
    layer = PositionEmbedding(name="p", num_embeddings=5, embedding_dim=3)
    x, weights = drawn(2, 4, 3), weights_of(layer)
    y, backward = forward(layer, x, weights=weights)
    np.testing.assert_array_equal(y, x + weights["p.weight"][:4])
    dy = drawn(2, 4, 3, seed=1)
    _, gradients = backward(dy)
    np.testing.assert_allclose(gradients["p.weight"][:4], dy.sum(axis=0), rtol=1e-14)
    assert (gradients["p.weight"][4] == 0).all()


def test_more_tokens_than_places_are_refused():
    layer = PositionEmbedding(name="p", num_embeddings=5, embedding_dim=3)
    with pytest.raises(ShapeError, match=r"^knows 5 places, but gets 6 tokens$"):
        layer.output_shape((6, 3))


def test_the_positional_encoding_is_the_one_that_torch_was_given():
    layer = PositionalEncoding(name="p", d_model=32)
    y, _ = forward(layer, np.zeros((1, 12, 32)))
    with np.load(GOLDEN / "g04_enc_post.npz") as stored:
        np.testing.assert_allclose(y[0], stored["pe"], atol=1e-15)
    assert layer.parameters() == []


def test_the_positional_encoding_of_an_odd_width_ends_with_a_sine():
    y, _ = forward(PositionalEncoding(name="p", d_model=3), np.zeros((1, 2, 3)))
    np.testing.assert_allclose(
        y[0, 1], [np.sin(1), np.cos(1), np.sin(10000 ** (-2 / 3))], rtol=1e-14
    )


@pytest.mark.parametrize(
    "layer",
    [
        PositionalEncoding(name="l", d_model=3),
        PositionEmbedding(name="l", num_embeddings=5, embedding_dim=3),
        MeanPool(name="l"),
        FirstToken(name="l"),
    ],
    ids=lambda layer: layer.kind,
)
@pytest.mark.parametrize("shape", [(3,), (2, 2, 3)])
def test_a_layer_over_sequences_refuses_what_is_none(layer, shape):
    with pytest.raises(ShapeError) as caught:
        layer.output_shape(shape)
    assert str(caught.value) == (
        f"takes sequences (length, features), but gets samples of shape {shape}"
    )


# LayerNorm ---------------------------------------------------------------------------------------


def test_layer_norm_is_its_formula():
    layer = LayerNorm(name="n", normalized_shape=6, eps=1e-3)
    x, weights = drawn(4, 3, 6), weights_of(layer)
    y, _ = forward(layer, x, weights=weights)
    deviation = np.sqrt(x.var(axis=2, keepdims=True) + 1e-3)
    plain = (x - x.mean(axis=2, keepdims=True)) / deviation
    np.testing.assert_allclose(
        y, plain * weights["n.weight"] + weights["n.bias"], rtol=1e-12, atol=1e-14
    )


# torch 2.13.0, float64
TORCH_LAYER_NORM = {
    "y": [-1.1643418691553642, 2.814308582346271, 5.222379304668824, -0.267755427629516],
    "dx": [-2.040390983191774, 0.5587929907943545, 2.1161807466611484, -0.6345827542637266],
    "weight": [-0.9125382174867425, -0.3163720238324929, 0.18413085663780254, 2.0024452988561063],
    "bias": [0.20085634532777452, -0.08716577055331098, -0.29504807897322893, -0.23166454426909003],
}


def test_torchs_layer_norm():
    layer = LayerNorm(name="n", normalized_shape=4)
    x = np.sin(np.arange(12.0)).reshape(3, 4)
    weights = {"n.weight": np.arange(1.0, 5), "n.bias": np.arange(4.0)}
    y, backward = forward(layer, x, weights=weights)
    (dx,), gradients = backward(np.cos(np.arange(12.0)).reshape(3, 4))
    np.testing.assert_allclose(y[0], TORCH_LAYER_NORM["y"], rtol=1e-12)
    np.testing.assert_allclose(dx[1], TORCH_LAYER_NORM["dx"], rtol=1e-11)
    np.testing.assert_allclose(gradients["n.weight"], TORCH_LAYER_NORM["weight"], rtol=1e-12)
    np.testing.assert_allclose(gradients["n.bias"], TORCH_LAYER_NORM["bias"], rtol=1e-12)


def test_blocks_of_rows_change_nothing(monkeypatch):
    layer = LayerNorm(name="n", normalized_shape=6)
    x, dy = drawn(7, 3, 6), drawn(7, 3, 6, seed=1)
    y, backward = forward(layer, x)
    (dx,), gradients = backward(dy)
    monkeypatch.setattr(layer_norm, "BLOCK", 4 * 6)
    again, backward = forward(layer, x)
    (dx_again,), gradients_again = backward(dy)
    np.testing.assert_allclose(again, y, rtol=1e-13)
    np.testing.assert_allclose(dx_again, dx, rtol=1e-12, atol=1e-14)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradients_again[name], gradient, rtol=1e-12)


def test_layer_norm_has_the_tensors_that_torchs_has():
    def names(**keys):
        return [p.name for p in LayerNorm(name="n", normalized_shape=6, **keys).parameters()]

    assert names() == ["n.weight", "n.bias"]
    assert names(bias=False) == ["n.weight"]
    assert names(elementwise_affine=False) == []
    layer = LayerNorm(name="n", normalized_shape=6)
    assert layer.ready_order() == ["n.weight", "n.bias"]


def test_layer_norm_costs_its_traffic():
    layer = LayerNorm(name="n", normalized_shape=8)
    moved, weights = 5 * 8 * 4, 2 * 8 * 4
    (kernel,) = layer.forward_cost([(5, 8)], 4)
    assert kernel[1:] == (2 * moved, weights)
    assert [k[1:] for k in layer.backward_cost([(5, 8)], 4, [True])] == [
        (3 * moved, weights),
        (2 * moved, weights),
    ]
    assert kept_nbytes(layer, [(5, 8)], 4) == moved + 2 * 5 * 4


# Dropout -----------------------------------------------------------------------------------------


def dropped(p, samples, shape, name="d", step=0):
    run = Pass({}, samples=np.array(samples), seed=1, step=step)
    layer = Dropout(name=name, p=p)
    x = np.ones((len(samples), *shape))
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, x, [True])
    np.testing.assert_array_equal(dx, y)  # the same elements stay, grown as much
    return y


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_mean(p):
    y = dropped(p, range(50), (40, 50))
    assert set(np.unique(y)) == {0.0, 1 / (1 - p)}
    assert (y == 0).mean() == pytest.approx(p, abs=0.005)
    assert y.mean() == pytest.approx(1, abs=5 * sqrt(p / (1 - p) / y.size))


def test_what_a_sample_drops_depends_neither_on_its_batch_nor_on_its_padding():
    whole = dropped(0.4, [3, 8, 5], (6, 4))
    np.testing.assert_array_equal(dropped(0.4, [8], (6, 4))[0], whole[1])
    np.testing.assert_array_equal(dropped(0.4, [5, 3], (4, 4)), whole[[2, 0], :4])


def test_layers_steps_and_samples_drop_different_elements():
    first, second = dropped(0.5, [0, 1], (100,))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, dropped(0.5, [0], (100,), name="other")[0])
    assert not np.array_equal(first, dropped(0.5, [0], (100,), step=1)[0])


def test_dropout_of_nothing_hands_on_its_input_and_costs_nothing():
    layer, x = Dropout(name="d", p=0), drawn(2, 3)
    y, saved = layer.forward(Pass({}), x)
    assert y is x
    assert layer.backward(Pass({}), saved, x, [True])[0] is x
    assert layer.forward_cost([(3,)], 4) == layer.backward_cost([(3,)], 4, [True]) == []
    assert kept_nbytes(layer, [(3,)], 4) == 0


def test_dropout_of_everything_leaves_zeros():
    assert (dropped(1.0, [0], (3,)) == 0).all()


def test_dropout_keeps_a_mask_of_one_byte_per_element():
    layer = Dropout(name="d", p=0.5)
    assert kept_nbytes(layer, [(3, 4)], 4) == 12
    assert layer.forward_cost([(3, 4)], 4) == [Kernel(24, 12 * (2 * 4 + 1))]
    assert layer.backward_cost([(3, 4)], 4, [False]) == []


# Attention ---------------------------------------------------------------------------------------


def plain_attention(q, k, v, num_heads, hidden=None):
    """One sample, head by head; hidden keys of each query are left out."""
    columns = []
    for head in np.split(np.arange(q.shape[1]), num_heads):
        scores = q[:, head] @ k[:, head].T / sqrt(len(head))
        weights = np.exp(scores) if hidden is None else np.where(hidden, 0, np.exp(scores))
        columns.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, head])
    return np.concatenate(columns, axis=1)


def test_attention_is_its_formula_in_each_head():
    q, kv = drawn(2, 3, 4), drawn(2, 5, 8, seed=1)
    y, _ = forward(Attention(name="a", num_heads=2), q, kv)
    for number in range(2):
        wanted = plain_attention(q[number], kv[number, :, :4], kv[number, :, 4:], 2)
        np.testing.assert_allclose(y[number], wanted, rtol=1e-12)


def test_packed_or_apart_attention_is_the_same():
    packed, dy = drawn(3, 5, 12), drawn(3, 5, 4, seed=1)
    layer = Attention(name="a", num_heads=2, causal=True)
    y, backward = forward(layer, packed)
    (dpacked,), _ = backward(dy)
    apart, backward = forward(layer, packed[..., :4].copy(), packed[..., 4:].copy())
    (dq, dkv), _ = backward(dy)
    np.testing.assert_allclose(apart, y, rtol=1e-13)
    np.testing.assert_allclose(np.concatenate([dq, dkv], axis=2), dpacked, rtol=1e-12, atol=1e-15)


def test_a_causal_query_looks_back_only():
    packed = drawn(1, 4, 12)
    y, backward = forward(Attention(name="a", num_heads=1, causal=True), packed)
    q, k, v = np.split(packed[0], 3, axis=1)
    hidden = np.arange(4) > np.arange(4)[:, None]
    np.testing.assert_allclose(y[0], plain_attention(q, k, v, 1, hidden), rtol=1e-12)
    dy = np.zeros((1, 4, 4))
    dy[0, 1] = 1
    (dpacked,), _ = backward(dy)
    assert (dpacked[0, 2:] == 0).all()
    assert (dpacked[0, :2, 8:] != 0).all()


def test_padding_is_looked_at_by_nobody():
    q, kv = drawn(2, 3, 4), drawn(2, 5, 8, seed=1)
    tokens = np.array([[7, 0, 7, 7, 0], [7, 7, 7, 0, 0]])
    layer = Attention(name="a", num_heads=2, pad_id=0)
    y, backward = forward(layer, q, kv, tokens)
    (_, dkv, none), _ = backward(drawn(2, 3, 4, seed=2))
    assert none is None
    assert (dkv[tokens == 0] == 0).all()
    free = Attention(name="a", num_heads=2)
    for number in range(2):
        short, _ = forward(free, q[number][None], kv[number][tokens[number] != 0][None])
        np.testing.assert_allclose(y[number], short[0], rtol=1e-12)


def test_a_query_without_any_key_gets_zeros_as_in_torch():
    q, kv, tokens = drawn(2, 3, 4), drawn(2, 2, 8, seed=1), np.array([[0, 0], [5, 0]])
    y, backward = forward(Attention(name="a", num_heads=2, pad_id=0), q, kv, tokens)
    (dq, dkv, _), _ = backward(np.ones_like(y))
    assert (y[0] == 0).all()
    assert (dq[0] == 0).all()
    assert (dkv[0] == 0).all()
    assert (y[1] != 0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_blocks_of_samples_change_nothing(dropout, monkeypatch):
    layer = Attention(name="a", num_heads=2, dropout=dropout, causal=True)
    packed, dy = drawn(5, 3, 12), drawn(5, 3, 4, seed=1)
    y, backward = forward(layer, packed)
    (dpacked,), _ = backward(dy)
    monkeypatch.setattr(attention, "BLOCK", 2 * 2 * 3 * 3)
    again, backward = forward(layer, packed)
    (dagain,), _ = backward(dy)
    np.testing.assert_allclose(again, y, rtol=1e-13)
    np.testing.assert_allclose(dagain, dpacked, rtol=1e-12, atol=1e-15)


def test_attention_keeps_its_mean_under_dropout():
    packed = np.concatenate([np.zeros((400, 8, 8)), np.ones((400, 8, 4))], axis=2)
    y, _ = forward(Attention(name="a", num_heads=2, dropout=0.3), packed)
    assert y.mean() == pytest.approx(1, abs=0.01)
    assert y.std() == pytest.approx(sqrt(0.3 / 0.7 / 8), rel=0.05)  # eight weights of 1/8 each


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_survives_scores_of_any_size(dtype):
    scores = np.array([[1e4, 0, -1e4], [-1e4, -1e4, -1e4], [-np.inf] * 3], dtype=dtype)
    softmax(scores)
    np.testing.assert_allclose(scores, [[1, 0, 0], [1 / 3] * 3, [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [(3, 10)],
            "takes packed queries, keys and values of 2 heads, but gets samples of shape (3, 10)",
        ),
        (
            [(3, 9)],
            "takes packed queries, keys and values of 2 heads, but gets samples of shape (3, 9)",
        ),
        (
            [(3, 4), (3, 4)],
            "takes packed queries, keys and values of 2 heads, "
            "but gets samples of shape (3, 4) and (3, 4)",
        ),
        ([(12,)], "takes sequences (length, features), but gets samples of shape (12,)"),
    ],
)
def test_attention_refuses_what_is_not_packed_for_its_heads(shapes, message):
    with pytest.raises(ShapeError) as caught:
        Attention(name="a", num_heads=2).output_shape(*shapes)
    assert str(caught.value) == message


def test_attention_refuses_tokens_that_are_not_those_of_its_keys():
    layer = Attention(name="a", num_heads=2, pad_id=0)
    with pytest.raises(ShapeError, match=r"^gets 5 keys, but tokens of shape \(4,\)$"):
        layer.output_shape((3, 4), (5, 8), (4,))


def test_attention_costs_six_products_and_keeps_its_weights():
    queries, keys, width, heads = 3, 5, 8, 2
    shapes, scores = [(queries, width), (keys, 2 * width)], heads * queries * keys
    product = Kernel(2 * queries * keys * width, 4 * (scores + (queries + keys) * width))
    layer = Attention(name="a", num_heads=heads)
    forward_kernels = layer.forward_cost(shapes, 4)
    backward_kernels = layer.backward_cost(shapes, 4, [True, True])
    assert (forward_kernels.count(product), backward_kernels.count(product)) == (2, 4)
    assert (len(forward_kernels), len(backward_kernels)) == (5, 6)
    packed = queries * width + keys * 2 * width
    assert kept_nbytes(layer, shapes, 4) == 4 * (packed + scores)
    dropping = Attention(name="a", num_heads=heads, dropout=0.1)
    assert len(dropping.forward_cost(shapes, 4)) == 6
    assert len(dropping.backward_cost(shapes, 4, [True, True])) == 7
    assert kept_nbytes(dropping, shapes, 4) == 4 * (packed + scores) + (4 + 1) * scores


# Projections and blocks --------------------------------------------------------------------------


def projection(first, last, bias="in_proj_bias"):
    return Projection(
        name="p",
        weight="in_proj_weight",
        bias=bias,
        in_features=4,
        out_features=12,
        first=first,
        last=last,
        bound=1.0,
    )


@pytest.mark.parametrize("bias", ["in_proj_bias", ""])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("room", [True, False])
def test_parts_of_a_weight_make_what_the_whole_makes(bias, order, room):
    whole, parts = projection(0, 12, bias), [projection(0, 4, bias), projection(4, 12, bias)]
    weights, x, dy = weights_of(whole), drawn(2, 3, 4), drawn(2, 3, 12, seed=1)
    y, backward = forward(whole, x, weights=weights)
    (dx,), wanted = backward(dy)
    into = {name: np.full_like(w, np.nan) for name, w in weights.items()} if room else {}
    run = new_pass(whole, weights, 2, into=into)
    slices = (slice(0, 4), slice(4, 12))
    done = [part.forward(run, x) for part in parts]
    np.testing.assert_allclose(np.concatenate([one for one, _ in done], axis=2), y, rtol=1e-13)
    total = 0.0
    for number in order:
        one, saved = parts[number], done[number][1]
        total += one.backward(run, saved, dy[..., slices[number]].copy(), [True])[0]
    np.testing.assert_allclose(total, dx, rtol=1e-12)
    assert set(run.gradients) == set(wanted)
    for name, gradient in run.gradients.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-13, err_msg=name)
        assert (gradient is into.get(name)) == room


def test_a_weight_in_parts_is_registered_once_and_ready_with_its_first_part():
    block = MultiheadAttention(name="m", embed_dim=4, num_heads=2)
    graph = GraphBuilder("x", "memory")
    scaled = Scale(name="s", factor=1.0)
    h = block.add_to(graph, graph.input("x"), graph.call(scaled, graph.input("memory")))
    built = graph.build(h)
    names = ["m.in_proj_weight", "m.in_proj_bias", "m.out_proj.weight", "m.out_proj.bias"]
    assert [p.name for p in built.parameters] == names
    assert list(built.ready_order) == names[::-1]
    assert [p.shape for p in built.parameters] == [(12, 4), (12,), (4, 4), (4,)]


@pytest.mark.parametrize("kind", ["multihead_attention", "transformer_encoder_layer"])
def test_heads_that_do_not_share_the_width_evenly_are_refused(kind):
    if kind == "multihead_attention":
        keys, names = {"embed_dim": 8, "num_heads": 3}, ("num_heads", "embed_dim")
    else:
        keys, names = {"d_model": 8, "nhead": 3}, ("nhead", "d_model")
    assert refusal(kind=kind, **keys) == [
        f"{names[0]}: 3 heads do not share {names[1]} 8 evenly; choose a divisor of it."
    ]


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ("TransformerEncoderLayer", "transformer_encoder_layer"),
        ("MultiheadAttention", "multihead_attention"),
        ("LayerNorm", "layer_norm"),
    ],
)
def test_torchs_names_of_layers_are_understood(spelled, kind):
    keys = {
        "layer_norm": {"normalized_shape": 4},
        "multihead_attention": {"embed_dim": 4, "num_heads": 2},
        "transformer_encoder_layer": {"d_model": 4, "nhead": 2},
    }
    made = TypeAdapter(AnyModule).validate_python({"kind": spelled, **keys[kind]})
    assert type(made) is LAYERS[kind]


def test_an_encoder_layer_has_the_defaults_of_torchs():
    layer = TypeAdapter(AnyModule).validate_python(
        {"kind": "transformer_encoder_layer", "d_model": 4, "nhead": 2}
    )
    assert (layer.dim_feedforward, layer.dropout, layer.activation) == (2048, 0.1, "relu")
    assert (layer.layer_norm_eps, layer.norm_first, layer.mask) == (1e-5, False, "none")


# Pooling, scale and gelu -------------------------------------------------------------------------


def test_the_mean_over_tokens_leaves_padding_out():
    x, tokens = drawn(3, 4, 2), np.array([[5, 0, 5, 0], [5, 5, 5, 5], [0, 0, 0, 0]])
    y, backward = forward(MeanPool(name="m", pad_id=0), x, tokens)
    wanted = [x[0, [0, 2]].mean(axis=0), x[1].mean(axis=0), np.zeros(2)]
    np.testing.assert_allclose(y, wanted, rtol=1e-13)
    (dx, none), _ = backward(np.ones((3, 2)))
    assert none is None
    np.testing.assert_allclose(dx[:, :, 0], [[0.5, 0, 0.5, 0], [0.25] * 4, [0] * 4], rtol=1e-14)
    plain, _ = forward(MeanPool(name="m"), x)
    np.testing.assert_allclose(plain, x.mean(axis=1), rtol=1e-13)


@pytest.mark.parametrize("inputs", [[(3, 2)], [(3, 2), (4,)]])
def test_a_mean_without_padding_needs_the_tokens_of_its_rows(inputs):
    with pytest.raises(ShapeError) as caught:
        MeanPool(name="m", pad_id=0).output_shape(*inputs)
    assert str(caught.value) == (f"takes the tokens of 3 rows too, but gets {tuple(inputs[1:])}")


def test_the_first_token_is_the_first_row():
    x = drawn(3, 4, 2)
    y, backward = forward(FirstToken(name="f"), x)
    np.testing.assert_array_equal(y, x[:, 0])
    (dx,), _ = backward(np.ones((3, 2)))
    assert (dx[:, 0] == 1).all()
    assert (dx[:, 1:] == 0).all()


def test_gelu_in_float32_is_as_exact_as_float32_allows():
    x = np.linspace(-12, 12, 100_001).astype(np.float32)
    y, saved = GELU(name="g").value(x)
    slope = GELU(name="g").slope(saved)
    assert y.dtype == slope.dtype == np.float32
    phi = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in x.astype(float)])
    bell = np.array([exp(-value * value / 2) / sqrt(2 * pi) for value in x.astype(float)])
    np.testing.assert_allclose(y, x * phi, rtol=2e-7, atol=3e-7)
    np.testing.assert_allclose(slope, phi + x * bell, rtol=0, atol=2e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_survives_values_of_any_size(dtype):
    largest = float(np.finfo(dtype).max)
    y, slope = GELU(name="g").value(np.array([-largest, -0.0, 0.0, largest, np.inf], dtype=dtype))
    assert y.tolist() == [0, 0, 0, largest, np.inf]
    np.testing.assert_allclose(slope, [0, 0.5, 0.5, 1, 1], rtol=1e-6)


def test_encoder_layers_stand_in_a_sequential_model_under_its_names():
    layer = {"kind": "transformer_encoder_layer", "d_model": 4, "nhead": 2, "dim_feedforward": 6}
    chosen = TypeAdapter(AnyModel).validate_python(
        {
            "kind": "sequential",
            "layers": [{"name": "first", **layer}, {"kind": "mean_pool"}],
            "input_shape": [3, 4],
        }
    )
    names = [p.name for p in chosen.parameters()]
    assert names[:2] == ["first.self_attn.in_proj_weight", "first.self_attn.in_proj_bias"]
    assert names[-2:] == ["first.norm2.weight", "first.norm2.bias"]
    assert len(names) == 12
    assert chosen.output_shape() == (4,)
