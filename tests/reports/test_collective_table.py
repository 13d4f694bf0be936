"""Tables of collectives: nccl-tests' columns, and what explains them."""

import io

from for_each import for_each
from rich.console import Console

from simdp.reports.collective_table import microseconds, size, tables
from simdp.results.collective import (
    Bottleneck,
    CollectiveCurve,
    CollectivePoint,
    CollectiveStudy,
)

LINK = Bottleneck("the link from rank 0 to rank 1", 0.875)


def point(nbytes, seconds, algorithm="ring", measured=None, link=LINK):
    return CollectivePoint(nbytes, seconds, algorithm, "vector fabric", link, {}, measured)


def written(*points, asked="ring", collective="all_reduce", against=None, width=80):
    curves = (CollectiveCurve(asked, 8, points),)
    study = CollectiveStudy("1", collective, "box", "float", 0, curves, against)
    stream = io.StringIO()
    Console(file=stream, width=width).print(tables(study), soft_wrap=True)
    return [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]


def test_the_columns_are_those_of_nccl_tests_with_their_units():
    lines = written(point(1024, 80e-6), point(2**30, 0.1))
    assert lines[0] == "all_reduce, ring, on box: 8 ranks"
    assert lines[1].split() == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw"]
    assert lines[2].split() == ["(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"]
    assert lines[4].split() == ["1024", "256", "float", "sum", "-1", "80.00", "0.01", "0.02"]
    last = ["1073741824", "268435456", "float", "sum", "-1", "100000", "10.74", "18.79"]
    assert lines[5].split() == last


def test_below_the_table_stand_the_bottleneck_and_the_clock():
    assert written(point(1024, 80e-6), point(2**30, 0.1))[-2:] == [
        "bottleneck at 1 GiB: the link from rank 0 to rank 1, busy 87.5 % of the time",
        "clock: vector fabric",
    ]


def test_auto_shows_its_choice_and_each_crossover():
    lines = written(
        point(1024, 1e-6, "tree"), point(2048, 1e-6, "tree"), point(4096, 1e-6), asked="auto"
    )
    assert lines[1].split()[-1] == "algorithm"
    assert [line.split()[-1] for line in lines[4:7]] == ["tree", "tree", "ring"]
    assert lines[7] == "from 4 KiB on: ring instead of tree"


def test_a_log_adds_its_time_its_bandwidth_and_the_error():
    points = point(1024, 90e-6, measured=100e-6), point(2048, 100e-6, measured=80e-6)
    lines = written(*points, point(4096, 1e-4), against="a.log")
    assert lines[1].split()[-3:] == ["measured", "busbw", "error"]
    assert lines[4].split()[-4:] == ["100.0", "0.02", "-10.0", "%"]
    assert lines[5].split()[-4:] == ["80.00", "0.04", "+25.0", "%"]
    assert lines[6].split()[-3:] == ["-", "-", "-"]
    assert lines[7] == "time against a.log: mean error 17.5 %, largest +25.0 % at 2 KiB"


def test_a_barrier_has_a_time_but_no_bandwidth_and_no_bottleneck():
    lines = written(point(0, 5e-6, link=None), collective="barrier")
    assert lines[4].split() == ["0", "0", "float", "none", "-1", "5.00", "-", "-"]
    assert lines[5:] == ["clock: vector fabric"]


def test_a_narrow_terminal_cuts_no_number():
    points = [point(1024, 90e-6, "recursive_doubling", measured=100e-6)]
    named = {"asked": "auto", "against": "a.log"}
    assert written(*points, width=20, **named) == written(*points, width=200, **named)


def test_a_name_with_brackets_is_no_markup():
    asked = "auto(candidates=[ring, tree])"
    assert written(point(1024, 1e-6), asked=asked)[0].split(", on")[0] == f"all_reduce, {asked}"


@for_each(
    ("seconds", "text"),
    [
        (0.0, "0.00"),
        (8.1e-6, "8.10"),
        (99.99e-6, "99.99"),
        (99.999e-6, "100.0"),
        (9999.9e-6, "9999.9"),
        (9999.99e-6, "10000"),
        (1.5, "1500000"),
    ],
)
def test_times_have_the_digits_that_nccl_tests_gives_them(seconds, text):
    assert microseconds(seconds) == text


def test_sizes_are_written_exactly():
    assert [size(n) for n in (1024, 25_000_000, 67108800)] == ["1 KiB", "25 MB", "67108800 B"]
