"""Bus bandwidth and counts as nccl-tests defines them."""

import pytest
from for_each import for_each

from simdp.collectives import FAMILIES
from simdp.results.collective import (
    IN_PIECES,
    ITEMSIZE,
    REDUCING,
    ROOTED,
    bus_bandwidth_factor,
    count,
    redop,
    shown_root,
)


@for_each(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75),
        ("reduce_scatter", 0.875),
        ("all_gather", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("barrier", None),
    ],
)
def test_the_factor_of_eight_ranks(collective, factor):
    assert bus_bandwidth_factor(collective, 8) == factor


def test_every_collective_is_known_here():
    assert {*IN_PIECES, *REDUCING, *ROOTED} <= {*FAMILIES}
    assert all(bus_bandwidth_factor(name, 2) for name in FAMILIES if name != "barrier")


def test_fewer_than_one_rank_is_refused():
    with pytest.raises(ValueError, match="world_size must be >= 1, got 0"):
        bus_bandwidth_factor("all_reduce", 0)


def test_the_count_is_of_the_buffer_or_of_one_ranks_piece():
    assert count("all_reduce", 1024, 8, "float") == 256
    assert count("all_gather", 1024, 8, "float") == 32
    assert count("broadcast", 1025, 8, "half") == 512
    assert sorted({*ITEMSIZE.values()}) == [1, 2, 4, 8]


def test_only_sums_have_an_operation_and_only_the_rooted_a_root():
    assert [redop("reduce"), redop("all_gather")] == ["sum", "none"]
    assert [shown_root("broadcast", 3), shown_root("all_reduce", 0)] == [3, -1]
