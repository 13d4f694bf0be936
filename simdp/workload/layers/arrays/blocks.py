"""Blocks: parts of an array that stay in a core's cache while several steps go over them."""

from __future__ import annotations

from collections.abc import Iterator

CACHED_ELEMENTS = 2**15
"""128 KiB of float32: three arrays of a block fit into a core's second cache."""


def blocks(num_rows: int, row_elements: int = 1, elements: int | None = None) -> Iterator[slice]:
    """Cut rows into blocks, each of whole rows and of about so many elements.

    Parameters
    ----------
    num_rows : int
        How many there are.
    row_elements : int
        Elements of each.
    elements : int, optional
        Most elements of a block; one row is the least.
    """
    most = CACHED_ELEMENTS if elements is None else elements
    step = max(most // max(row_elements, 1), 1)
    for begin in range(0, num_rows, step):
        yield slice(begin, begin + step)
