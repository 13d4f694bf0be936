"""First sentences of pages hold for the measured values that they are drawn over."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from for_each import for_each
from rich.console import Console

from simdp.engine.simulate import simulate
from simdp.reports import table
from simdp.reports.answers import less, of_run, of_sweep
from simdp.reports.page import page_of
from simdp.reports.table import _dropped_rows
from simdp.results.comparison import (
    ComparedPoint,
    Comparison,
    Difference,
    PartChange,
    PointDifference,
    Side,
)
from simdp.results.metrics import Metrics
from simdp.results.plan import Option, PlanResult
from simdp.results.result import Study
from simdp.scenario.loading import checked
from simdp.studies.diagnose.reported import diagnose_reported, reported_job
from simdp.studies.plan.report import why_best

JOB = {
    "cluster": {"world_size": 1, "device": "t4-16gb"},
    "workload": {"model": "mpt-3b", "microbatch": 1, "steps": 2},
    "strategy": "single",
    "numerics": False,
}


@pytest.fixture(scope="module")
def result():
    return simulate(checked(JOB, Path()))


def test_a_model_that_does_not_fit_says_so_first_with_how_much_is_lacking(result):
    assert result.metrics["fits_memory"] is False
    first, second, *_ = of_run(result).lines
    assert first.startswith("The model does not fit: the fullest GPU needs ")
    assert " too much; `simdp fits` lists what would. What follows is as if it fitted." in first
    assert second.startswith("Of a step of ")
    assert not of_run(result).good
    roomy = replace(result, metrics=replace(result.metrics, fits_memory=True))
    assert of_run(roomy).lines[0].startswith("Of a step of ")


@pytest.fixture(scope="module")
def diagnosis():
    given = {"step": "320ms", "comm": "40%", "gpus": 8, "device": "a100-sxm4-80gb"}
    return diagnose_reported(reported_job({**given, "parameters": "350M"}), True)


@for_each("source", ["reported", "kineto"])
def test_only_a_diagnosis_of_traces_speaks_of_traces(source, diagnosis):
    page = page_of(replace(diagnosis, source=source))
    text = " ".join(str(vars(section)) for section in page.sections if hasattr(section, "__dict__"))
    text += str(page.sections)
    assert ("in the replay of these traces" in text) == (source == "kineto")
    assert ("as it was reported" in text) == (source == "reported")


METRICS = Metrics(
    **{
        "step_time_s": 0.1,
        "compute_s": 0.06,
        "update_s": 0.0,
        "exposed_comm_s": 0.04,
        "wait_s": 0.0,
        "other_s": 0.0,
        "bytes_sent_per_rank": [1e9],
        "peak_memory_bytes": [5e9],
        "replicas_identical": None,
        "loss": [],
    }
)


def compared(*points):
    listed = [
        ComparedPoint(
            {"strategy": name},
            {},
            4,
            replace(METRICS, throughput_samples_per_s=rate, fits_memory=fits),
            5e9,
            4e9,
        )
        for name, rate, fits in points
    ]
    scenario = {"name": "x", "cluster": {"world_size": 4}, "seed": 0}
    return Comparison("0", scenario, {"strategy": [name for name, *_ in points]}, listed, [])


@for_each(
    ("points", "line", "level"),
    [
        (
            [("ddp", 100.0, True), ("fsdp", 80.0, True)],
            "ddp trains most samples per second: 25.0 % more than fsdp.",
            "good",
        ),
        (  # the fastest does not fit, and is not what the best is faster than
            [("ddp", 100.0, False), ("fsdp", 80.0, True), ("zero1", 40.0, True)],
            "Of what fits, fsdp trains most samples per second: 2 times as many as zero1.",
            "good",
        ),
        (
            [("ddp", 100.0, False), ("fsdp", 80.0, False)],
            "None fits; ddp trains most samples per second: 25.0 % more than fsdp.",
            "warning",
        ),
    ],
)
def test_a_comparison_is_faster_only_than_what_is_slower(points, line, level):
    verdict = page_of(compared(*points)).sections[0]
    assert (verdict.lines[0], verdict.level) == (line, level)


@for_each("share", [0.2, 0.35, 0.45, 0.5, 0.55, 0.9])
def test_most_is_more_than_half(share):
    parts = {"compute_s": share / 10, "exposed_comm_s": (1 - share) / 20}
    parts |= {"wait_s": (1 - share) / 20}
    found = compared(("ddp", 100.0, True))
    found.points[0].metrics = replace(
        METRICS, throughput_samples_per_s=100.0, fits_memory=True, **parts
    )
    largest = max(parts.values()) * 10
    (line,) = page_of(found).sections[0].lines[1:]
    assert line.startswith("Most of its step") == (largest > 0.5)

    changes = tuple(PartChange(key, 0.0, value) for key, value in parts.items())
    changes = tuple(sorted(changes, key=lambda part: -part.seconds))
    point = PointDifference({}, 1.0, 1.1, None, changes, (), ())
    sides = [Side(name, "result", "0", 1, 8) for name in "ab"]
    labels = [tile.name for tile in tiles(page_of(Difference("0", *sides, (point,))))]
    assert ("most of it" in labels) == (largest > 0.5)

    dropped = [round(100 * share), *[round(50 * (1 - share))] * 2]
    rows = _dropped_rows({"dropped": dropped, "counted": 100})
    assert ("most of them" in rows[0].text) == (2 * max(dropped) > sum(dropped))

    hours = {"gpu_hours": 100.0, "shares": {"compute": share, "comm": 1 - share}}
    mine = Option({"n": 1}, 1.0, 3600.0, 1.0, None, 1.0)
    theirs = Option({"n": 2}, 1.0, 7200.0, 2.0, None, 1.0, **hours)
    assert ("most of the difference is compute" in why_best(mine, theirs, "cheapest")) == (
        share > 0.5
    )


def tiles(page):
    return [tile for section in page.sections for tile in getattr(section, "tiles", [])]


def test_a_plan_is_titled_by_its_best_option_or_by_their_lack():
    best = Option({"cluster.world_size": 16}, 1.0, 3600.0, 1.0, None, 1.0, limit="compute")
    found = PlanResult("0", {"name": "x"}, "cheapest", {}, None, {}, (best,), (best,))
    assert page_of(found).title == "world_size: 16: the cheapest way to train"
    none = PlanResult("0", {"name": "x"}, "cheapest", {"budget": 1.0}, None, {}, (), ())
    assert page_of(none).title == "no point is within the limits, of x"
    as_it_is = replace(found, best=(replace(best, set={}),))
    assert page_of(as_it_is).title.endswith(": the cheapest way to train")


@for_each(
    ("step", "text"),
    [(0.08, "80 ms, 20 % less"), (0.1, "100 ms, about the same"), (0.2, "200 ms, 100 % more")],
)
def test_a_step_without_something_is_less_only_where_it_is(step, text):
    assert less(step, 0.1) == text


def test_the_terminal_says_first_what_does_not_fit(result):
    study = Study("0", result.scenario, [result])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table.summary(study))
    shown = console.export_text()
    assert shown.startswith("The model does not fit: the fullest GPU needs ")
    assert "What follows is as if it fitted." in " ".join(shown.split())
    assert shown.index("as if it") < shown.index("step time") < shown.index("throughput")
    assert shown.count("does not fit: the fullest") == 1


@for_each(
    ("rates", "fits", "lines"),
    [
        (
            [100.0, 150.0, 120.0],
            [True, True, True],
            "More GPUs are no faster: 4 are slower than 2.",
        ),
        ([100.0, 150.0, 290.0], [True, True, False], None),  # more are faster, and do not fit
        ([100.0, 150.0, 150.0], [True, True, True], None),  # as fast is not slower
    ],
)
def test_more_devices_are_no_faster_only_where_they_are_slower(result, rates, fits, lines):
    scenario = {**result.scenario, "sweep": {"cluster.world_size": [1, 2, 4]}}
    points = [
        replace(
            result,
            scenario={**scenario, "cluster": {**scenario["cluster"], "world_size": n}},
            set={"cluster.world_size": n},
            metrics=replace(
                result.metrics,
                throughput_samples_per_s=rate,
                fits_memory=fit,
                scaling_efficiency=rate / n / 100.0,
            ),
        )
        for n, rate, fit in zip((1, 2, 4), rates, fits, strict=True)
    ]
    written = of_sweep(Study("0", scenario, points), 1, rates, "samples/s").lines
    assert [line for line in written if line.startswith("More GPUs")] == [lines] * bool(lines)


@for_each("fits", [(True, True, True), (True, False, True), (False, False, False)])
def test_the_fastest_is_one_of_those_that_fit(result, fits):
    points = [
        replace(result, set={"seed": n}, metrics=replace(result.metrics, fits_memory=fit))
        for n, fit in enumerate(fits)
    ]
    first, *_ = (verdict := of_sweep(Study("0", {}, points), 0, [1.0, 2.0, 0.5], "samples/s")).lines
    count = {3: "3 points", 2: "2 points that fit"}.get(sum(fits))
    assert first.startswith(f"The fastest of {count} is" if count else "The model does not fit: ")
    assert count or not verdict.good
