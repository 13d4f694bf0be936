from __future__ import annotations

import copy

import numpy as np
import pytest

from simdp.reports.plots.loss import MAX_LINES, LossCurve
from simdp.results.result import Study


def data_lines(ax):
    return [line for line in ax.lines if line.get_transform() == ax.transData]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_the_solid_line_is_the_mean_and_has_markers(single, drawn):
    (ax,) = drawn(LossCurve(), single)
    (line,) = data_lines(ax)
    assert np.array_equal(line.get_ydata(), single.points[0].metrics["loss"])
    assert line.get_linestyle() == "-"
    assert line.get_marker() == "o"


def test_thin_lines_are_the_losses_of_the_ranks(single, drawn):
    (ax,) = drawn(LossCurve(), single)
    (ranks,) = ax.collections
    shown = np.array([segment[:, 1] for segment in ranks.get_segments()])
    assert np.array_equal(shown.T, single.points[0].metrics["loss_per_rank"])
    assert texts(ax) == ["each of 4 ranks", "mean over ranks"]


def test_the_unit_of_the_loss_follows_from_its_kind(single, drawn):
    (ax,) = drawn(LossCurve(), single)
    assert ax.get_ylabel() == "Loss (cross_entropy) [nats]"


def test_a_sweep_has_a_line_per_point_named_by_what_it_sets(sizes, drawn):
    (ax,) = drawn(LossCurve(), sizes)
    assert len(data_lines(ax)) == 3
    assert sorted(texts(ax)) == ["world_size: 2", "world_size: 4", "world_size: 8"]


def test_points_that_coincide_show_different_markers_at_different_steps(grid, drawn):
    (ax,) = drawn(LossCurve(), grid)
    overlapping, alone = data_lines(ax)[:2]  # overlap changes when, never what
    assert np.array_equal(overlapping.get_ydata(), alone.get_ydata())
    assert overlapping.get_color() == alone.get_color()
    assert overlapping.get_marker() != alone.get_marker()
    assert overlapping.get_markevery() != alone.get_markevery()


def test_points_beyond_the_limit_are_left_out_and_counted(play, drawn):
    rates = [0.01 * 1.5**i for i in range(MAX_LINES + 4)]
    study = play(set={"sweep": {"workload.optimizer.lr": rates}})
    (ax,) = drawn(LossCurve(), study)
    assert len(data_lines(ax)) == MAX_LINES
    assert f"{MAX_LINES} of {MAX_LINES + 4} points" in ax.get_title(loc="left")


@pytest.mark.parametrize("lost", [None, float("nan"), float("inf")])
def test_a_loss_that_there_is_not_is_a_gap(lost, single, drawn):
    result = copy.copy(single.points[0])
    result.metrics = copy.deepcopy(result.metrics)
    result.metrics["loss"][-1] = lost
    result.metrics["loss_per_rank"][-1] = [lost] * 4
    (ax,) = drawn(LossCurve(), Study(single.version, single.scenario, [result]))
    assert np.isnan(data_lines(ax)[0].get_ydata()[-1])


def test_a_loss_that_falls_far_has_a_logarithmic_axis(single, drawn):
    result = copy.copy(single.points[0])
    result.metrics = {**result.metrics, "loss": [10.0, 1.0, 0.01], "loss_per_rank": None}
    (ax,) = drawn(LossCurve(), Study(single.version, single.scenario, [result]))
    assert ax.get_yscale() == "log"
