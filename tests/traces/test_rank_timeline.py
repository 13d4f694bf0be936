"""Steps of a rank, on its host and its device."""

from itertools import pairwise

import numpy as np
import pytest
from trace_maker import RankMaker

from simdp.studies.diagnose.rows import step_rows
from simdp.traces.timeline import timeline


def test_steps_in_which_the_launch_queue_fills_are_not_counted():
    """The host needs 30 ms a step until it is 200 ms ahead, and then the device's 100."""
    maker = RankMaker()
    marks, device = [0.0, 0.03, 0.06, 0.16, 0.26, 0.36], 0.0
    for step, (begin, end) in enumerate(pairwise(marks)):
        maker.step(step + 1, begin, end)
        maker.kernel(max(device, begin), max(device, begin) + 0.1, launched=begin)
        device = max(device, begin) + 0.1
    line = timeline(maker.trace(), 0)
    assert line.counted.tolist() == [False, False, True, True, True]
    assert line.time[line.used] == pytest.approx(0.1)
    assert (line.end - line.begin) == pytest.approx(0.1)
    assert [row.counted for row in step_rows(line)] == line.used.tolist()


def test_where_the_queue_fills_all_along_the_device_tells_the_time():
    maker = RankMaker()
    for step in range(4):
        maker.step(step + 1, 0.01 * step, 0.01 * (step + 1))
        maker.kernel(0.1 * step, 0.1 * (step + 1), launched=0.01 * step)
    line = timeline(maker.trace(), 0)
    assert not line.counted.any()
    assert line.used.tolist() == [False, True, True, True]
    assert line.time == pytest.approx(0.1)


def test_a_device_that_is_behind_by_less_than_a_step_all_along_is_counted():
    maker = RankMaker()
    for step in range(4):
        maker.step(step + 1, 0.1 * step, 0.1 * (step + 1))
        maker.kernel(0.1 * step + 0.05, 0.1 * (step + 1) + 0.04, launched=0.1 * step + 0.02)
    assert timeline(maker.trace(), 0).counted.all()


def test_without_marks_a_step_lies_between_the_ends_of_two_updates():
    maker = RankMaker()
    for step in range(4):
        maker.kernel(step + 0.1, step + 0.6)
        maker.note("Optimizer.step#SGD.step", step + 0.7, step + 0.8)
    line = timeline(maker.trace(), 0)
    assert (line.marks.mark, line.num_steps) == ("Optimizer.step", 3)
    assert line.host == pytest.approx(1.0)
    assert line.marks.kernel.tolist() == [-1, 0, 1, 2]


def test_without_any_the_whole_trace_stands_for_a_step():
    maker = RankMaker()
    maker.kernel(0.2, 0.4)
    maker.kernel(1.0, 1.1)
    line = timeline(maker.trace(), 0)
    assert (line.marks.mark, line.num_steps) == ("", 1)
    assert line.host == pytest.approx(0.9)
    assert list(step_rows(line)) == []


def test_figures_of_a_step_are_unions_of_what_was_launched_in_it():
    maker = RankMaker()
    maker.step(1, 0.0, 1.0)
    maker.step(2, 1.0, 2.0)
    maker.kernel(0.1, 0.5, launched=0.05)
    maker.kernel(0.3, 0.6, launched=0.06)
    maker.call("all_reduce", 0.5, 0.9, launched=0.07)
    maker.copy(0.85, 1.0)
    maker.kernel(1.0, 1.2, launched=0.08)  # runs in the second step, but belongs to the first
    first, second = step_rows(timeline(maker.trace(), 0))
    assert first.compute_s == pytest.approx(0.7)
    assert (first.comm_s, first.hidden_comm_s) == (pytest.approx(0.4), pytest.approx(0.1))
    assert (first.exposed_comm_s, first.copy_s) == (pytest.approx(0.3), pytest.approx(0.1))
    assert (first.busy_s, first.span_s) == (pytest.approx(1.1), pytest.approx(1.1))
    assert np.isclose(second.busy_s, 0.0)
