"""Pictures of a job: one run as a strip, and when runs are done."""

from dataclasses import replace

import numpy as np
import pytest
from jobs_drawn import HOUR, job, one_job, three_jobs
from matplotlib.colors import to_hex

from simdp.reports.charts import CHARTS, fitting
from simdp.reports.charts.job import LOOKS, shares
from simdp.reports.plots import draw
from simdp.reports.plots.axes import STRIP_HEIGHT
from simdp.reports.plots.style import style
from simdp.results.job import JobStretch

pytestmark = pytest.mark.slow


def drawn(study, kind):
    with style():
        _, axes = draw(CHARTS[kind].picture(study))
    return axes[0]


def test_a_job_has_its_two_pictures():
    assert fitting(one_job()) == fitting(three_jobs()) == ["job_finish", "job_strip"]
    assert fitting(one_job(finishes=[1.0, 1.0], strip=[])) == []


def test_a_single_run_is_cut_into_rows_that_hold_all_of_it():
    study = one_job()
    ax = drawn(study, "job_strip")
    assert len(ax.get_yticklabels()) == 6
    spent = {}
    for collection in ax.collections:
        (x, y) = collection.get_paths()[0].vertices.T
        assert x.min() >= 0
        assert x.max() <= 20 / 6 + 1e-9
        color = to_hex(collection.get_facecolor()[0])
        area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
        spent[color] = spent.get(color, 0.0) + area / STRIP_HEIGHT
    assert sum(spent.values()) == pytest.approx(20.0)
    others = {"checkpoint_save": 0.5, "recovery": 1, "startup": 0.5, "checkpoint_restore": 0.5}
    for what, hours in {**others, "lost": 1.5}.items():
        assert spent[to_hex(LOOKS[what][0])] == pytest.approx(hours), what
    assert {*spent} == {to_hex(patch.get_facecolor()) for patch in ax.get_legend().get_patches()}
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [
        "training",
        "checkpoint",
        "recovery",
        "start",
        "load",
        "training that was lost",
    ]


def test_the_shares_of_a_column_are_its_parts():
    strip = [JobStretch("lost", 0, 1), JobStretch("training", 1, 3), JobStretch("lost", 3, 3.5)]
    edges = np.array([0.0, 2.0, 4.0])
    assert shares(strip, "lost", edges).tolist() == [0.5, 0.25]
    assert shares(strip, "training", edges).tolist() == [0.5, 0.5]
    assert shares(strip, "startup", edges).tolist() == [0, 0]


def test_columns_that_reach_the_end_of_a_run_are_not_divided_by_nothing():
    """500 times a 500th of 78,380.1 s is 78,380.1 s, one column more."""
    study = three_jobs()
    ends = [JobStretch("training", 0.0, 78380.1)]
    points = [job({"checkpoint.every": str(number)}, strip=ends) for number in range(2)]
    ax = drawn(replace(study, points=points), "job_strip")
    for collection in ax.collections:
        assert np.isfinite(collection.get_paths()[0].vertices).all()


def test_jobs_of_a_sweep_have_a_row_each():
    ax = drawn(three_jobs(), "job_strip")
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "every: 10 min",
        "every: daly",
        "every: 30 min",
    ]


def test_the_share_of_runs_that_are_done_rises_to_all_of_them():
    ax = drawn(three_jobs(), "job_finish")
    shares = [line for line in ax.lines if line.get_linestyle() == "-"]
    assert len(shares) == 3
    for line, start in zip(shares, (21.0, 20.0, 23.0), strict=True):
        assert line.get_xdata()[0] == pytest.approx(start)
        assert line.get_ydata()[-1] == 100
    (deadline,) = (line for line in ax.lines if line.get_linestyle() == "--")
    assert any(text.get_text().startswith("deadline") for text in ax.texts)
    assert deadline.get_xdata()[0] * HOUR == 22 * HOUR
    assert ax.get_xlabel() == "Time from the start of the job [h]"
