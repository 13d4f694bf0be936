"""torch's generator: its numbers and its permutations, against lists that torch has made."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

from simdp.rng import TorchGenerator

GOLDEN = Path(__file__).parents[1] / "golden"
SUMS = json.loads((GOLDEN / "g17_shuffle.json").read_text())["sha256_of_int32_little_endian"]


@pytest.fixture(scope="module")
def recorded():
    with np.load(GOLDEN / "g17_shuffle.npz") as archive:
        return dict(archive)


@for_each("case", SUMS)
def test_permutations_are_torchs(case):
    _, n, seed = (part.partition("=")[2] for part in case.split("|"))
    order = TorchGenerator(int(seed)).randperm(int(n))
    assert hashlib.sha256(order.astype("<i4").tobytes()).hexdigest() == SUMS[case]


@for_each("seed", [0, 1])
def test_a_generator_goes_on_where_it_stopped(seed, recorded):
    generator = TorchGenerator(seed)
    wanted = recorded[f"two_in_a_row|n=100|seed={seed}"]
    np.testing.assert_array_equal([generator.randperm(100), generator.randperm(100)], wanted)


@for_each("seed", [0, 1])
def test_the_stream_is_torchs(seed, recorded):
    wanted = recorded[f"random_u32|seed={seed}"].astype(np.uint32)
    np.testing.assert_array_equal(TorchGenerator(seed).random(1400)[1::2], wanted)  # low halves
    later = TorchGenerator(seed)
    later.skip(100)
    assert [later.random64() % 2**32 for _ in range(5)] == wanted[50:55].tolist()


def test_of_a_seed_the_lowest_32_bits_count():
    assert TorchGenerator(-1).random64() == TorchGenerator(2**32 - 1).random64()
    assert TorchGenerator(2**40 + 3).random64() == TorchGenerator(3).random64()


@for_each("seed", [0, 1])
def test_tensors_are_torchs_to_the_last_bit(seed, recorded):
    for dtype in ("float32", "float64"):
        unit = recorded[f"rand_{dtype}|seed={seed}"]
        found = TorchGenerator(seed).uniform(0.3, (5, 10), dtype)
        bound = found.dtype.type(0.3)
        np.testing.assert_array_equal(found.ravel(), ((2 * unit - 1) * bound).astype(dtype))
    wanted = recorded[f"randn_float32|seed={seed}"].astype(np.float32)
    found = TorchGenerator(seed).normal(1.0, (50,))
    np.testing.assert_array_equal(found, wanted, strict=True)
    found = TorchGenerator(seed).normal(1.0, (50,), "float64")
    np.testing.assert_array_max_ulp(found, recorded[f"randn_float64|seed={seed}"], 3)
    found = TorchGenerator(seed).normal(1.0, (15,), "float64")
    np.testing.assert_array_max_ulp(found, recorded[f"randn_float64_15|seed={seed}"], 1)


def test_of_few_normal_numbers_the_second_of_a_pair_waits_for_the_next_tensor():
    together, apart = TorchGenerator(3), TorchGenerator(3)
    wanted = together.normal(1.0, (4,))
    found = [*apart.normal(1.0, (3,)), *apart.normal(1.0, (1,))]
    np.testing.assert_array_equal(found, wanted)


def test_what_is_skipped_leaves_the_generator_as_what_is_drawn():
    for dtype in ("float32", "float64"):
        drawn, skipped = TorchGenerator(5), TorchGenerator(5)
        drawn.uniform(1.0, (100_000,), dtype)
        skipped.skip_uniform(100_000, dtype)
        assert drawn.random64() == skipped.random64()
        for count in (5, 16, 1000):
            drawn.normal(1.0, (count,), dtype)
            skipped.skip_normal(count, dtype)
            assert drawn.normal(1.0, (1,)) == skipped.normal(1.0, (1,))


@for_each("seed", [0, 1])
def test_a_random_split_is_cut_from_a_permutation(seed, recorded):
    wanted = recorded[f"random_split|n=50 into 37, 13|seed={seed}"]
    np.testing.assert_array_equal(TorchGenerator(seed).randperm(50), wanted)
