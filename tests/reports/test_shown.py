"""Results as Python and notebooks show them."""

import dataclasses
import io

import pytest
from rich.console import Console

import simdp
from simdp.reports import table
from simdp.results.result import Result, Study

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


def test_a_notebook_shows_the_summary_without_colours_of_its_own(study, result):
    for shown in (study, result):
        html = shown._repr_html_()
        assert html.startswith("<pre ")
        assert "8gpu_ring" in html
        assert "color" not in html


def test_the_short_form_is_one_line(study, result):
    rate = f"{result.metrics['throughput_samples_per_s']:,.0f}"
    step = f"{1e3 * result.metrics['step_time_s']:.4g}"
    assert repr(result) == f"<Result 8gpu_ring: 8 ranks, {step} ms per step, {rate} samples/s>"
    assert repr(study) == "<Study 8gpu_ring: 2 points over cluster.world_size>"
    bare = Result({"name": "x", "cluster": {"world_size": 1}}, {}, {})
    assert repr(bare) == "<Result x: 1 rank>"
    assert repr(Study("0", {"name": "x"}, [bare])) == "<Study x: 1 point>"
    assert repr(dataclasses.replace(bare, scenario={"cluster": {"world_size": 2}})) == (
        "<Result scenario: 2 ranks>"
    )
