"""Pages in a real browser: they open without an error or a request, and their controls work."""

import json
import re

import pytest
from browser import chromium, opened, written

import simdp

pytestmark = [pytest.mark.slow, pytest.mark.long]

EVIL = '</script><script>document.title = "broken into"</script><img src=x onerror=alert(1)>'
SMALL = {"workload.steps": 4}
TIMES = {"numerics": False, "workload.steps": 3, "cluster.topology": "switch"}
JITTER = {"cluster.stragglers": [{"kind": "lognormal", "sigma": 0.1}]}


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def run():
    return simdp.sweep(simdp.load_scenario("scenarios/8gpu_ring.yaml", SMALL))


@pytest.fixture(scope="module")
def file(run, tmp_path_factory):
    return written(run, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    scenario = {**TIMES, **JITTER, "cluster.world_size": 1024}
    study = simdp.sweep(simdp.load_scenario("scenarios/8gpu_ring.yaml", scenario))
    return written(study, tmp_path_factory.mktemp("many") / "report.html")


def timeline(tab):
    return tab.locator(".drawn[data-kind=timeline]")


def zoom(tab):
    """From where to where the timeline shows: time and rows."""
    return tab.evaluate(
        """() => {
          const box = document.querySelector('.drawn[data-kind=timeline] .chart');
          const [x, y] = echarts.getInstanceByDom(box).getOption().dataZoom;
          return [x.startValue, x.endValue, y.startValue, y.endValue];
        }"""
    )


def test_an_axis_reaches_to_the_ends_of_every_band(browser, tmp_path):
    """By data sheets alone: an interval of a third, on both machines of a sweep."""
    sizes = {"cluster.machine": ["dgx-a100", "dgx-h100"], "cluster.world_size": [8, 16, 32]}
    scenario = simdp.load_scenario("scenarios/four_nodes.yaml", {"sweep": sizes})
    file = written(simdp.sweep(scenario), tmp_path / "report.html")
    with opened(browser, file) as tab:
        tab.locator("#step-time-by-world-size").scroll_into_view_if_needed()
        tab.wait_for_function(
            """() => echarts.getInstanceByDom(
              document.querySelector('#step-time-by-world-size .chart'))"""
        )
        reached, asked = tab.evaluate(
            """() => {
              const box = document.querySelector('#step-time-by-world-size .chart');
              const made = echarts.getInstanceByDom(box);
              const bands = made.getOption().series.filter((one) => one.type === 'custom');
              const ends = bands.flatMap((one) => one.data.map((row) => row[1]));
              return [made.getModel().getComponent('yAxis').axis.scale.getExtent(),
                [Math.min(...ends), Math.max(...ends)]];
            }"""
        )
        assert reached[0] <= asked[0] < asked[1] <= reached[1]
        assert asked[1] > 1.2 * asked[0]


def test_figures_on_the_page_are_those_of_result_json(browser, run, file):
    metrics = json.loads(run.to_json())["points"][0]["metrics"]
    with opened(browser, file) as tab:
        tile = tab.locator(".tiles div", has_text="step time").locator("dd")
        assert tile.inner_text() == f"{1e6 * metrics['step_time_s']:.4g} us"
        tile = tab.locator(".tiles div", has_text="throughput").locator("dd")
        assert tile.inner_text() == f"{metrics['throughput_samples_per_s']:,.0f} samples/s"
        tab.get_by_text("Every rank", exact=True).last.click()
        rows = tab.locator("#every-rank tbody tr")
        sent = rows.locator("td:nth-child(8)").evaluate_all(
            "all => all.map(one => Number(one.dataset.value))"
        )
        assert sent == metrics["bytes_sent_per_rank"]
        data = tab.locator("#loss .data")
        data.locator("summary").click()
        data.locator("tbody tr").first.wait_for()  # made when it opens
        losses = data.locator("tbody tr td:nth-child(3)").all_inner_texts()
        assert [float(text) for text in losses] == pytest.approx(metrics["loss"], rel=1e-3)


def test_tables_sort_by_click_and_by_keyboard(browser, file):
    with opened(browser, file) as tab:
        tab.get_by_text("Every rank", exact=True).last.click()
        head = tab.locator("#every-rank th", has_text="compute")
        values = tab.locator("#every-rank tbody td:nth-child(3)")

        def shown():
            return values.evaluate_all("all => all.map(one => Number(one.dataset.value))")

        assert shown() != sorted(shown())
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert shown() == sorted(shown())
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert shown() == sorted(shown(), reverse=True)


def test_the_timeline_zooms_moves_and_comes_back(browser, file):
    with opened(browser, file) as tab:
        begin = zoom(tab)
        timeline(tab).get_by_label("zoom in").click()
        near = zoom(tab)
        assert near[1] - near[0] == pytest.approx((begin[1] - begin[0]) / 2)
        chart = timeline(tab).locator(".chart")
        chart.press("ArrowLeft")
        assert zoom(tab)[0] < near[0]
        chart.press("PageUp")
        assert zoom(tab)[3] - zoom(tab)[2] < begin[3] - begin[2]
        chart.press("Home")
        assert zoom(tab) == pytest.approx(begin)


def test_the_timeline_filters_steps_ranks_and_streams(browser, file):
    with opened(browser, file) as tab:
        place = timeline(tab)
        place.get_by_label("Step").select_option("2")
        second = zoom(tab)
        place.get_by_label("Step").select_option("all")
        whole = zoom(tab)
        assert whole[0] < second[0] < second[1] < whole[1]
        place.get_by_role("textbox").fill("2-4, 7")
        place.get_by_role("textbox").press("Enter")
        names = tab.evaluate(
            """() => echarts.getInstanceByDom(document.querySelector(
              '.drawn[data-kind=timeline] .chart')).getOption().yAxis[0].data"""
        )
        assert names == ["2", "▲ 3 · 2×", "4", "7"]
        before = place.locator(".chart").screenshot()
        place.get_by_label("comm", exact=True).uncheck()
        for _ in range(50):  # it is drawn with the next frame
            tab.wait_for_timeout(100)
            if place.locator(".chart").screenshot() != before:
                return
        raise AssertionError("a stream that is not shown is still drawn")


def test_the_timeline_says_what_a_span_is(browser, file):
    with opened(browser, file) as tab:
        box = timeline(tab).locator(".chart")
        box.scroll_into_view_if_needed()
        where = box.bounding_box()
        tab.mouse.move(where["x"] + where["width"] / 2, where["y"] + 16)
        tab.locator("#tip").wait_for()
        said = tab.locator("#tip").inner_text()
        assert re.match(r"rank 0\n[a-z]+", said)


def test_thousands_of_ranks_are_groups_and_every_rank_is_a_density_that_opens(browser, many):
    assert many.stat().st_size < 3e6
    with opened(browser, many) as tab:
        place = timeline(tab)
        assert place.get_attribute("data-shows") == "rows"
        assert zoom(tab)[3] < 16
        place.get_by_label("Rows").select_option("every rank")
        assert zoom(tab)[2:] == [0, 1023]
        place.locator(".chart").press("Home")
        assert place.get_attribute("data-shows") == "density"
        for _ in range(6):
            place.locator(".chart").press("PageUp")
        assert place.get_attribute("data-shows") == "rows"
        place.get_by_role("textbox").fill("1000-1010")
        place.get_by_role("textbox").press("Enter")
        assert zoom(tab)[2:] == [0, 10]


def test_the_theme_follows_the_system_and_the_button(browser, file):
    def ground(tab):
        return tab.evaluate("getComputedStyle(document.body).backgroundColor")

    with opened(browser, file, color_scheme="dark") as tab:
        dark = ground(tab)
        button = tab.locator("#theme")
        assert "system" in button.inner_text()
        button.click()
        assert "light" in button.inner_text()
        assert ground(tab) == "rgb(255, 255, 255)" != dark
        button.click()
        assert ground(tab) == dark
    with opened(browser, file, color_scheme="light") as tab:
        assert ground(tab) == "rgb(255, 255, 255)"


def test_the_scenario_is_folded_and_opens(browser, file):
    with opened(browser, file) as tab:
        text = tab.locator("#the-scenario-every-default-resolved pre")
        assert not text.is_visible()
        tab.locator("#the-scenario-every-default-resolved summary").press("Enter")
        text.wait_for()
        assert "name: 8gpu_ring" in text.inner_text()


def test_a_name_with_html_is_shown_as_it_is(browser, tmp_path):
    scenario = simdp.load_scenario("scenarios/8gpu_ring.yaml", SMALL)
    study = simdp.sweep(scenario)
    study.scenario["name"] = study.points[0].scenario["name"] = EVIL
    with opened(browser, written(study, tmp_path / "a.html", command=["run", EVIL])) as tab:
        assert tab.title() == EVIL
        assert tab.locator("h1").inner_text() == EVIL
        assert tab.locator("img").count() == 0


def test_on_a_phone_only_tables_scroll_sideways(browser, file):
    with opened(browser, file, viewport={"width": 360, "height": 740}, has_touch=True) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert tab.evaluate("document.documentElement.scrollWidth") == 360


def test_on_paper_everything_is_open_and_light(browser, file):
    with opened(browser, file, color_scheme="dark") as tab:
        assert tab.pdf()[:5] == b"%PDF-"
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.locator("section > details:not([open])").count() == 0
        assert tab.evaluate("document.documentElement.dataset.theme") == "light"
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.locator("section > details:not([open])").count() > 0
        assert tab.evaluate("document.documentElement.dataset.theme") is None


def test_headings_landmarks_and_focus_are_in_order(browser, file):
    with opened(browser, file) as tab:
        levels = tab.locator("h1, h2, h3").evaluate_all("all => all.map(one => one.tagName)")
        assert levels[0] == "H1"
        assert set(levels[1:]) == {"H2"}
        for landmark in ("header", "nav", "main", "footer"):
            assert tab.locator(landmark).count() == 1
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        unnamed = tab.locator("[role=img]:not([aria-label]), canvas[role]:not([aria-label])")
        assert unnamed.count() == 0


def test_a_sweep_opens_and_its_points_sort(browser, tmp_path):
    sweep = {**TIMES, "cluster.stragglers": [], "sweep": {"cluster.world_size": [2, 4, 8]}}
    study = simdp.sweep(simdp.load_scenario("scenarios/8gpu_ring.yaml", sweep))
    with opened(browser, written(study, tmp_path / "a.html")) as tab:
        head = tab.locator("#every-point th", has_text="step").first
        head.locator("button").click()
        steps = tab.locator("#every-point tbody td:nth-child(2)").evaluate_all(
            "all => all.map(one => Number(one.dataset.value))"
        )
        assert steps == sorted(point.metrics["step_time_s"] for point in study.points)
        assert tab.locator("#step-time-by-world-size canvas").count() >= 1
