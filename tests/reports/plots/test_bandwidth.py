"""Bus bandwidth against size: lines, thin candidates, crossovers, measurements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from simdp.reports import theme
from simdp.reports.charts.bandwidth import MAX_LINES
from simdp.reports.plots.text import ABOUT
from simdp.results.collective import NcclLog, NcclRow

pytestmark = pytest.mark.slow


def curves(ax):
    """Lines of data with markers."""
    return [line for line in ax.lines if line.get_transform() == ax.transData and has_marker(line)]


def has_marker(line):
    return line.get_marker() not in ("None", "", None)


def thin(ax):
    lines = [line for line in ax.lines if line.get_transform() == ax.transData]
    return [line for line in lines if not has_marker(line)]


def texts(ax):
    """What is written beside lines, without what the picture is of."""
    return [text.get_text() for text in ax.texts if text.get_gid() != ABOUT]


def about(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() == ABOUT]


def title(ax):
    return ax.get_title(loc="left")


def test_a_line_shows_the_bus_bandwidth_of_each_size(time_collective, drawn):
    study = time_collective()
    (ax,) = drawn("bandwidth", study)
    (line,) = curves(ax)
    points = study.curves[0].points
    busbw = [study.busbw(point.nbytes, point.seconds, 8) / 1e9 for point in points]
    assert np.array_equal(line.get_xdata(), [point.nbytes for point in points])
    assert line.get_ydata() == pytest.approx(busbw)
    assert line.get_linestyle() == "-"
    assert texts(ax) == ["ring"]
    assert title(ax) == "Bus bandwidth of all_reduce, 8 GPUs"
    assert about(ax) == ["on box"]


def test_sizes_have_their_units_below_a_log2_axis(time_collective, drawn):
    (ax,) = drawn("bandwidth", time_collective(sizes=[1024 * 4**k for k in range(11)]))
    written = [label.get_text() for label in ax.get_xticklabels()]
    assert written[0] == "1 KiB"
    assert written[-1] == "1 GiB"
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize("sizes", [[1024 << k for k in range(21)], [8 << k for k in range(31)]])
def test_ticks_do_not_touch(sizes, time_collective, drawn):
    (ax,) = drawn("bandwidth", time_collective(sizes=sizes))
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    for left, right in itertools.pairwise(boxes):
        assert left.x1 + 2 < right.x0


def test_lines_are_named_by_what_differs(collectives, time_collective, drawn):
    (ax,) = drawn("bandwidth", collectives)
    names = [f"{kind}, {n} GPUs" for kind in ("ring", "tree") for n in (2, 4, 8)]
    assert sorted(texts(ax)) == sorted(names)
    colors = [line.get_color() for line in curves(ax)]
    assert len({*colors[:3]}) == len({*colors[3:]}) == 1  # a colour per algorithm
    assert colors[0] != colors[3]
    (ax,) = drawn("bandwidth", time_collective(world_sizes=(1, 2, 4)))
    assert sorted(texts(ax)) == ["2 GPUs", "4 GPUs"]  # a rank alone has no bandwidth


def test_world_sizes_beyond_the_limit_are_left_out_and_counted(time_collective, drawn):
    (ax,) = drawn("bandwidth", time_collective(("ring", "tree"), (2, 3, 4, 5, 6)))
    assert len(curves(ax)) == MAX_LINES
    assert title(ax) == "Bus bandwidth of all_reduce; 3 of 5 world sizes"


def test_auto_is_drawn_over_its_candidates(auto, drawn):
    (ax,) = drawn("bandwidth", auto)
    (line,) = curves(ax)
    candidates = [other for other in thin(ax) if len(other.get_xdata()) == 3]
    assert len(candidates) == 2
    assert all(other.get_linewidth() < line.get_linewidth() for other in candidates)
    best = np.max([other.get_ydata() for other in candidates], axis=0)
    assert line.get_ydata() == pytest.approx(best)
    assert {"auto", "ring", "recursive_doubling"} <= {*texts(ax)}
    assert title(ax).endswith("16 GPUs; thin: what auto chose from")


def test_a_crossover_lies_where_two_candidates_meet(auto, drawn):
    (curve,) = auto.curves
    (crossover,) = curve.crossovers()
    (ax,) = drawn("bandwidth", auto)
    (mark,) = [line for line in ax.lines if line.get_linestyle() == ":"]
    before = max(p.nbytes for p in curve.points if p.nbytes < crossover.nbytes)
    assert before < mark.get_xdata()[0] <= crossover.nbytes
    inside = [text for text in ax.texts if text.get_transform() == ax.get_xaxis_transform()]
    assert [text.get_text() for text in inside] == [crossover.before, crossover.now]


def test_a_candidate_that_is_too_long_to_predict_ends_earlier(auto, drawn):
    (curve,) = auto.curves
    *first, last = curve.points
    kept = {name: s for name, s in last.candidates.items() if name == last.algorithm}
    points = (*first, replace(last, candidates=kept))
    (ax,) = drawn("bandwidth", replace(auto, curves=(replace(curve, points=points),)))
    lengths = [len(line.get_xdata()) for line in thin(ax) if line.get_linestyle() == "-"]
    assert sorted(length for length in lengths if length > 1) == [2, 3]


def test_a_crossover_without_both_predictions_lies_at_the_later_size(auto, drawn):
    (curve,) = auto.curves
    (crossover,) = curve.crossovers()
    points = tuple(
        replace(p, candidates={p.algorithm: p.seconds}) if p.nbytes == crossover.nbytes else p
        for p in curve.points
    )
    (ax,) = drawn("bandwidth", replace(auto, curves=(replace(curve, points=points),)))
    (mark,) = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert mark.get_xdata()[0] == crossover.nbytes


def test_names_between_crossovers_stay_below_none_of_the_lines(auto, drawn):
    (ax,) = drawn("bandwidth", auto)
    top = ax.transData.transform((1, max(line.get_ydata().max() for line in curves(ax))))[1]
    for text in ax.texts:
        if text.get_transform() == ax.get_xaxis_transform():
            assert text.get_window_extent().y0 > top


def test_measurements_are_open_circles_at_their_sizes(time_collective, drawn):
    rows = tuple(NcclRow(nbytes, 1e-3) for nbytes in (2**10, 2**24))
    log = NcclLog("a.log", "all_reduce", 8, "float", "sum", -1, rows)
    study = time_collective(measured=log)
    (ax,) = drawn("bandwidth", study)
    _, measured = curves(ax)
    assert measured.get_markerfacecolor() == "none"
    assert measured.get_linestyle() == "None"
    assert np.array_equal(measured.get_xdata(), [2**10, 2**24])
    assert measured.get_ydata()[1] == pytest.approx(2**24 / 1e-3 * 1.75 / 1e9)
    assert texts(ax).count("measured") == 1


def test_lines_have_colours_of_no_activity(collectives, drawn):
    (ax,) = drawn("bandwidth", collectives)
    assert {line.get_color() for line in curves(ax)} <= {*theme.SERIES}
