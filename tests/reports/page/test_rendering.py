"""Pages without a browser: one file, nothing of the text is HTML, equal pages are equal bytes."""

import json
import re
from io import BytesIO

import pytest

from simdp.reports.charts.chart import Axis, Chart, Series
from simdp.reports.figures import Row, TableCell
from simdp.reports.page import KINDS, write
from simdp.reports.page.rendering import ECHARTS, render
from simdp.reports.sections import (
    Page,
    Source,
    Summary,
    Table,
    Tile,
    Verdict,
)

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u2028&amp;'


def html(*sections, title="a page", about="", foot=""):
    stream = BytesIO()
    render(Page(title, about, sections, foot), stream)
    return stream.getvalue().decode()


def one_of_each(text):
    return (
        Summary(
            text, [Tile(text, text, text)], [Row(text, text, text), Row(text, "", text)], note=text
        ),
        Verdict(text, [text]),
        Table(text, [text, "n"], [[text, TableCell(text, 2.0)]]),
        Chart(
            text, Axis(text, "category"), Axis(text), [Series(text, [text], [1.0])], caption=text
        ),
        Source(text, source=text, name=text, folded=True),
    )


def test_whatever_a_text_holds_is_shown_as_text():
    page = html(*one_of_each(EVIL), title=EVIL, about=EVIL, foot=EVIL)
    without_library = page.replace(ECHARTS.read_text(), "")
    assert "<img" not in without_library
    assert "alert(1)</script>" not in without_library
    assert len(re.findall(r"<script\b", without_library)) == 4  # data of the chart, looks, both
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in without_library


def test_data_are_json_that_cannot_end_its_script():
    page = html(*one_of_each(EVIL))
    (data,) = re.findall(r'<script type="application/json" id="[^"]*-data">(.*?)</script>', page)
    assert not set("<>&\u2028") & set(data)
    assert json.loads(data)["series"][0]["name"] == EVIL


def test_equal_pages_are_equal_bytes():
    assert html(*one_of_each("a")) == html(*one_of_each("a"))


def test_nothing_is_fetched():
    page = html(*one_of_each("a")).replace(ECHARTS.read_text(), "")
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "http" not in page.replace("http-equiv", "")


def test_sections_of_one_title_have_ids_of_their_own():
    page = html(Verdict("A b", ["x"]), Verdict("A b", ["y"]), Verdict("!", ["z"]))
    ids = re.findall(r'<section id="([^"]*)"', page)
    assert ids == ["a-b", "a-b--2", "verdict"]
    assert all(f'href="#{name}"' in page for name in ids)


def test_figures_stand_right_and_carry_what_they_are_sorted_by():
    page = html(
        Table("T", ["who", "time"], [["a", TableCell("2 ms", 0.002)], ["b", TableCell("-")]])
    )
    assert '<th scope="col">who</th>' in page
    assert '<th scope="col" class="number">time</th>' in page
    assert '<td class="number" data-value="0.002">2 ms</td>' in page


def test_the_library_is_as_it_was_published():
    text = ECHARTS.read_text()
    assert ECHARTS.parent.name.removeprefix("echarts-") in text
    assert "Licensed to the Apache Software Foundation" in text[:100]
    assert {"LICENSE", "NOTICE"} <= {path.name for path in ECHARTS.parent.iterdir()}


def test_what_has_no_page_is_refused():
    with pytest.raises(TypeError, match=r"a page is made of .*Study.*, got dict"):
        write({}, BytesIO())
    assert all(kind.__name__ for kind in KINDS)
