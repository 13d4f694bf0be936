"""Rotary embeddings: complex numbers as the oracle, and every way to stretch their waves."""

from math import ceil, floor, log, pi

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, forward
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.rotary import RopeParameters, Rotary

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def turned(x, speeds):
    """Column i and column i + half as one complex number, turned by its place times its speed."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    z = z * np.exp(1j * np.arange(x.shape[1])[:, None] * speeds)
    return np.concatenate([z.real, z.imag], axis=-1)


def test_a_pair_of_columns_turns_with_its_place():
    x = drawn(2, 5, 12)
    y, _ = forward(Rotary(name="r", head_dim=6, rope=RopeParameters(rope_theta=100.0)), x)
    speeds = 100.0 ** -(np.arange(3) / 3)
    wanted = [turned(head, speeds) for head in np.split(x, 2, axis=2)]
    np.testing.assert_allclose(y, np.concatenate(wanted, axis=2), rtol=1e-12)


def test_a_share_of_packed_queries_and_keys_turns():
    x = drawn(2, 5, 24)  # two heads of 4: query, key, value side by side
    rope = RopeParameters(partial_rotary_factor=0.5)
    y, _ = forward(Rotary(name="r", head_dim=4, rope=rope, packed=True), x)
    before, after = (array.reshape(2, 5, 2, 3, 4) for array in (x, y))
    np.testing.assert_array_equal(after[..., 2:], before[..., 2:])
    np.testing.assert_array_equal(after[:, :, :, 2], before[:, :, :, 2])
    for head, part in np.ndindex(2, 2):
        wanted = turned(before[:, :, head, part, :2], np.ones(1))
        np.testing.assert_allclose(after[:, :, head, part, :2], wanted, rtol=1e-12)


def test_products_depend_on_distances_alone():
    layer = Rotary(name="r", head_dim=8, rope=RopeParameters())
    q, k = (np.broadcast_to(drawn(8, seed=seed), (1, 6, 8)) for seed in (0, 1))
    (q, _), (k, _) = forward(layer, q), forward(layer, k)
    scores = q[0] @ k[0].T
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], rtol=1e-12)


# Waves -------------------------------------------------------------------------------------------


def test_usual_waves_are_those_of_golden_13():
    speeds, factor = RopeParameters().speeds(8)
    np.testing.assert_allclose(speeds, [1.0, 0.1, 0.01, 0.001], rtol=1e-14)
    assert factor == 1


def test_linear_stretches_all_waves():
    speeds, _ = RopeParameters(rope_type="linear", factor=4.0).speeds(8)
    np.testing.assert_allclose(speeds, np.array([1.0, 0.1, 0.01, 0.001]) / 4, rtol=1e-14)


def test_llama3_stretches_long_waves_and_leaves_short_ones():
    """As transformers chooses by the length of each wave."""
    speeds, _ = RopeParameters(**LLAMA3).speeds(128)
    usual, _ = RopeParameters(rope_theta=500000.0).speeds(128)
    for own, speed in zip(speeds, usual, strict=True):
        wave = 2 * pi / speed
        share = (8192 / wave - 1) / (4 - 1)
        wanted = speed / 8 if wave > 8192 else speed
        if 8192 / 4 <= wave <= 8192:
            wanted = (1 - share) * speed / 8 + share * speed
        assert own == pytest.approx(wanted, rel=1e-13)
    assert {round(ratio, 9) for ratio in usual / speeds} >= {1.0, 8.0}


@for_each("truncate", [True, False])
def test_yarn_mixes_between_two_columns(truncate):
    speeds, factor = RopeParameters(**YARN, rope_theta=1e6, truncate=truncate).speeds(128)
    assert factor == pytest.approx(0.1 * log(4) + 1)
    low, high = (128 * log(32768 / (turns * 2 * pi)) / (2 * log(1e6)) for turns in (32, 1))
    if truncate:
        low, high = floor(low), ceil(high)
    usual, _ = RopeParameters(rope_theta=1e6).speeds(128)
    for column, (own, speed) in enumerate(zip(speeds, usual, strict=True)):
        share = min(max((column - low) / (high - low), 0), 1)
        assert own == pytest.approx(speed * (1 - share) + speed / 4 * share, rel=1e-13)


def test_yarn_takes_its_factor_from_what_is_given():
    assert RopeParameters(**YARN, attention_factor=0.7).speeds(8)[1] == 0.7
    two = RopeParameters(**YARN, mscale=2.0, mscale_all_dim=1.0).speeds(8)[1]
    assert two == pytest.approx((0.2 * log(4) + 1) / (0.1 * log(4) + 1))


@for_each(
    ("keys", "line"),
    [
        ({"rope_type": "linear"}, "factor is required for rope_type: linear; add it."),
        (
            {"rope_type": "llama3", "factor": 8.0},
            "low_freq_factor is required for rope_type: llama3; add it.",
        ),
        ({"factor": 8.0}, "factor has no effect with rope_type: default; leave it out."),
        (
            LLAMA3 | {"beta_fast": 3.0},
            "beta_fast has no effect with rope_type: llama3; leave it out.",
        ),
        (
            LLAMA3 | {"high_freq_factor": 1.0},
            "high_freq_factor: 1 must be above low_freq_factor 1; enlarge it.",
        ),
    ],
)
def test_keys_that_do_not_suit_the_type_are_refused(keys, line):
    with pytest.raises(ValidationError) as caught:
        RopeParameters.model_validate(keys)
    assert [found.line for found in problems(caught.value, keys)] == [line]


@for_each(("packed", "words"), [(False, ""), (True, " of queries, keys and values")])
def test_features_that_are_no_heads_are_refused(packed, words):
    layer = Rotary(name="r", head_dim=4, rope=RopeParameters(), packed=packed)
    with pytest.raises(ShapeError) as caught:
        layer.output_shape((5, 10))
    assert str(caught.value) == (
        f"takes heads of 4 features{words}, but gets samples of shape (5, 10)"
    )
