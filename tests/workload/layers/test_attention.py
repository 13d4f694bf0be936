"""Attention against its formula, packed in one input, in two, or apart; masks, dropout, costs."""

from math import sqrt

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, forward, kept_nbytes

from simdp.workload.layers import attention
from simdp.workload.layers.attention import Attention, distances, softmax
from simdp.workload.layers.base import Kernel, Pass, ShapeError


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
    monkeypatch.setattr(attention, "BLOCK_SCORES", 2 * 2 * 3 * 3)
    again, backward = forward(layer, packed)
    (dagain,), _ = backward(dy)
    np.testing.assert_allclose(again, y, rtol=1e-13)
    np.testing.assert_allclose(dagain, dpacked, rtol=1e-12, atol=1e-15)


def test_attention_keeps_its_mean_under_dropout():
    packed = np.concatenate([np.zeros((400, 8, 8)), np.ones((400, 8, 4))], axis=2)
    y, _ = forward(Attention(name="a", num_heads=2, dropout=0.3), packed)
    assert y.mean() == pytest.approx(1, abs=0.01)
    assert y.std() == pytest.approx(sqrt(0.3 / 0.7 / 8), rel=0.05)  # eight weights of 1/8 each


@for_each("dtype", ["float32", "float64"])
def test_softmax_survives_scores_of_any_size(dtype):
    scores = np.array([[1e4, 0, -1e4], [-1e4, -1e4, -1e4], [-np.inf] * 3], dtype=dtype)
    softmax(scores)
    np.testing.assert_allclose(scores, [[1, 0, 0], [1 / 3] * 3, [0, 0, 0]], rtol=1e-6)


@for_each(
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
    packed = queries * width + keys * 2 * width
    split, merge = Kernel(0, 2 * 4 * packed), Kernel(0, 2 * 4 * queries * width)
    softmax, back = Kernel(5 * scores, 2 * 4 * scores), Kernel(4 * scores, 3 * 4 * scores)
    assert layer.forward_cost(shapes, 4) == [split, product, softmax, product, merge]
    both = [product, product]
    assert layer.backward_cost(shapes, 4, [True, True]) == [*both, back, *both, split]
    assert kept_nbytes(layer, shapes, 4) == 4 * (packed + scores)
    dropping = Attention(name="a", num_heads=heads, dropout=0.1)
    assert dropping.forward_cost(shapes, 4)[3] == Kernel(2 * scores, (4 + 4 + 1) * scores)
    assert len(dropping.backward_cost(shapes, 4, [True, True])) == 7
    assert kept_nbytes(dropping, shapes, 4) == 4 * (packed + scores) + (4 + 1) * scores


# How queries, keys and values are packed ---------------------------------------------------------

LAYER = Attention(name="a", num_heads=2, causal=True)
APART = list(np.random.default_rng(0).standard_normal((3, 2, 5, 8)))
DY = np.random.default_rng(1).standard_normal((2, 5, 8))


def packed(arrays, parts):
    ends = np.cumsum(parts)
    return [
        np.concatenate(arrays[end - n : end], axis=2) for n, end in zip(parts, ends, strict=True)
    ]


def passed(inputs):
    run = Pass({}, samples=np.arange(2))
    y, saved = LAYER.forward(run, *inputs)
    return y, LAYER.backward(run, saved, DY, [True] * len(inputs))


@for_each("parts", [(3,), (1, 2)])
def test_how_queries_keys_and_values_are_packed_changes_nothing(parts):
    y, below = passed(APART)
    other, others = passed(packed(APART, parts))
    np.testing.assert_array_equal(other, y)
    for gradient, wanted in zip(others, packed(below, parts), strict=True):
        np.testing.assert_array_equal(gradient, wanted)


def test_how_they_are_packed_changes_no_cost():
    shapes = {3: [(5, 24)], 2: [(5, 8), (5, 16)], 1: [(5, 8)] * 3}
    costs = [(LAYER.forward_cost(s, 4), kept_nbytes(LAYER, s, 4)) for s in shapes.values()]
    assert costs[0] == costs[1] == costs[2]


@for_each(
    "shapes", [[(5, 8), (4, 8), (5, 8)], [(5, 8), (5, 8), (5, 6)], [(5, 8), (5, 8)], [(5, 23)]]
)
def test_inputs_that_do_not_go_together_are_refused(shapes):
    with pytest.raises(ShapeError, match="takes packed queries, keys and values of 2 heads"):
        LAYER.output_shape(*shapes)


# Heads that share keys, windows, ALiBi -----------------------------------------------------------


def repeated(array, num_heads, times):
    """Each head so many times, as transformers' repeat_kv."""
    heads = array.reshape(*array.shape[:2], num_heads, -1)
    return heads.repeat(times, axis=2).reshape(*array.shape[:2], -1)


@for_each("implementation", ["eager", "flash"])
@for_each("dropout", [0.0, 0.3])
def test_heads_that_share_keys_are_those_of_repeated_keys(implementation, dropout):
    q, k, v = drawn(2, 5, 12), drawn(2, 5, 6, seed=1), drawn(2, 5, 6, seed=2)
    keys = {"num_heads": 4, "causal": True, "dropout": dropout, "implementation": implementation}
    y, backward = forward(Attention(name="a", num_kv_heads=2, **keys), q, k, v)
    many = [repeated(array, 2, 2) for array in (k, v)]
    wanted, wanted_backward = forward(Attention(name="a", **keys), q, *many)
    np.testing.assert_allclose(y, wanted, rtol=1e-13)
    dy = drawn(2, 5, 12, seed=3)
    (dq, *below), _ = backward(dy)
    (wanted_dq, *slopes), _ = wanted_backward(dy)
    np.testing.assert_allclose(dq, wanted_dq, rtol=1e-12)
    for gradient, slope in zip(below, slopes, strict=True):
        summed = slope.reshape(2, 5, 2, 2, 3).sum(axis=3).reshape(2, 5, 6)
        np.testing.assert_allclose(gradient, summed, rtol=1e-11, atol=1e-14)


LENGTH = 7
TOKENS = [np.array([[7, 0, 7, 7, 7, 7, 0], [7] * 7, [0] * 7])]


@for_each(
    ("keys", "tokens"),
    [
        ({}, []),
        ({"causal": True}, []),
        ({"causal": True}, TOKENS),
        ({"causal": False}, TOKENS),
        ({"causal": True, "window": 3}, []),
        ({"causal": True, "window": 1, "alibi": 8.0}, TOKENS),
        ({"alibi": 8.0}, []),
        ({"causal": True, "dropout": 0.4}, []),
    ],
)
@for_each("scores", [2**16, 2**7, 1])
def test_both_implementations_give_the_same_numbers(keys, tokens, scores, monkeypatch):
    """As many samples in a block as there are, one, or a few queries of one head alone."""
    monkeypatch.setattr(attention, "SHORT_SCORES", scores)
    monkeypatch.setattr(attention, "FEW_ROWS", 3)
    given, dy = [drawn(3, LENGTH, n, seed=n) for n in (8, 4, 4)], drawn(3, LENGTH, 8)
    more = {"num_heads": 4, "num_kv_heads": 2, "pad_id": 0 if tokens else None, **keys}
    found = []
    for way in ("eager", "flash"):
        y, backward = forward(Attention(name="a", implementation=way, **more), *given, *tokens)
        found.append([y, *backward(dy)[0][:3]])
    for eager, own in zip(*found, strict=True):
        np.testing.assert_allclose(own, eager, rtol=1e-12, atol=1e-14)


def test_flash_takes_keys_of_another_length(monkeypatch):
    monkeypatch.setattr(attention, "SHORT_SCORES", 1)
    monkeypatch.setattr(attention, "FEW_ROWS", 2)
    q, kv = drawn(2, 3, 4), drawn(2, 5, 8, seed=1)
    for causal in (False, True):
        keys = {"num_heads": 2, "causal": causal}
        wanted, _ = forward(Attention(name="a", **keys), q, kv)
        y, _ = forward(Attention(name="a", implementation="flash", **keys), q, kv)
        np.testing.assert_allclose(y, wanted, rtol=1e-12)


def test_a_window_shows_the_last_keys_alone():
    packed = drawn(1, 6, 12)
    y, _ = forward(Attention(name="a", num_heads=2, causal=True, window=3), packed)
    q, k, v = np.split(packed[0], 3, axis=1)
    far = np.arange(6)[:, None] - np.arange(6)
    np.testing.assert_allclose(
        y[0], plain_attention(q, k, v, 2, (far < 0) | (far >= 3)), rtol=1e-12
    )


def test_alibi_lets_scores_fall_with_the_distance():
    # Slopes of two heads: 2^-4 and 2^-8.
    packed = drawn(1, 5, 12)
    y, _ = forward(Attention(name="a", num_heads=2, causal=True, alibi=8.0), packed)
    q, k, v = (part.reshape(5, 2, 2) for part in np.split(packed[0], 3, axis=1))
    far = np.arange(5)[:, None] - np.arange(5)
    for head, slope in enumerate((2**-4, 2**-8)):
        scores = q[:, head] @ k[:, head].T / sqrt(2) - slope * far
        weights = np.where(far < 0, 0, np.exp(scores))
        weights /= weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y[0, :, 2 * head : 2 * head + 2], weights @ v[:, head])


def test_slopes_of_heads_that_are_no_power_of_two_are_those_of_twice_as_many():
    # Press et al. and transformers' build_mpt_alibi_tensor: every second of four, then the rest
    rises = -distances(3, 2, 8.0, "float64")[:, 0]
    np.testing.assert_allclose(rises, [2**-4, 2**-8, 2**-2])


def test_interleaved_heads_are_the_same_heads():
    packed = drawn(2, 5, 12)
    y, backward = forward(Attention(name="a", num_heads=2, causal=True), packed)
    order = np.arange(12).reshape(3, 2, 2).transpose(1, 0, 2).reshape(-1)
    layer = Attention(name="a", num_heads=2, causal=True, interleaved=True)
    other, other_backward = forward(layer, packed[:, :, order].copy())
    np.testing.assert_array_equal(other, y)
    dy = drawn(2, 5, 4, seed=1)
    np.testing.assert_array_equal(other_backward(dy)[0][0], backward(dy)[0][0][:, :, order])


# One kernel each way -----------------------------------------------------------------------------


@for_each(
    ("keys", "pairs"),
    [
        ({}, 64.0),
        ({"causal": True}, 32.0),
        ({"causal": True, "window": 8}, 32.0),
        ({"causal": True, "window": 3}, 8 * 3 - 4.5),
    ],
)
def test_flash_counts_the_scores_that_somebody_looks_at(keys, pairs):
    layer = Attention(name="a", num_heads=4, num_kv_heads=2, implementation="flash", **keys)
    shapes = [(8, 20), (8, 10), (8, 10)]
    (kernel,) = layer.forward_cost(shapes, 2)
    assert kernel.flops == 4 * pairs * 20
    assert kernel.nbytes == 2 * (8 * 20 + 2 * 8 * 10 + 8 * 20) + 4 * 4 * 8
    (back,) = layer.backward_cost(shapes, 2, [True] * 3)
    assert back.flops == 2.5 * kernel.flops


@for_each("dropout", [0.0, 0.1])
def test_flash_keeps_a_number_of_each_row_and_no_scores(dropout):
    layer = Attention(name="a", num_heads=4, dropout=dropout, implementation="flash")
    kept = [kept_nbytes(layer, [(length, 3 * 20)], 2) for length in (64, 128)]
    assert kept[1] == 2 * kept[0] == 2 * 64 * (2 * 4 * 20 + 4 * 4)


def test_an_eager_softmax_in_float32_is_kept_beside_its_16_bits():
    # golden 20, bfloat16 and eager: weights in both; copies of keys and values for every head
    shapes, scores = [(10, 32), (10, 16), (10, 16)], 4 * 10 * 10
    layer = Attention(name="a", num_heads=4, num_kv_heads=2, causal=True, upcast=True)
    assert kept_nbytes(layer, shapes, 2) == 2 * 3 * 10 * 32 + (4 + 2) * scores
    assert kept_nbytes(layer, shapes, 4) == 4 * 3 * 10 * 32 + 4 * scores
    plain = Attention(name="a", num_heads=4, num_kv_heads=2, causal=True)
    assert len(layer.forward_cost(shapes, 2)) == len(plain.forward_cost(shapes, 2)) + 2
    assert layer.forward_cost(shapes, 4) == plain.forward_cost(shapes, 4)
