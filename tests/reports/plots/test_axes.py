"""Ends of axes that a chart leaves to the drawer."""

import numpy as np
import pytest

from simdp.reports.charts.chart import Axis
from simdp.reports.plots.axes import MARGIN, _ends

VALUES = np.array([2.0, 4.0, 6.0])


def test_a_horizontal_axis_has_as_much_room_on_both_sides_unless_it_starts_at_0():
    room = MARGIN * 4.0
    assert _ends(Axis("Time [s]"), VALUES, False) == pytest.approx((2 - room, 6 + room))
    assert _ends(Axis("Time [s]", from_zero=True), VALUES, False) == pytest.approx((0, 6 + room))
    assert _ends(Axis("Time [s]"), VALUES[:1], False) == pytest.approx((1.5, 2.5))


def test_on_a_logarithmic_axis_the_room_is_a_factor():
    room = 3.0**MARGIN
    assert _ends(Axis("Size [B]", "log"), VALUES, False) == pytest.approx((2 / room, 6 * room))
    assert _ends(Axis("Size [B]", "log"), VALUES[:1], False) == pytest.approx((1, 4))
