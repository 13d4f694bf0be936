from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simdp.reports.charts import fitting

pytestmark = pytest.mark.slow


def lines(ax, style):
    return [
        line
        for line in ax.lines
        if line.get_transform() == ax.transData and line.get_linestyle() == style
    ]


def metric(study, name):
    return np.array([point.metrics[name] for point in study.points])


def test_one_world_size_does_not_make_a_curve(play):
    study = play(set={"sweep": {"cluster.world_size": [4], "strategy.overlap": [True, False]}})
    assert "scaling" not in fitting(study)


@pytest.mark.parametrize(
    ("sizes", "others", "is_drawn"),
    [([2, 4], {}, True), ([2, 4], {"strategy.overlap": [True, False]}, False)],
)
def test_two_world_sizes_make_a_curve_only_where_nothing_else_is_swept(
    play, sizes, others, is_drawn
):
    study = play(set={"sweep": {"cluster.world_size": sizes, **others}})
    assert ("scaling" in fitting(study)) is is_drawn


def test_the_solid_lines_are_what_was_simulated(sizes, drawn):
    top, middle, _ = drawn("scaling", sizes)
    (step_time,), (throughput,) = lines(top, "-"), lines(middle, "-")
    assert top.get_ylabel() == "Step time [us]"
    assert np.allclose(step_time.get_ydata(), metric(sizes, "step_time_s") * 1e6)
    assert np.array_equal(throughput.get_ydata(), metric(sizes, "throughput_samples_per_s"))
    assert list(throughput.get_xdata()) == [2, 4, 8]
    assert throughput.get_marker() == "o"


def test_the_dashed_lines_scale_linearly_from_the_smallest_world_size(sizes, drawn):
    top, middle, _ = drawn("scaling", sizes)
    (step_time,), (throughput,) = lines(top, "--"), lines(middle, "--")
    first = sizes.points[0].metrics
    assert np.allclose(step_time.get_ydata(), first["step_time_s"] * 1e6)  # fixed microbatch
    assert np.allclose(
        throughput.get_ydata(), first["throughput_samples_per_s"] * np.array([1, 2, 4])
    )


def test_the_efficiency_has_a_linear_axis_of_its_own_and_a_label_at_each_point(sizes, drawn):
    *_, bottom = drawn("scaling", sizes)
    (efficiency,) = lines(bottom, "-")
    assert np.allclose(efficiency.get_ydata(), 100 * metric(sizes, "scaling_efficiency"))
    assert (bottom.get_yscale(), bottom.get_ylim()[0]) == ("linear", 0)
    assert bottom.get_ylabel() == "Scaling efficiency [%]"
    written = [text.get_text() for text in bottom.texts if "%" in text.get_text()]
    wanted = [f"{value:.0%}".replace("%", " %") for value in metric(sizes, "scaling_efficiency")]
    assert written == wanted


def test_world_sizes_are_plain_numbers_on_a_log2_axis(sizes, drawn):
    for ax in drawn("scaling", sizes):
        assert ax.get_xscale() == "log"
        assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "4", "8"]


def test_a_second_key_gives_a_named_line_per_value(grid, drawn):
    for ax in drawn("scaling", grid):
        named = {text.get_text() for text in ax.texts}
        assert {"overlap: true", "overlap: false", "linear scaling"} <= named
        assert len({line.get_marker() for line in lines(ax, "-")}) == 2
        assert len({line.get_color() for line in lines(ax, "-")}) == 2


def test_points_are_drawn_by_world_size_in_whatever_order_they_were_swept(play, drawn):
    study = play(set={"sweep": {"cluster.world_size": [8, 2]}})
    top, *_ = drawn("scaling", study)
    assert list(lines(top, "-")[0].get_xdata()) == [2, 8]


def with_intervals(study, low=0.8, high=1.3):
    for point in study.points:
        step = point.metrics["step_time_s"]
        ends = [low * step, high * step]
        point.metrics = dataclasses.replace(point.metrics, interval_s=ends)
    return study


def test_the_interval_of_each_point_is_a_bar_and_a_band(play, drawn):
    study = with_intervals(play(set={"sweep": {"cluster.world_size": [2, 4, 8]}}))
    top, middle, _ = drawn("scaling", study)
    times, rates = metric(study, "step_time_s") * 1e6, metric(study, "throughput_samples_per_s")
    for ax, low, high in ((top, 0.8 * times, 1.3 * times), (middle, rates / 1.3, rates / 0.8)):
        band, bars = ax.collections
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        assert np.allclose(ends, np.transpose([low, high]))
        assert np.allclose([bars.get_segments()[0][0, 0]], [2])
        assert band.get_alpha() < 0.3
        bottom_end, top_end = ax.get_ylim()
        assert bottom_end < low.min()
        assert top_end > high.max()
        assert "band: 90 % interval" in [text.get_text() for text in ax.texts]


@pytest.mark.long
def test_many_lines_have_bars_beside_each_other_and_no_bands(play, drawn):
    grid = {"cluster.world_size": [2, 4, 8], "workload.microbatch": [2, 4, 8]}
    study = with_intervals(play(set={"sweep": grid}))
    top, *_ = drawn("scaling", study)
    places = {bars.get_segments()[0][0, 0] for bars in top.collections}
    assert len(places) == len(top.collections) == 3
    assert "bars: 90 % interval" in [text.get_text() for text in top.texts]


@pytest.mark.long
def test_an_interval_that_is_not_known_is_not_drawn(play, drawn):
    study = play(set={"sweep": {"cluster.world_size": [2, 4, 8]}})
    for point in study.points:
        point.metrics = dataclasses.replace(point.metrics, interval_s=None)
    top, middle, _ = drawn("scaling", study)
    assert not top.collections
    assert not middle.collections
