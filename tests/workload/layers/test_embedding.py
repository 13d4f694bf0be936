"""Embeddings of tokens, and of the places of a sequence."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, forward, refusal, weights_of

from simdp.workload.layers.base import Kept, Kernel, ShapeError
from simdp.workload.layers.embedding import Embedding, PositionEmbedding


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


@for_each("index", [-1, 4])
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
    with pytest.raises(ShapeError, match=r"^has 5 positions, but gets 6 tokens$"):
        layer.output_shape((6, 3))
