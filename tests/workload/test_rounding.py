"""Rounding against torch's figures and, value by value, against NumPy's and ml_dtypes' casts."""

import warnings
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.engine.replicas import Replicas
from simdp.workload.precision import DTYPES, cast, numpy_dtype, rounded

INF = float("inf")
LOW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
every_low = for_each("low", LOW)

TORCH = [  # x, x.half().float(), x.bfloat16().float(); torch 2.13.0
    (0.0, 0.0, 0.0),
    (-0.0, -0.0, -0.0),
    (0.3333333432674408, 0.333251953125, 0.333984375),
    (-0.10000000149011612, -0.0999755859375, -0.10009765625),
    (1.001220703125, 1.0009765625, 1.0),
    (1.00048828125, 1.0, 1.0),
    (1.00146484375, 1.001953125, 1.0),
    (1.00390625, 1.00390625, 1.0),
    (1.01171875, 1.01171875, 1.015625),
    (2049.0, 2048.0, 2048.0),
    (2051.0, 2052.0, 2048.0),
    (65504.0, 65504.0, 65536.0),
    (65519.99609375, 65504.0, 65536.0),
    (65520.0, INF, 65536.0),
    (-65520.0, -INF, -65536.0),
    (1000000.0, INF, 999424.0),
    (0.0010000000474974513, 0.0010004043579101562, 0.00099945068359375),
    (6.0999998822808266e-05, 6.097555160522461e-05, 6.103515625e-05),
    (3.099999958067201e-05, 3.0994415283203125e-05, 3.0994415283203125e-05),
    (1.0000000116860974e-07, 1.1920928955078125e-07, 1.0011717677116394e-07),
    (2.9802322387695312e-08, 0.0, 2.9802322387695312e-08),
    (2.980232594040899e-08, 5.960464477539063e-08, 2.9802322387695312e-08),
    (-9.99999993922529e-09, -0.0, -1.0011717677116394e-08),
    (1.0000000031710769e-30, 0.0, 9.98402083170343e-31),
    (9.99994610111476e-41, 0.0, 9.183549615799121e-41),
    (3.39617752923046e38, INF, INF),
    (-3.3999999521443642e38, -INF, -INF),
    (INF, INF, INF),
    (-INF, -INF, -INF),
]


WIDE = [  # x in float64, x.half().double(), x.bfloat16().double(); torch 2.14.1
    (1 + 2**-11 + 2**-40, 1.0, 1.0),  # NumPy's own cast to float16 gives 1.0009765625
    (1 + 3 * 2**-11 - 2**-40, 1.001953125, 1.0),
    (-(1 + 2**-8 + 2**-40), -1.00390625, -1.0),
    (1 + 2**-8 - 2**-40, 1.00390625, 1.0),
    (65520 - 2**-20, INF, 65536.0),
    (3e-08, 5.960464477539063e-08, 3.003515303134918e-08),
    (2**-25 + 2**-60, 0.0, 2.9802322387695312e-08),
    (1e39, INF, INF),
]


def plain_cast(array, low):
    """The other way: there and back through the 16-bit dtype itself."""
    with np.errstate(all="ignore"):
        return array.astype(LOW[low]).astype(array.dtype)


def assert_same_bits(found, wanted):
    """Equal to the sign of zeros, apart from which of the NaN."""
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])


# Values ------------------------------------------------------------------------------------------


@for_each("dtype", [np.float32, np.float64])
@for_each(("column", "low"), [(1, "float16"), (2, "bfloat16")])
def test_rounding_gives_torchs_figures(column, low, dtype):
    figures = np.array(TORCH, dtype)
    assert_same_bits(rounded(figures[:, 0], low), figures[:, column])


@for_each(("column", "low"), [(1, "float16"), (2, "bfloat16")])
def test_float64_goes_by_float32_as_in_torch(column, low):
    """In a cast, in a value that stays wide, and in a bucket that a hook compresses."""
    x, wanted = np.array(WIDE)[:, 0], np.array(WIDE)[:, column]
    assert cast(x, numpy_dtype(low)).dtype == LOW[low]
    assert_same_bits(cast(x, numpy_dtype(low)).astype(np.float64), wanted)
    assert_same_bits(rounded(x, low), wanted)
    for compressed in (True, False):
        view = np.empty(len(x), LOW[low])
        Replicas.fill(
            SimpleNamespace(gradients=[{"w": x}], world_size=1), [view], "w", 1.0, compressed
        )
        assert_same_bits(view.astype(np.float64), wanted)


@every_low
def test_what_lies_between_two_neighbours_goes_to_the_nearer_and_halfway_to_the_even(low):
    every = np.arange(2**16, dtype=np.uint16).view(LOW[low]).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    halfway = ((every[:-1].astype(np.float64) + every[1:]) / 2).astype(np.float32)
    tried = np.concatenate(
        [every, halfway, np.nextafter(halfway, np.float32(INF)), np.nextafter(halfway, -INF)],
        dtype=np.float32,
    )
    assert_same_bits(rounded(tried, low), plain_cast(tried, low))
    assert_same_bits(rounded(every, low), every)


@every_low
@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_any_float32_is_rounded_as_a_cast_does(low, bits):
    array = np.array(bits, np.uint32).view(np.float32)
    assert_same_bits(rounded(array, low), plain_cast(array, low))


@every_low
@given(st.lists(st.floats(width=32), max_size=20))
def test_rounding_twice_is_rounding_once(low, values):
    once = rounded(np.array(values, np.float32), low)
    assert_same_bits(rounded(once, low), once)


@every_low
def test_float64_is_rounded_through_float32_as_in_torch(low):
    tie = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[low]
    above = np.array([1 + tie + 2.0**-40])
    assert rounded(above, low) == 1.0  # torch.tensor([...], dtype=float64).half(), .bfloat16()
    assert rounded(above, "float32") == 1 + tie
    assert rounded(above, low).dtype == np.float64


# Arrays ------------------------------------------------------------------------------------------


@for_each("low", [None, "float32", "float64"])
def test_what_is_not_narrower_returns_the_array_itself(low):
    array = np.array([1 / 3], np.float32)
    assert rounded(array, low) is array


@every_low
@for_each("shape", [(), (0,), (3,), (2, 0, 3), (4, 5), (2, 3, 4)])
def test_every_shape_is_kept_and_the_input_left_as_it_is(low, shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32).T
    before = array.copy()
    found = rounded(array, low)
    assert found.shape == array.shape
    assert_same_bits(np.asarray(found), plain_cast(array, low))
    assert_same_bits(array, before)


@every_low
def test_parts_of_arrays_are_rounded_too(low):
    array = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)[::2, 1::3]
    assert_same_bits(rounded(array, low), plain_cast(array, low))


@every_low
def test_no_value_makes_numpy_warn_or_raise(low):
    odd = [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0x7F7FFFFF, 1]
    array = np.array(odd, np.uint32).view(np.float32)
    huge = np.array([1e300, -1e300, np.nan])
    with np.errstate(all="raise"), warnings.catch_warnings(action="error"):
        assert np.isnan(rounded(array, low)).tolist() == [True, True, True, False, False, False]
        np.testing.assert_array_equal(rounded(huge, low), [INF, -INF, np.nan])
        np.testing.assert_array_equal(rounded(huge, "float32"), [INF, -INF, np.nan])


# Names -------------------------------------------------------------------------------------------


@for_each(("name", "nbytes"), [("bfloat16", 2), ("float16", 2), ("float32", 4), ("float64", 8)])
def test_a_dtype_is_found_by_its_name(name, nbytes):
    assert numpy_dtype(name).name == name
    assert numpy_dtype(name).itemsize == nbytes
    assert list(DTYPES) == sorted(DTYPES)


def test_an_unknown_dtype_is_refused_with_a_hint():
    with pytest.raises(ValueError, match=r"^unknown dtype 'flaot16'. Did you mean "):
        numpy_dtype("flaot16")
    with pytest.raises(ValueError, match=r"Did you mean 'float16'\? "):
        rounded(np.zeros(1, np.float32), "flaot16")
