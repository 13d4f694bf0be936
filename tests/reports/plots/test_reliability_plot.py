"""Nominal against observed coverage."""

import pytest
from measured_times import row, step, validation

from simdp.reports.charts import fitting
from simdp.results.validation import LEVELS

STEPS = [step(0.1 + 0.01 * k, 0.1, scenario=str(k)) for k in range(5)]
ROWS = [row(2**k, 1.0, 1.0) for k in range(20, 26)]


def test_steps_and_collectives_have_a_line_each_of_the_share_inside(drawn):
    (ax,) = drawn("reliability", validation(STEPS, ROWS))
    assert ax.get_xlabel() == "Nominal coverage of the interval [%]"
    assert ax.get_ylabel() == "Measured times inside [%]"
    steps, rows = (line for line in ax.lines if line.get_linestyle() == "-")
    # k/100 beyond an interval of +10 % at 90 %: log-normal to each side
    assert list(steps.get_ydata()) == pytest.approx([20, 20, 20, 40, 40, 40])
    assert list(rows.get_ydata()) == [100] * len(LEVELS)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [*("as nominal", "steps: 5 in 5 scenarios", "collectives: 6 in 1 table")]


def test_a_few_points_or_such_without_intervals_have_no_picture():
    assert "reliability" in fitting(validation(STEPS))
    assert "reliability" not in fitting(validation(STEPS[:4]))
    assert "reliability" not in fitting(validation([step(low=0.1, high=0.1)] * 9))
    assert "reliability" not in fitting(validation([step(role="calibration")] * 9))
