"""Gradients that travel as bytes, against the formulas of torch's hooks written out once more."""

import numpy as np
from every_strategy import launches, run_of, scenario
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

import simdp
from simdp.engine.compression import average, quantized
from simdp.engine.payload import FlatBuffers
from simdp.steps.ops import EncodeBucket
from simdp.steps.partition import Bucket

HOOKS = ["quantization_pertensor", "quantization_perchannel"]


def code(size, row=None):
    return EncodeBucket(Bucket(("w",), size, "float32", 4.0 * size), row, "bucket 0")


def by_hand(values):
    """One row: scale and zero point as MinMaxObserver's, then there and back, number by number."""
    least, most = min(*values, 0.0), max(*values, 0.0)
    scale = max((most - least) / 255, float(np.finfo(np.float32).eps))
    zero = min(max(round(-least / scale), 0), 255)
    sent = [min(max(round(value / scale) + zero, 0), 255) for value in values]
    return [scale * (byte - zero) for byte in sent]


values = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=20)


@given(values)
def test_one_row_is_rounded_to_bytes_between_its_ends(numbers):
    flat = np.array(numbers, np.float32)
    step = (max(*numbers, 0.0) - min(*numbers, 0.0)) / 255
    found = quantized(flat, code(flat.size))
    # A number between two bytes may fall to either in another precision.
    np.testing.assert_allclose(found, by_hand(numbers), atol=step * 1.01 + 1e-6)
    np.testing.assert_allclose(found, flat, atol=step * 1.01 + 1e-6)


def test_rows_have_scales_of_their_own():
    flat = np.concatenate([np.linspace(-1, 1, 512), np.linspace(0, 1e-3, 100)]).astype(np.float32)
    found = quantized(flat, code(612, 512))
    np.testing.assert_allclose(found[512:], by_hand([*flat[512:].tolist(), 0.0])[:-1], atol=4e-6)
    assert np.abs(quantized(flat, code(612))[512:] - flat[512:]).max() > 1e-4


@for_each(("size", "rows"), [(511, 1), (512, 2), (513, 2), (1024, 3)])
def test_a_row_of_padding_follows_where_rows_divide_the_bucket(size, rows):
    assert (code(size, 512).num_rows, code(size, 512).num_bytes) == (rows, 512 * rows)
    assert (code(size).num_rows, code(size).num_bytes) == (1, size)


def test_the_mean_is_added_in_the_order_of_the_ranks():
    buffers = FlatBuffers({"w": (5,)}, 3, np.dtype(np.float32))
    own = [np.random.default_rng(rank).normal(size=5).astype(np.float32) for rank in range(3)]
    for flat, numbers in zip(buffers.flat, own, strict=True):
        flat[...] = numbers
    average(buffers, code(5), 3.0)
    wanted = sum(quantized(numbers, code(5)) for numbers in own) / np.float32(3)
    for flat in buffers.flat:
        np.testing.assert_array_equal(flat, wanted)


@for_each("hook", HOOKS)
def test_training_stays_near_what_exact_gradients_learn(hook):
    exact = simdp.simulate(scenario({"kind": "ddp"}, numerics=True))
    coded = simdp.simulate(scenario({"kind": "ddp", "comm_hook": hook}, numerics=True))
    assert coded.metrics["replicas_identical"]
    for name, wanted in exact.replicas[0].items():
        found = coded.replicas[0][name]
        np.testing.assert_allclose(found, wanted, atol=0.02)
    assert coded.metrics["loss"] != exact.metrics["loss"]


@for_each(("hook", "num_bytes", "rows"), [(HOOKS[0], 119, 1), (HOOKS[1], 512, 1)])
def test_scales_travel_before_the_bytes_of_all_ranks(hook, num_bytes, rows):
    run = run_of(scenario({"kind": "ddp", "comm_hook": hook}))
    found = [op for op in launches(run) if op.step == 1]
    assert [op.nbytes for op in found] == [4 * 8 * rows, 4 * num_bytes]
