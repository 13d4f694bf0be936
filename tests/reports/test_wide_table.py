"""Tables that go on below where a terminal has no room, and cut off no number."""

import io

from rich.console import Console, Group

from simdp.reports.wide_table import narrow_tables


def printed(columns, rows, num_keys):
    stream = io.StringIO()
    tables = narrow_tables("a title", columns, rows, num_keys)
    Console(file=stream, width=80, highlight=False).print(Group(*tables), soft_wrap=True)
    return tables, stream.getvalue()


def test_a_small_table_is_one():
    tables, text = printed([("name", False), ("time", True)], [["a", "1"], ["b", "22"]], 1)
    assert len(tables) == 1
    assert [line.split() for line in text.splitlines() if line.strip()][-1] == ["b", "22"]


def test_what_has_no_room_follows_below_with_its_keys():
    numbers = [f"{10**k}" for k in range(20)]
    columns = [("name", False), *((f"column{k}", True) for k in range(20))]
    tables, text = printed(columns, [["first", *numbers], ["second", *numbers]], 1)
    assert len(tables) > 2
    assert max(map(len, text.splitlines())) <= 80
    words = text.split()
    assert words.count("first") == words.count("second") == len(tables)
    assert all(words.count(number) == 2 for number in numbers)
    assert text.count("a title") == 1


def test_long_keys_are_broken_over_several_lines():
    key = "hierarchical(inner=bidirectional_ring, outer=halving_doubling, slices=4) " * 3
    _, text = printed([("key", False), ("time", True)], [[key, "1.25"]], 1)
    assert max(map(len, text.splitlines())) <= 80
    assert "1.25" in text
    letters = "".join(char for char in text if char.isalnum())
    assert "slices4" in letters


def test_a_table_of_keys_alone_is_shown():
    tables, _ = printed([("key", False)], [["a"]], 1)
    assert len(tables) == 1


def test_units_in_heads_are_printed():
    _, text = printed([("name", False), ("done [d]", True)], [["a", "7.9"]], 1)
    assert "done [d]" in text
