import numpy as np
import pytest
from for_each import for_each
from trace_maker import RankMaker

from simdp.traces.rows import BLOCK, EventTable, NameTable, Places, TableRows, nanoseconds, whole


@for_each(
    ("written", "ns"),
    [
        (3, 3000),
        ("3.250", 3250),
        ("1712195495519689.047", 1_712_195_495_519_689_047),
        ("0.5", 500),
        ("1.2345", 1234),
        ("1e3", 1_000_000),
        ("-0.250", -250),
        ("-3.5", -3500),
    ],
)
def test_times_are_exact_to_the_nanosecond(written, ns):
    assert nanoseconds(written) == ns


@for_each(
    "written",
    [
        "NaN",
        "-Infinity",
        "",
        "x",
        "1.2.345",
        None,
        True,
        [1],
        10**17,
        "1e300",
        "1e999999",
        "9" * 999,
    ],
)
def test_what_is_no_time_is_refused(written):
    with pytest.raises(ValueError, match="no time: "):
        nanoseconds(written)


@for_each(
    ("written", "number"),
    [(7, 7), ("7", 7), ("7.9", 7), (None, -1), (2**63, -1), ("x", -1), (True, -1), ([], -1)],
)
def test_whole_numbers_or_none(written, number):
    assert whole(written) == number


def test_rows_are_packed_in_blocks_and_keep_their_order():
    rows = TableRows(EventTable)
    for i in range(2 * BLOCK + 3):
        rows.add((i, 0, -i, i))
    assert len(rows) == 2 * BLOCK + 3
    table = rows.table()
    assert table.name.tolist() == list(range(2 * BLOCK + 3))
    assert (table.start == -table.name).all()
    assert table.end.dtype == np.int64
    assert table.in_order().name.tolist() == table.name.tolist()[::-1]
    assert TableRows(EventTable).table().name.shape == (0,)


def test_names_and_places_have_numbers():
    names, places = NameTable(), Places()
    assert [names.code(name) for name in "abca"] == [0, 1, 2, 0]
    assert names.listed() == ("a", "b", "c")
    written = [7, "7", "stream 7", "main", "other", "main", 2**70, -1]
    numbers = [places.number(place) for place in written]
    assert numbers[:3] == [7, 7, 7]
    assert numbers[3] == numbers[5] != numbers[4]
    assert len({*numbers[3:7]}) == 3
    assert max(numbers[3:7]) < -1


@for_each(
    ("name", "elements", "out", "nbytes"),
    [
        ("all_reduce", 100, 100, 400),
        ("all_gather", 100, 800, 3200),
        ("all_gather", 100, -1, 3200),
        ("reduce_scatter", 800, 100, 3200),
        ("scatter", 0, 100, 3200),
        ("gather", 100, 0, 3200),
        ("all_reduce", -1, 100, 400),
        ("reduce_scatter", -1, 100, 3200),
        ("all_reduce", -1, -1, None),
        ("all_gather", -1, -1, None),
    ],
)
def test_sizes_are_counted_as_nccl_tests_does(name, elements, out, nbytes):
    maker = RankMaker(world_size=8)
    maker.call(name, 0.0, 1.0, elements, out=out)
    assert maker.trace().collectives.nbytes(0, 8) == nbytes
    maker.call(name, 2.0, 3.0, elements, out=out, dtype="complex32")
    assert maker.trace().collectives.nbytes(1, 8) is None
