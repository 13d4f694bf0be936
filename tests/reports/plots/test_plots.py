from __future__ import annotations

import copy
import io
import re
import subprocess
import sys
from functools import cache

import matplotlib
import pytest
from for_each import for_each
from measured_times import two_clusters

from simdp.reports import theme
from simdp.reports.charts import CHARTS, fitting
from simdp.reports.plots import render
from simdp.results.result import Study

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"


def png(study, kind):
    stream = io.BytesIO()
    render(study, kind, stream)
    return stream.getvalue()


@pytest.fixture(scope="module")
def drawn_png(fit):
    """What `png` gives of the study that fits a kind; each is drawn once for tests that read it."""
    return cache(lambda kind: png(fit(kind), kind))


def spans_of(study):
    return list(study.points[-1].trace.spans) if isinstance(study, Study) else []


def test_a_plot_is_registered_under_its_kind():
    names = {kind: chart.declare.__name__ for kind, chart in CHARTS.items()}
    assert names == {kind: kind for kind in CHARTS}
    assert list(CHARTS) == sorted(CHARTS)


def test_a_study_gets_the_plots_that_its_data_allow(single, sizes, grid, large, uneven):
    assert fitting(single) == ["loss", "memory", "timeline"]
    swept = ["loss", "loss_time", "memory", "scaling", "timeline"]
    assert fitting(sizes) == fitting(grid) == swept
    assert fitting(large) == ["memory", "timeline"]
    assert fitting(uneven) == ["loss", "memory", "memory_per_rank", "timeline"]


def test_a_study_of_collectives_has_plots_of_its_own(collectives, auto, time_collective):
    assert fitting(collectives) == ["bandwidth", "world_size"]
    assert fitting(auto) == ["bandwidth"]
    assert fitting(time_collective(sizes=[1024])) == []
    assert fitting(time_collective(world_sizes=(1, 2), sizes=[1024])) == []
    assert fitting(time_collective(["tree"], (2, 4), [0], collective="barrier")) == ["world_size"]


def test_a_validation_has_plots_of_its_own():
    assert fitting(two_clusters()) == ["reliability", "simulated_against_measured"]
    both = ["simulated_against_measured", "throughput_curves"]
    assert fitting(two_clusters().of("box")) == both


@pytest.mark.long
def test_a_saved_study_can_be_drawn_but_for_its_trace(sizes, tmp_path):
    sizes.save(tmp_path / "result.json")
    loaded = Study.load(tmp_path / "result.json")
    assert fitting(loaded) == ["loss", "scaling"]
    assert png(loaded, "scaling") == png(sizes, "scaling")


WORDS = {"comparison", "points"}
"""Kinds whose rows are settings, which the axis names: they have no unit."""


@for_each("kind", CHARTS)
def test_every_axis_has_a_label_with_a_unit(kind, fit, drawn):
    for number, ax in enumerate(drawn(kind, fit(kind))):
        beside = number > 0 and kind in WORDS  # has the rows of the first panel
        assert re.search(r"\S \[[^\]]+\]", ax.get_xlabel())
        if not beside:
            assert re.search(r"^\w" if kind in WORDS else r"\S \[[^\]]+\]", ax.get_ylabel())


@pytest.mark.long
@for_each("kind", CHARTS)
def test_nothing_written_leaves_the_figure(kind, fit, drawn):
    axes = drawn(kind, fit(kind))
    figure = axes[0].get_figure()
    width, height = figure.canvas.get_width_height()
    for ax in axes:
        box = ax.get_tightbbox()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height


@pytest.mark.long
@for_each("kind", CHARTS)
def test_equal_studies_give_equal_bytes_and_drawing_changes_nothing_else(kind, fit, drawn_png):
    first = drawn_png(kind)
    assert first.startswith(PNG)
    assert b"tIME" not in first
    assert matplotlib.__version__.encode() not in first
    study, settings = copy.deepcopy(fit(kind)), dict(matplotlib.rcParams)
    json, spans = study.to_json(), spans_of(study)
    assert png(study, kind) == first
    assert study.to_json() == json
    assert spans_of(study) == spans
    assert dict(matplotlib.rcParams) == settings


def test_a_users_own_settings_change_no_byte(single):
    before = png(single, "loss")
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "savefig.dpi": 30}):
        assert png(single, "loss") == before


def test_pyplot_is_never_imported():
    script = "import sys, simdp.reports.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_unknown_kind_is_refused_with_the_known_ones(single):
    with pytest.raises(ValueError, match=r"kind must be one of bandwidth, .*, got 'loos'"):
        png(single, "loos")


def test_a_plot_without_its_data_is_refused_with_what_it_needs(single):
    with pytest.raises(ValueError, match="a scaling plot needs a sweep over"):
        png(single, "scaling")


def test_a_plot_of_another_kind_of_study_is_refused(single, auto):
    with pytest.raises(ValueError, match="a bandwidth plot needs a collective that moves data"):
        png(single, "bandwidth")
    with pytest.raises(ValueError, match="a loss plot needs"):
        png(auto, "loss")


def test_the_footer_names_scenario_seed_and_version(single):
    assert theme.footer(single) == f"scenario small · seed 0 · simdp {single.version}"


def test_the_footer_of_collectives_names_the_cluster_and_the_version(auto):
    assert theme.footer(auto) == f"cluster box · simdp {auto.version}"


def test_the_footer_of_a_validation_counts_clusters_and_measured_times():
    study = two_clusters()
    assert theme.footer(study) == "2 clusters · 15 measured times · simdp 0.1.0"
    assert theme.footer(study.of("rack")) == "cluster rack · 6 measured times · simdp 0.1.0"


@for_each(("seconds", "unit"), [(2.0, "s"), (0.25, "ms"), (1e-4, "us"), (5e-9, "ns"), (0.0, "ns")])
def test_a_time_axis_has_the_unit_that_fits_its_longest_time(seconds, unit):
    assert theme.time_unit(seconds)[0] == unit


@for_each(
    ("value", "text"), [(0.5, "0.5"), (950, "950"), (1.5e6, "1.5 M"), (2e4, "20 k"), (3e9, "3 G")]
)
def test_large_numbers_are_written_short(value, text):
    assert theme.short_number(value) == text
