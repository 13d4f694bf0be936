"""Peaks of memory in a validation: measured and simulated, and runs that do not fit."""

from dataclasses import replace

import pytest
from small_scenario import MINIMAL

from simdp.engine.reserved import reserved_memory
from simdp.reports import validation as words
from simdp.reports.page.validation import page
from simdp.reports.theme import footer
from simdp.reports.validation_table import page as text_page
from simdp.scenario import load_scenario
from simdp.studies.intervals import MEMORY_INTERVALS
from simdp.studies.validate import validate


def peak(path, n):
    scenario = load_scenario(path, {"cluster.world_size": n, "numerics": False, "measured": None})
    return reserved_memory(scenario)


def test_peaks_are_compared_with_allocated_and_reserved_memory(write):
    path = write("box.yaml")
    whole = {n: peak(path, n) for n in (1, 2)}
    memory = [
        {"set": {"cluster.world_size": 1}, "allocated": f"{whole[1].allocated * 1.05:.0f} B"},
        {"set": {"cluster.world_size": 2}, "reserved": f"{whole[2].reserved * 2:.0f} B"},
    ]
    found = validate([write("box.yaml", measured={"memory": memory})])
    one, two = found.memory
    assert (one.kind, one.simulated, one.world_size) == ("allocated", whole[1].allocated, 1)
    assert (two.kind, two.simulated, two.world_size) == ("reserved", whole[2].reserved, 2)
    assert one.error == pytest.approx(1 / 1.05 - 1, rel=0.01)
    assert [one.is_inside, two.is_inside] == [True, False]
    low, high = MEMORY_INTERVALS["allocated"]
    assert (one.low, one.high) == pytest.approx(
        (one.simulated * (1 + low), one.simulated * (1 + high))
    )
    assert found.memory_error() == pytest.approx((0.05 / 1.05 + 0.5) / 2, rel=0.01)
    assert found.of("box").memory == found.memory
    assert [row["kind"] for row in found.plain()["memory"]] == ["allocated", "reserved"]
    (line,) = [line for line in words.memory_summary(found) if line.startswith("memory")]
    assert line == "memory: 27.4 % off in the mean of 2 peaks; 1 lie in their 90 % interval"
    missed = [("box", "peaks of memory", found.memory_error())]
    assert [one for one in found.beyond(0.1) if one[1] == "peaks of memory"] == missed
    assert [one for one in found.beyond(0.5) if one[1] == "peaks of memory"] == []
    assert "## Peak memory" in text_page(found, {}, 0.1)
    assert "Peak memory" in [section.title for section in page(found).sections]
    assert footer(found).startswith("cluster box · 3 measured times · 2 peaks of memory · simdp ")


def test_a_run_out_of_memory_must_be_refused(write):
    memory = [
        {"out_of_memory": True},
        {"set": {"cluster.device.memory": "2 MB"}, "out_of_memory": True},
    ]
    found = validate([write("box.yaml", measured={"memory": memory})])
    assert [(one.fits, one.is_inside) for one in found.memory] == [("yes", False), ("no", True)]
    assert found.memory_error() is None
    whole = page(replace(found, points=()))
    assert not any("Nothing here" in line for line in whole.sections[0].lines)
    assert footer(replace(found, points=())).startswith("cluster box · 2 peaks of memory · simdp ")
    assert "out of memory: 1 of 2 runs are refused" in words.memory_summary(found)
    assert [row[4] for row in words.memory_rows(found)] == ["out of memory"] * 2


def test_measured_steps_that_would_not_fit_are_named(write):
    points = [
        {"step_time": "90 us"},
        {"set": {"cluster.device.memory": "2 MB"}, "step_time": "95 us"},
    ]
    found = validate([write("box.yaml", measured={"points": points})])
    assert [point.fits for point in found.points] == ["yes", "no"]
    assert words.memory_summary(found) == ["fit: 1 of 2 measured steps would not fit their device"]
    assert words.refused_steps(found) == ["box: 1 of 2 steps"]
    assert "box: 1 of 2 steps" in text_page(found, {}, 0.1)


def test_memory_of_a_parameter_server_is_refused(write):
    path = write(
        "box.yaml", measured={"memory": [{"allocated": "1 MB"}]}, strategy="parameter_server"
    )
    (wrong,) = validate([path]).not_compared
    assert wrong.line.endswith(
        "box.yaml: measured.memory.0: memory of a parameter server depends on its clock; leave "
        "this point out."
    )


def test_a_caching_allocator_reports_what_it_reserves(run):
    plain = run(MINIMAL).metrics
    cluster = {**MINIMAL["cluster"], "allocator": "cuda"}
    cached = run({**MINIMAL, "cluster": cluster}).metrics
    assert plain["reserved_memory_bytes"] is None
    assert cached["reserved_memory_bytes"] >= max(cached["peak_memory_bytes"])
    assert cached["reserved_memory_bytes"] % 2**21 == 0  # whole segments


@pytest.fixture
def run(tmp_path):
    import simdp
    from simdp.scenario.loading import checked

    return lambda raw: simdp.simulate(checked(raw, tmp_path))
