"""Pictures of a job: one run as a strip, and when runs are done."""

import pytest
from jobs_drawn import HOUR, one_job, three_jobs

from simdp.reports import theme
from simdp.reports.plots import PLOTS, fitting

pytestmark = pytest.mark.slow


def drawn(study, kind):
    plot = PLOTS[kind]()
    with theme.style():
        _, axes = theme.new_figure(plot.num_axes, plot.num_rows(study), plot.widths)
        plot.draw(study, *axes)
    return axes[0]


def test_a_job_has_its_two_pictures():
    assert fitting(one_job()) == fitting(three_jobs()) == ["job_finish", "job_strip"]
    assert fitting(one_job(finishes=[1.0, 1.0], strip=[])) == []


def test_a_single_run_is_cut_into_rows_that_hold_all_of_it():
    study = one_job()
    ax = drawn(study, "job_strip")
    assert PLOTS["job_strip"]().num_rows(study) == 6
    boxes = [path.get_extents() for collection in ax.collections for path in collection.get_paths()]
    training = [box for box in boxes if box.width == pytest.approx(20 / 6)]
    others = 0.5 + 0.5 + 1.5 + 1 + 0.5  # start, checkpoint, lost, recovery, load
    assert len(training) == 6
    assert sum(box.width for box in boxes) == pytest.approx(20.0 + others)
    assert all(box.x0 >= 0 and box.x1 <= 20 / 6 + 1e-9 for box in boxes)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [
        "training",
        "checkpoint",
        "recovery",
        "start",
        "load",
        "training that was lost",
    ]


def test_jobs_of_a_sweep_have_a_row_each():
    ax = drawn(three_jobs(), "job_strip")
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "every: 10 min",
        "every: daly",
        "every: 30 min",
    ]


def test_the_share_of_runs_that_are_done_rises_to_all_of_them():
    ax = drawn(three_jobs(), "job_finish")
    steps = [line for line in ax.lines if line.get_drawstyle() != "default"]
    assert len(steps) == 3
    for line, start in zip(steps, (21.0, 20.0, 23.0), strict=True):
        assert line.get_xdata()[0] == pytest.approx(start)
        assert line.get_ydata()[-1] == 100
    (deadline,) = (line for line in ax.lines if line.get_label().startswith("deadline"))
    assert deadline.get_xdata()[0] * HOUR == 22 * HOUR
    assert ax.get_xlabel() == "Time from the start of the job [h]"
