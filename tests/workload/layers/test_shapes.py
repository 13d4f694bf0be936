"""What is no sequence is refused by every layer over sequences."""

import pytest
from for_each import for_each

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.embedding import PositionalEncoding, PositionEmbedding
from simdp.workload.layers.pooling import MeanPool
from simdp.workload.layers.tensor_ops import FirstToken


@for_each(
    "layer",
    [
        PositionalEncoding(name="l", d_model=3),
        PositionEmbedding(name="l", num_embeddings=5, embedding_dim=3),
        MeanPool(name="l"),
        FirstToken(name="l"),
    ],
    ids=lambda layer: layer.kind,
)
@for_each("shape", [(3,), (2, 2, 3)])
def test_a_layer_over_sequences_refuses_what_is_none(layer, shape):
    with pytest.raises(ShapeError) as caught:
        layer.output_shape(shape)
    assert str(caught.value) == (
        f"takes sequences (length, features), but gets samples of shape {shape}"
    )
