"""Tables that go on below where a terminal has no room, and cut off no number."""

import io
from html import unescape
from re import findall

import pytest
from rich.console import Console, Group

from simdp.reports.figures import Row, figure, nbytes, percent, seconds
from simdp.reports.page.rendering import render
from simdp.reports.sections import Page, Summary, table_of
from simdp.reports.wide_table import RowGroup, fitted_table, narrow_tables


def printed(columns, rows, num_keys):
    stream = io.StringIO()
    tables = narrow_tables(table_of("a title", columns, rows, num_keys=num_keys))
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


def drawn(section):
    """Cells of a section's rows on the page, with the values that they sort by."""
    stream = io.BytesIO()
    render(Page("a page", "", [section], ""), stream)
    body = stream.getvalue().decode().partition("<tbody>")[2].partition("</tbody>")[0]
    rows = findall(r"<tr>(.*?)</tr>", body.replace("\n", ""))
    return [
        [
            (unescape(text), value)
            for value, text in findall(
                r'<td(?: class="number")?(?: data-value="([^"]*)")?>(.*?)</td>', row
            )
        ]
        for row in rows
    ]


def test_terminal_and_page_draw_the_same_rows_of_one_section():
    section = table_of(
        "a title",
        [("name", False), ("time", True), ("size", True), ("share", True), ("rate", True)],
        [
            ["fast", seconds(0.00152), nbytes(4.1e9), percent(0.123), figure(2.5, ".3g", "x ")],
            ["slow & <old>", seconds(None), nbytes(12.0), percent(1.0), figure(10.0, ".3g", "x*")],
        ],
        num_keys=1,
    )
    (table,) = narrow_tables(section)
    cells = [[str(cell).strip() for cell in column.cells] for column in table.columns]
    page = drawn(section)
    assert [[text for text, _ in row] for row in page] == [
        list(row) for row in zip(*cells, strict=True)
    ]
    values = [[value and float(value) for _, value in row] for row in page]
    assert values[0] == ["", *map(pytest.approx, [0.00152, 4.1e9, 0.123, 2.5])]
    assert values[1] == ["", "", 12.0, 1.0, 10.0]


def test_rows_are_written_by_their_units_and_have_keys():
    rows = [
        Row("step", "step time", 0.0015, "s"),
        Row("sent", "sent per rank", 2_370_000, "bytes"),
        Row("busy", "  busy", 0.25, "share"),
        Row("cost", "costs", 1234.0, "USD"),
        Row("energy", "energy", 0.4, "kWh"),
        Row("count", "points", 12345.0),
        Row("note", "", "as it is"),
        Row("none", "unknown", None, "s"),
    ]
    assert {row.key: row.value for row in rows}["busy"] == 0.25
    texts = ["1.5 ms", "2.37 MB", "25.0 %", "1,234 USD", "400 Wh", "12,345", "as it is", "-"]
    assert [row.text for row in rows] == texts
    stream = io.BytesIO()
    render(Page("a page", "", [Summary("Summary", rows=rows)], ""), stream)
    page = stream.getvalue().decode()
    assert findall(r"<dd>(.*?)</dd>", page) == texts
    assert '<dt class="part">busy</dt>' in page


def test_optional_columns_are_left_out_in_their_order_and_come_back_where_they_fit():
    columns = [("name", False), ("narrow", True), ("wide", True), ("kept", True)]
    rows = [["n" * 40, "1", "2" * 30, "3" * 10]]
    groups, optional = [RowGroup("a group", rows)], ["narrow", "wide"]
    table, left_out = fitted_table("title", columns, groups, optional, 60)
    assert left_out == ["wide"]
    assert table.plain.splitlines()[2:] == [
        f"   {'name':37}  narrow        kept",
        f" {'─' * 59}",
        " a group",
        f"   {'n' * 17}...{'n' * 17}       1  {'3' * 10}",
    ]
    assert fitted_table("title", columns, groups, optional, 120)[1] == []
