"""Results as Python and notebooks show them."""

import dataclasses
import io
import re
from html import unescape

import pytest
from rich.console import Console

import simdp
from simdp.reports import table
from simdp.reports.page import KINDS, write
from simdp.reports.shown import TABLES
from simdp.results.metrics import Metrics
from simdp.results.plan import Option, PlanResult
from simdp.results.result import Inline, Result, Study

FAST = {"numerics": False, "workload.steps": 3}


@pytest.fixture(scope="module")
def study():
    return simdp.sweep(
        simdp.load_scenario("8gpu_ring", {**FAST, "sweep": {"cluster.world_size": [4, 8]}})
    )


@pytest.fixture(scope="module")
def result():
    return simdp.simulate(simdp.load_scenario("8gpu_ring", FAST))


def printed(study):
    """As ``run`` prints it where there is no terminal."""
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(table.summary(study), soft_wrap=True)
    return stream.getvalue().rstrip("\n")


def test_the_summary_is_what_run_prints(study, result):
    assert study.summary() == printed(study)
    assert result.summary() == printed(Study("", {**result.scenario, "sweep": {}}, [result]))
    assert result.summary().startswith("8gpu_ring: 8 ranks")


def test_a_point_of_a_sweep_has_a_summary_of_its_own(study):
    assert study.points[0].summary().startswith("8gpu_ring: 4 ranks")


def test_a_notebook_shows_the_page_in_a_frame_and_the_summary_below_it(study, result):
    for shown in (study, result):
        both = shown._repr_mimebundle_()
        assert both["text/plain"] == shown.summary()
        assert both["text/html"] == shown._repr_html_()
        frame, text = both["text/html"].split("</iframe>")
        attributes = dict(re.findall(r'(\w+)="([^"]*)"', frame))
        assert attributes["title"] == "8gpu_ring"
        assert unescape(attributes["srcdoc"]) == page(shown)
        assert unescape(re.search("<pre [^>]*>(.*)</pre>", text, re.DOTALL)[1]) == shown.summary()
        assert "color" not in text


def page(shown):
    stream = io.BytesIO()
    write(shown if isinstance(shown, Study) else shown._alone(), stream)
    return stream.getvalue().decode()


def test_what_a_name_holds_cannot_leave_the_frame(study):
    evil = dataclasses.replace(study, scenario={**study.scenario, "name": '"></iframe><b>'})
    html = evil._repr_html_()
    assert html.count("</iframe>") == 1
    assert "<b>" not in html


def test_every_document_with_a_page_shows_itself():
    assert set(TABLES) == set(KINDS)
    assert all(issubclass(kind, Inline) for kind in KINDS)


def test_a_plan_shows_its_table():
    option = Option({"strategy": "fsdp"}, 0.1, 3600.0, 12.0, None, 8e9, why="It is the cheapest.")
    plan = PlanResult("0.1.0", {"name": "box"}, "cheapest", {}, None, {}, (option,), (option,))
    assert "fsdp" in plan.summary()
    assert "It is the cheapest." in plan.summary()
    assert "<iframe " in plan._repr_html_()


def test_the_short_form_is_one_line(study, result):
    rate = f"{result.metrics['throughput_samples_per_s']:,.0f}"
    step = f"{1e3 * result.metrics['step_time_s']:.4g}"
    assert repr(result) == f"<Result 8gpu_ring: 8 ranks, {step} ms per step, {rate} samples/s>"
    assert repr(study) == "<Study 8gpu_ring: 2 points over cluster.world_size>"
    bare = Result({"name": "x", "cluster": {"world_size": 1}}, {}, Metrics())
    assert repr(bare) == "<Result x: 1 rank>"
    assert repr(Study("0", {"name": "x"}, [bare])) == "<Study x: 1 point>"
    assert repr(dataclasses.replace(bare, scenario={"cluster": {"world_size": 2}})) == (
        "<Result scenario: 2 ranks>"
    )
