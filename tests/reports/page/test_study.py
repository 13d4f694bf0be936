"""Pages of studies: their sections say what result.json and the terminal say."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.reports import table
from simdp.reports.charts.scaling import scaling_charts
from simdp.reports.charts.sweep import sweep_charts
from simdp.reports.page import run, write
from simdp.reports.page import sweep as pages
from simdp.reports.sections import Source, Summary
from simdp.scenario import checked


@pytest.fixture(scope="module")
def small_run():
    """A study of one point: few steps of a narrow network."""
    overrides = {"workload.steps": 3, "workload.model.widths": [512, 64, 10]}
    return simdp.sweep(simdp.load_scenario("scenarios/8gpu_ring.yaml", overrides))


def section(page, title):
    (found,) = (one for one in page.sections if one.title == title)
    return found


def test_the_summary_says_what_the_terminal_says(small_run):
    found = section(pages.study_page(small_run), "Summary")
    assert isinstance(found, Summary)
    assert found.rows == table.fact_rows(small_run.points[0])
    assert found.tiles[0].value in small_run.summary()


@for_each(
    ("most", "ranks", "note"),
    [
        (8, [*range(8)], ""),
        (3, [0, 3], " 2 of 8 ranks: those that compute longest, and the first."),
    ],
)
def test_the_table_of_ranks_has_those_that_compute_longest(
    small_run, most, ranks, note, monkeypatch
):
    monkeypatch.setattr(run, "MOST_ROWS", most)
    (found,) = run.every_rank(small_run.points[0])
    assert [row[0].value for row in found.rows] == ranks
    assert found.note == f"A step's time in us.{note}"


def test_the_scenario_is_there_as_resolved_and_loads_again(small_run, tmp_path):
    found = section(pages.study_page(small_run), "The scenario, every default resolved")
    assert isinstance(found, Source)
    path = tmp_path / found.name
    path.write_text(found.source)
    again = simdp.load_scenario(path)
    assert simdp.sweep(again).points[0].metrics == small_run.points[0].metrics


def test_the_command_that_was_given_is_quoted(small_run):
    found = section(pages.study_page(small_run, ["run", "a b.yaml"]), "How to reproduce it")
    assert found.source.startswith("python -m simdp run 'a b.yaml'\n# simdp ")


def test_a_page_is_small_and_the_same_twice(small_run):
    written = [BytesIO(), BytesIO()]
    for stream in written:
        write(small_run, stream)
    first, second = (stream.getvalue() for stream in written)
    assert first == second
    assert len(first) < 3e6


@pytest.mark.slow
@for_each(
    ("key", "make"), [("cluster.world_size", scaling_charts), ("workload.microbatch", sweep_charts)]
)
def test_the_interval_of_a_swept_step_is_a_band(key, make):
    raw = {
        "cluster": {"machine": "dgx-h100", "world_size": 4},
        "workload": {"model": {"kind": "mlp", "widths": [64, 64, 8]}, "microbatch": 8},
        "numerics": False,
        "sweep": {key: [2, 4, 8]},
    }
    study = simdp.sweep(checked(raw, Path()))
    step_time = make(study)[0]
    assert step_time.title in [section.title for section in pages.study_page(study).sections]
    write(study, BytesIO())
    line = step_time.series[0]
    wanted = [point.metrics["interval_s"] for point in study.points]
    for ends, number in ((line.low, 0), (line.high, 1)):
        ratios = np.array(ends) / [one[number] for one in wanted]
        assert np.allclose(ratios, ratios[0])  # the unit
    assert all(low < y < high for low, y, high in zip(line.low, line.y, line.high, strict=True))
