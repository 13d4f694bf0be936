"""Pages of all kinds but studies, opened and operated in a headless Chromium."""

import pytest
from browser import chromium, opened, written
from for_each import for_each
from test_kinds import MADE, texts

from simdp.reports.charts.chart import Chart
from simdp.reports.page import page_of
from simdp.reports.sections import Table
from simdp.reports.shown import as_html

pytestmark = [pytest.mark.slow, pytest.mark.long]

SIZES = {"desktop": (1280, 900, "light"), "phone": (390, 844, "dark")}


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@for_each("name", list(MADE))
def test_it_draws_every_chart_and_fits_a_phone(name, browser, tmp_path):
    document = MADE[name]()
    file = written(document, tmp_path / "report.html")
    charts = [one for one in page_of(document).sections if isinstance(one, Chart)]
    for width, height, scheme in SIZES.values():
        size = {"width": width, "height": height}
        with opened(browser, file, viewport=size, color_scheme=scheme, offline=True) as tab:
            assert tab.locator(".chart canvas").count() == len(charts)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@for_each("name", list(MADE))
def test_its_tables_say_what_the_sections_say_and_sort_by_figures(name, browser, tmp_path):
    document = MADE[name]()
    tables = [one for one in page_of(document).sections if isinstance(one, Table)]
    with opened(browser, written(document, tmp_path / "report.html")) as tab:
        shown = tab.locator("table.sorts")
        assert shown.count() == len(tables)
        for number, table in enumerate(tables):
            rows = shown.nth(number).locator("tbody tr")
            cells = [rows.nth(i).locator("td").all_inner_texts() for i in range(rows.count())]
            assert cells == [[cell.strip() for cell in row] for row in texts(table)]
            known = [getattr(cell, "value", None) for cell in table.rows[0]]
            column = next((at for at, value in enumerate(known) if value is not None), None)
            if column is None:
                continue
            shown.nth(number).locator("th button").nth(column).click()
            values = [
                float(value)
                for i in range(rows.count())
                if (value := rows.nth(i).locator("td").nth(column).get_attribute("data-value"))
            ]
            assert values in (sorted(values), sorted(values, reverse=True))


def test_in_a_frame_of_a_notebook_its_links_stay_in_it(browser, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(
        f'<!DOCTYPE html><html data-ready="yes" data-drawn="yes">{as_html(MADE["job"]())}'
    )
    with opened(browser, file, offline=True) as tab:
        (frame,) = tab.frames[1:]
        frame.wait_for_selector('html[data-drawn="yes"]', state="attached", timeout=60_000)
        frame.click("nav li:last-child a")
        frame.wait_for_function("scrollY > 0")
        assert frame.url == "about:srcdoc"
        assert frame.locator(".chart canvas").count() == 3


def test_the_ledger_of_an_audit_has_a_panel_for_each_number_of_ranks_that_names_samples(
    browser, tmp_path
):
    with opened(browser, written(MADE["audit"](), tmp_path / "report.html")) as tab:
        panels = tab.locator(".ledger canvas")
        assert panels.count() == 2
        assert tab.locator(".ledger figcaption").all_inner_texts() == ["1 rank", "2 ranks"]
        box = panels.nth(1).bounding_box()
        panels.nth(1).hover(position={"x": 60 + 2.5 * min((box["width"] - 60) / 5, 120), "y": 30})
        assert tab.locator("#tip").inner_text() == (
            "rank 0, step 3, epoch 1\nsamples 8, 0\nseen before in this epoch: 0"
        )
        panels.nth(0).hover(position={"x": 80, "y": 60})
        assert tab.locator("#tip").inner_text() == "epoch 1: no rank sees 8, 9"
        tab.locator("details.data summary").last.click()
        rows = tab.locator("details.data tbody tr")
        rows.first.wait_for()  # made when it opens
        assert rows.count() == 4 + 10
        assert rows.nth(8).locator("td").all_inner_texts() == [
            "2 ranks",
            "0",
            "3",
            "1",
            "8, 0",
            "0",
        ]
