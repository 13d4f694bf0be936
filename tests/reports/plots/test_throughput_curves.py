from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_times import step, two_clusters, validation

from simdp.reports.charts import fitting

pytestmark = pytest.mark.slow


def curve(name="resnet", sizes=(1, 4), batch=32, **more):
    return [
        step(0.1, 0.125, set={"cluster.world_size": n}, world_size=n, samples=n * batch,
             scenario=name, low=0.1, high=0.16, **more)
        for n in sizes
    ]  # fmt: skip


def lines(ax, style):
    return [
        line
        for line in ax.lines
        if line.get_transform() == ax.transData and line.get_linestyle() == style
    ]


def test_one_cluster_with_a_curve_is_needed():
    assert "throughput_curves" not in fitting(two_clusters())
    other = validation([step(), step(scenario="bert", world_size=4)])
    assert "throughput_curves" not in fitting(other)
    assert "throughput_curves" in fitting(validation(curve()))


def test_open_circles_are_measured_and_solid_lines_simulated(drawn):
    top, _ = drawn("throughput_curves", validation(curve()))
    (simulated,) = lines(top, "-")
    (measured,) = (line for line in lines(top, "None") if line.get_marker() == "o")
    assert (measured.get_marker(), measured.get_markerfacecolor()) == ("o", "none")
    assert np.allclose(measured.get_xydata(), [(1, 320), (4, 1280)])
    assert np.allclose(simulated.get_xydata(), [(1, 256), (4, 1024)])
    assert top.get_ylabel() == "Throughput [samples/s]"


def test_the_band_is_the_interval(drawn):
    top, _ = drawn("throughput_curves", validation(curve()))
    band, _ = top.collections
    corners = band.get_paths()[0].vertices
    at_four = corners[corners[:, 0] == 4][:, 1]
    assert (at_four.min(), at_four.max()) == pytest.approx((800, 1280))


def test_the_lower_panel_shows_errors_with_their_intervals(drawn):
    _, bottom = drawn("throughput_curves", validation(curve()))
    (errors,) = lines(bottom, "None")
    assert np.allclose(errors.get_ydata(), 25)
    _, intervals = bottom.collections  # below it the band of small errors
    assert np.allclose([path.vertices[:, 1] for path in intervals.get_paths()], [[0, 60]] * 2)


def test_curves_are_named_by_what_tells_them_apart(drawn):
    points = curve("box_resnet") + curve("box_bert", batch=8)
    top, _ = drawn("throughput_curves", validation(points))
    assert {"resnet", "bert"} <= {text.get_text() for text in top.texts}
    part = two_clusters().of("rack")
    top, _ = drawn("throughput_curves", part)
    assert {"microbatch 32", "microbatch 64"} <= {text.get_text() for text in top.texts}


def test_curves_that_differ_inside_a_value_are_two(drawn):
    points = [
        replace(point, set={**point.set, "workload.compute": {"points": [batch]}})
        for batch in (8, 16)
        for point in curve(batch=batch)
    ]
    top, _ = drawn("throughput_curves", validation(points))
    assert len(lines(top, "-")) == 2


def test_no_error_is_drawn_beyond_the_panel(drawn):
    points = [point for i in range(6) for point in curve(f"model{i}", sizes=(1, 2))]
    _, bottom = drawn("throughput_curves", validation(points))
    left, right = bottom.get_xlim()
    for line in lines(bottom, "None"):
        assert left < min(line.get_xdata())
        assert max(line.get_xdata()) < right


def test_of_many_curves_those_with_the_most_points_are_shown(drawn):
    points = [point for i in range(7) for point in curve(f"short{i}")]
    points += curve("long", sizes=(1, 2, 4), batch=64)
    top, _ = drawn("throughput_curves", validation(points))
    assert top.get_title(loc="left") == "Throughput on box; 6 of 8 curves"
    assert "long" in {text.get_text() for text in top.texts}
