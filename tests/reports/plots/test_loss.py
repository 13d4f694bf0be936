from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from for_each import for_each

from simdp.reports.charts.loss import MAX_LINES, SKIPPED_GLYPH, loss_by_step
from simdp.reports.plots.drawer import CROSS as SKIPPED
from simdp.reports.plots.text import ABOUT
from simdp.results.result import Study

pytestmark = pytest.mark.slow


def data_lines(ax):
    return [line for line in ax.lines if line.get_transform() == ax.transData]


def texts(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() != ABOUT]


def test_the_solid_line_is_the_mean_and_has_markers(single, drawn):
    (ax,) = drawn("loss", single)
    (line,) = data_lines(ax)
    assert np.array_equal(line.get_ydata(), single.points[0].metrics["loss"])
    assert line.get_linestyle() == "-"
    assert line.get_marker() == "o"


def test_thin_lines_are_the_losses_of_the_ranks(single, drawn):
    (ax,) = drawn("loss", single)
    (ranks,) = ax.collections
    shown = np.array([segment[:, 1] for segment in ranks.get_segments()])
    assert np.array_equal(shown.T, single.points[0].metrics["loss_per_rank"])
    assert texts(ax) == ["each of 4 ranks", "mean over ranks"]


def test_the_unit_of_the_loss_follows_from_its_kind(single, drawn):
    (ax,) = drawn("loss", single)
    assert ax.get_ylabel() == "Loss (cross_entropy) [nats]"


def test_a_sweep_has_a_line_per_point_named_by_what_it_sets(sizes, drawn):
    (ax,) = drawn("loss", sizes)
    assert len(data_lines(ax)) == 3
    assert sorted(texts(ax)) == ["world_size: 2", "world_size: 4", "world_size: 8"]


@pytest.mark.long
def test_no_two_lines_share_a_colour_or_a_marker(play, drawn):
    rates = [0.01 * 1.5**i for i in range(MAX_LINES)]
    (ax,) = drawn("loss", play(set={"sweep": {"workload.optimizer.lr": rates}}))
    assert len({line.get_color() for line in data_lines(ax)}) == MAX_LINES
    assert len({line.get_marker() for line in data_lines(ax)}) == MAX_LINES


def test_points_that_coincide_show_different_markers_at_different_steps(grid, drawn):
    (ax,) = drawn("loss", grid)
    overlapping, alone = data_lines(ax)[:2]  # overlap changes when, never what
    assert np.array_equal(overlapping.get_ydata(), alone.get_ydata())
    assert overlapping.get_color() != alone.get_color()
    assert overlapping.get_marker() != alone.get_marker()
    assert overlapping.get_linewidth() > alone.get_linewidth()


def losses_of(study, *losses):
    """The study with a point for each of these losses, which set a key to 0, 1, ..."""
    points = []
    for number, loss in enumerate(losses):
        point = copy.copy(study.points[0])
        point.set = {"seed": number}
        point.metrics = dataclasses.replace(point.metrics, loss=loss, loss_per_rank=None)
        points.append(point)
    return Study(study.version, study.scenario, points)


def test_lines_at_zero_have_colours_too(single, drawn):
    study = losses_of(single, [2.0, 0.0], [1.0, 0.0], [0.5, 0.0], [0.0, 0.0], [None, 0.0])
    (ax,) = drawn("loss", study)
    assert len(data_lines(ax)) == 5


def test_points_beyond_the_limit_are_left_out_and_counted(play, drawn):
    rates = [0.01 * 1.5**i for i in range(MAX_LINES + 4)]
    study = play(set={"sweep": {"workload.optimizer.lr": rates}})
    (ax,) = drawn("loss", study)
    assert len(data_lines(ax)) == MAX_LINES
    assert f"{MAX_LINES} of {MAX_LINES + 4} points" in ax.get_title(loc="left")


@for_each("lost", [None, float("nan"), float("inf")])
def test_a_loss_that_there_is_not_is_a_gap(lost, single, drawn):
    result = copy.copy(single.points[0])
    result.metrics = copy.deepcopy(result.metrics)
    result.metrics["loss"][-1] = lost
    result.metrics["loss_per_rank"][-1] = [lost] * 4
    (ax,) = drawn("loss", Study(single.version, single.scenario, [result]))
    assert np.isnan(data_lines(ax)[0].get_ydata()[-1])


def with_metrics(study, **metrics):
    result = copy.copy(study.points[0])
    result.metrics = dataclasses.replace(result.metrics, **metrics)
    return Study(study.version, study.scenario, [result])


def test_steps_count_from_1(single, drawn):
    (ax,) = drawn("loss", single)
    assert list(data_lines(ax)[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3", "4", "5"]
    assert ax.get_xlabel() == "Step [number, from 1]"


def test_skipped_steps_are_crossed_out_on_the_line(single, drawn):
    (ax,) = drawn("loss", with_metrics(single, skipped_steps=[2, 5]))
    _, crosses = data_lines(ax)
    losses = single.points[0].metrics["loss"]
    assert list(crosses.get_xdata()) == [2, 5]
    assert list(crosses.get_ydata()) == [losses[1], losses[4]]
    assert crosses.get_marker() == SKIPPED
    assert ax.get_title(loc="left") == f"Loss over 5 steps; {SKIPPED_GLYPH} marks skipped ones"


def test_a_skipped_step_without_a_loss_is_crossed_out_in_the_gap(single, drawn):
    study = with_metrics(single, loss=[4.0, None, 2.0], loss_per_rank=None, skipped_steps=[2])
    (ax,) = drawn("loss", study)
    _, crosses = data_lines(ax)
    assert list(crosses.get_ydata()) == [3.0]


def test_without_skipped_steps_nothing_is_crossed_out(single, drawn):
    (ax,) = drawn("loss", with_metrics(single, skipped_steps=[]))
    assert len(data_lines(ax)) == 1
    assert "skipped" not in ax.get_title(loc="left")


def test_each_line_of_a_sweep_has_its_own_crosses(play, drawn):
    scales = {"workload.precision.init_scale": [64.0, 1e30]}
    precision = {"kind": "amp", "dtype": "float16"}
    study = play(set={"workload.precision": precision, "sweep": scales})
    assert [p.metrics["skipped_steps"] for p in study.points] == [[], [1, 2, 3, 4, 5]]
    (ax,) = drawn("loss", study)
    (crosses,) = [line for line in data_lines(ax) if line.get_marker() == SKIPPED]
    assert list(crosses.get_xdata()) == [1, 2, 3, 4, 5]
    assert crosses.get_color() == data_lines(ax)[1].get_color()


def test_a_loss_that_is_lost_for_good_is_told_and_leaves_the_axis_whole(single, drawn):
    lost = float("nan")
    study = with_metrics(single, loss=[1.0, 3.0, lost, None, lost], loss_per_rank=None)
    (ax,) = drawn("loss", study)
    assert texts(ax) == ["not finite after step 2"]
    assert ax.get_xlim()[1] > 5


def test_a_loss_that_never_was_finite_leaves_an_empty_panel(single, drawn):
    study = with_metrics(single, loss=[None] * 3, loss_per_rank=None, skipped_steps=[1, 2, 3])
    (ax,) = drawn("loss", study)
    assert texts(ax) == []
    assert ax.get_title(loc="left").startswith("Loss over 3 steps: never finite")


@for_each(("last", "scale"), [(1.0, "log"), (1.1, "linear"), (0.0, "linear"), (None, "linear")])
def test_a_loss_that_falls_to_a_thirtieth_has_a_logarithmic_axis(last, scale, single, drawn):
    result = copy.copy(single.points[0])
    result.metrics = dataclasses.replace(result.metrics, loss=[30.0, 9.0, last], loss_per_rank=None)
    study = Study(single.version, single.scenario, [result])
    (ax,) = drawn("loss", study)
    assert ax.get_yscale() == scale
    (chart,) = loss_by_step(study)
    assert chart.y.scale == scale.replace("linear", "value")
