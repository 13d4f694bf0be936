"""Bars and bands: no time is lost or invented where spans are too narrow to be drawn one by one."""

import numpy as np
import pytest

from simdp.reports.charts.timeline import PIXEL, TimeWindow
from simdp.reports.plots.spans import bars_of
from simdp.results.trace import COMM_LANE, TraceBuilder

LENGTH = 1.0
PX = PIXEL * LENGTH


def bars(spans, name="all_reduce bucket {}"):
    """Bars and bands of collectives that begin and end so [pixels]."""
    builder = TraceBuilder()
    for number, (start, end) in enumerate(spans):
        times = start * PX, end * PX
        builder.add_one(0, 0, COMM_LANE, "comm", name.format(number), *times)
    window = TimeWindow(0.0, LENGTH, range(1), False)
    return bars_of(builder.build(), window, LENGTH, 500.0)


def test_narrow_bars_with_gaps_are_counted_and_keep_their_time():
    drawn, (band,) = bars([(4 * i, 4 * i + 1.5) for i in range(145)])
    assert band.text == "145 × all_reduce"
    assert (band.start, band.end) == pytest.approx((0, 577.5 * PX))
    assert set(drawn.name.tolist()) == {""}
    assert (drawn.end - drawn.start).sum() == pytest.approx(145 * 1.5 * PX)


def test_narrow_bars_without_gaps_have_no_hole():
    drawn, (band,) = bars([(2 * i, 2 * i + 2) for i in range(145)])
    assert band.text == "145 × all_reduce"
    assert drawn.start[1:] == pytest.approx(drawn.end[:-1])
    assert (drawn.start[0], drawn.end[-1]) == pytest.approx((0, 290 * PX))


def test_wide_bars_stay_apart_and_keep_their_names():
    drawn, bands = bars([(0, 40), (40, 90), (200, 260)])
    assert bands == []
    assert drawn.name.tolist() == [f"all_reduce bucket {i}" for i in range(3)]
    assert drawn.start / PX == pytest.approx([0, 40, 200])


def test_a_lonely_narrow_bar_stays_as_narrow_as_it_is():
    drawn, bands = bars([(0, 40), (600, 600.25)])
    assert bands == []
    assert (drawn.end - drawn.start)[1] == pytest.approx(0.25 * PX)


def test_what_leaves_the_window_is_cut_off():
    drawn, _ = bars([(1100, 1300)])
    assert drawn.end[0] == pytest.approx(LENGTH)


def test_no_spans_make_no_bars():
    drawn, bands = bars([])
    assert len(drawn.start) == len(bands) == 0
    assert isinstance(drawn.start, np.ndarray)
