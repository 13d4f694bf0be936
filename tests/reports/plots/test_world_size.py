"""Time of a collective against the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from simdp.reports.charts.bandwidth import MAX_LINES
from simdp.reports.plots.text import ABOUT


def curves(ax):
    lines = [line for line in ax.lines if line.get_transform() == ax.transData]
    return [line for line in lines if line.get_marker() not in ("None", "", None)]


def texts(ax):
    """What is written beside lines, without what the picture is of."""
    return [text.get_text() for text in ax.texts if text.get_gid() != ABOUT]


def about(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() == ABOUT]


def test_a_line_shows_the_time_of_a_size_at_each_world_size(time_collective, drawn):
    study = time_collective(world_sizes=(2, 4, 8), sizes=[2**20])
    (ax,) = drawn("world_size", study)
    (line,) = curves(ax)
    assert np.array_equal(line.get_xdata(), [2, 4, 8])
    assert ax.get_ylabel() == "Time [us]"
    seconds = [curve.points[0].seconds for curve in study.curves]
    assert line.get_ydata() == pytest.approx(np.array(seconds) * 1e6)
    assert texts(ax) == ["1 MiB"]
    assert about(ax) == ["on box"]


def test_a_rank_alone_is_left_out(time_collective, drawn):
    (ax,) = drawn("world_size", time_collective(world_sizes=(1, 2, 4)))
    assert all(np.array_equal(line.get_xdata(), [2, 4]) for line in curves(ax))


def test_world_sizes_are_the_ticks(collectives, drawn):
    (ax,) = drawn("world_size", collectives)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "4", "8"]


def test_lines_are_named_by_algorithm_and_size(collectives, drawn):
    (ax,) = drawn("world_size", collectives)
    sizes = "1 KiB", "128 KiB", "16 MiB"
    assert sorted(texts(ax)) == sorted(f"{k}, {s}" for k in ("ring", "tree") for s in sizes)
    assert len({line.get_color() for line in curves(ax)}) == 2
    assert len({line.get_marker() for line in curves(ax)}) == 3


def test_one_size_of_several_algorithms_stands_in_the_title(time_collective, drawn):
    (ax,) = drawn("world_size", time_collective(("ring", "tree"), (2, 4, 8), [2**24]))
    assert sorted(texts(ax)) == ["ring", "tree"]
    assert ax.get_title(loc="left") == "Time of all_reduce of 16 MiB by the number of GPUs"


def test_sizes_beyond_the_limit_are_left_out_and_counted(time_collective, drawn):
    sizes = [1024 << k for k in range(9)]
    (ax,) = drawn("world_size", time_collective(world_sizes=(2, 4), sizes=sizes))
    assert len(curves(ax)) == MAX_LINES
    assert ax.get_title(loc="left") == "Time of all_reduce by the number of GPUs; 6 of 9 sizes"


def test_a_barrier_has_a_line_without_a_size(time_collective, drawn):
    (ax,) = drawn("world_size", time_collective(["tree"], (2, 4), [0], collective="barrier"))
    assert texts(ax) == ["tree"]
