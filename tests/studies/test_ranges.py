"""Sizes and world sizes as they are typed."""

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.results.collective import MAX_NBYTES
from simdp.studies.variants import parse_sizes, parse_world_sizes


@for_each(
    ("text", "sizes"),
    [
        ("25 MB", [25_000_000]),
        ("25MB:25MB", [25_000_000]),
        ("1KiB:8KiB", [1024, 2048, 4096, 8192]),
        (" 1 KiB : 10 KiB : 3 ", [1024, 3072, 9216]),
        ("8 B:100 B:4", [8, 32]),
        ("8192 TiB", [MAX_NBYTES]),
        ("1M:4M:2", [2**20, 2**21, 2**22]),  # as nccl-tests write them
    ],
)
def test_sizes_rise_by_a_factor(text, sizes):
    assert parse_sizes(text) == sizes


@for_each(
    ("text", "why"),
    [
        ("1024", '1024 has no unit; write for example "25 MiB".'),
        ("1 Ki", "'1 Ki' has an unknown unit 'Ki'; write \"1 KiB\" or \"1 KB\"."),
        ("5 us", "'5 us' is not a data size; write for example \"25 MiB\"."),
        ("", "'' is not a number with a unit; write for example \"25 MiB\"."),
        ("0 B:1 MiB", "0 B is out of range; give 1 B ... 8388608 GiB."),
        ("-1 KiB", "-1 KiB is out of range; give 1 B ... 8388608 GiB."),
        ("1 KiB:1e400 B", "1e400 B is out of range; give 1 B ... 8388608 GiB."),
        ("8193 TiB", "8193 TiB is out of range; give 1 B ... 8388608 GiB."),
        ("1.5 B", "1.5 B is not a whole number of bytes; round it."),
        ("1 GiB:1 KiB", "is reversed; write 1 KiB:1 GiB for rising sizes."),
        ("1 B:8 B:1", "has the factor '1'; give a whole number of 2 or more."),
        ("1 B:8 B:x", "has the factor 'x'; give a whole number of 2 or more."),
        ("1 MiB,16 MiB", "is not FIRST:LAST[:FACTOR]; write for example 1KiB:1GiB:2."),
        ("1 B:8 B:2:2", "is not FIRST:LAST[:FACTOR]; write for example 1KiB:1GiB:2."),
    ],
)
def test_sizes_that_are_none_are_refused(text, why):
    with pytest.raises(ScenarioError) as caught:
        parse_sizes(text)
    assert caught.value.problems == [f"--sizes {text}: {why}"]


@for_each(
    ("text", "sizes"),
    [("8", [8]), ("2,4,12", [2, 4, 12]), ("2:64", [2, 4, 8, 16, 32, 64]), ("3:20", [3, 6, 12])],
)
def test_world_sizes_are_listed_or_doubled(text, sizes):
    assert parse_world_sizes(text) == sizes


@for_each(
    ("text", "why"),
    [
        ("eight", "is not 8, 2,4,8 or 2:64."),
        ("2:8:64", "is not 8, 2,4,8 or 2:64."),
        ("2,", "is not 8, 2,4,8 or 2:64."),
        ("0", "0 is out of range; give 1 ... 1048576."),
        ("2:2097152", "2097152 is out of range; give 1 ... 1048576."),
        ("8,2", "does not rise; write each once, the smallest first."),
        ("64:2", "does not rise; write each once, the smallest first."),
        ("2,2", "does not rise; write each once, the smallest first."),
    ],
)
def test_world_sizes_that_are_none_are_refused(text, why):
    with pytest.raises(ScenarioError) as caught:
        parse_world_sizes(text)
    assert caught.value.problems == [f"--world-size {text}: {why}"]
