"""Blocks cover every row once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simdp.workload.layers.base import CACHED_ELEMENTS, blocks


@given(st.integers(0, 50), st.integers(0, 9), st.integers(1, 40))
def test_blocks_cover_every_row_once_and_hold_no_more_than_they_may(rows, width, elements):
    parts = [np.arange(rows)[part] for part in blocks(rows, width, elements)]
    assert np.concatenate([np.arange(0), *parts]).tolist() == list(range(rows))
    assert all(len(part) == 1 or len(part) * width <= elements for part in parts)


def test_a_block_fits_into_a_cores_cache_unless_told_otherwise():
    first, *_ = blocks(10**6, 100)
    assert (first.start, first.stop) == (0, CACHED_ELEMENTS // 100)
