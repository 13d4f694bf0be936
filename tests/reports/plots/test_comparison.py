from __future__ import annotations

import numpy as np
import pytest
from compared import cannot, comparison, ran
from matplotlib.colors import to_hex
from matplotlib.text import Text

from simdp.reports import theme
from simdp.reports.charts import fitting
from simdp.reports.charts.sweep import MAX_ROWS
from simdp.reports.plots.text import ABOUT

pytestmark = pytest.mark.slow


def bars(ax, color):
    """Left end, length and middle of the bars of a colour, by row."""
    found = [p for p in ax.patches if to_hex(p.get_facecolor()).upper() == color.upper()]
    found = [p for p in found if p.get_alpha() != 0 and p.get_facecolor()[3] > 0]
    return {
        round(p.get_y() + p.get_height() / 2): (p.get_x(), p.get_width())
        for p in found
        if p.get_width()
    }


def said(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() != ABOUT]


def named(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_only_points_that_ran_can_be_drawn():
    assert "comparison" in fitting(comparison())
    assert not fitting(comparison(cannot("ddp", "no"), cannot("fsdp", "no")))


def test_the_parts_of_a_step_are_stacked_and_add_up(drawn):
    left, _ = drawn("comparison", comparison())
    assert left.get_xlabel().startswith("Step time [ms], mean over ranks")
    compute, comm = bars(left, theme.COMPUTE), bars(left, theme.COMM)
    assert compute == {
        0: pytest.approx((0, 450)),
        1: pytest.approx((0, 60)),
        2: pytest.approx((0, 60)),
    }
    assert comm == {1: pytest.approx((70, 20)), 2: pytest.approx((61, 50))}
    assert named(left) == ["compute", "update", "exposed comm", "wait", "other"]
    assert said(left)[:3] == ["470 ms", "100 ms", "125 ms"]


def test_the_titles_of_both_panels_are_level(drawn):
    panels = drawn("comparison", comparison())
    names = [ax.get_title(loc="left") for ax in panels]
    assert names == ["What a step is made of", "Fullest device"]
    titles = [text for ax in panels for text in ax.findobj(Text) if text.get_text() in names]
    left, right = (title.get_window_extent().y0 for title in titles)
    assert left == pytest.approx(right)


def test_a_part_that_no_point_has_is_not_in_the_legend(drawn):
    parts = (0.06, 0.01, 0.02, 0.0, 0.0)
    left, _ = drawn("comparison", comparison(ran("ddp", parts), ran("apex", parts)))
    assert named(left) == ["compute", "update", "exposed comm"]


def test_memory_that_does_not_fit_looks_different_and_the_device_is_a_line(drawn):
    _, right = drawn("comparison", comparison())
    assert right.get_xlabel() == "Peak memory [GB]"
    assert bars(right, theme.STRAGGLER) == {0: pytest.approx((0, 60))}
    assert bars(right, theme.INPUT) == {1: pytest.approx((0, 30)), 2: pytest.approx((0, 8))}
    (lines,) = right.collections
    assert np.allclose([segment[:, 0] for segment in lines.get_segments()], 40)
    assert named(right) == ["fits", "does not fit", "device"]


def test_a_device_that_is_far_larger_is_said_and_not_drawn(drawn):
    _, right = drawn("comparison", comparison(ran("ddp", kept=1e6), ran("apex", kept=2e6)))
    assert right.get_xlabel() == "Peak memory [MB]\na device has 40 GB"
    assert not right.collections
    assert right.get_xlim()[1] < 4


def test_far_larger_devices_that_differ_are_said_by_the_smallest(drawn):
    other = ran("apex", kept=1e6)
    other.capacity_bytes = 16e9
    _, right = drawn("comparison", comparison(ran("ddp", kept=1e6), other))
    assert right.get_xlabel().endswith("\ndevices have at least 16 GB")


def test_rows_are_named_from_the_top_with_their_ranks_where_they_differ(drawn):
    left, _ = drawn("comparison", comparison())
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["single · 1 GPU", "ddp · 8 GPUs", "fsdp(units=whole) · 8 GPUs", "horovod"]
    assert left.get_ylim()[0] > left.get_ylim()[1]
    assert left.get_ylabel() == "Strategy"
    left, _ = drawn("comparison", comparison(ran("ddp"), ran("apex")))
    assert [label.get_text() for label in left.get_yticklabels()] == ["ddp", "apex"]


def test_a_key_alone_stands_at_the_axis_and_not_in_every_row(drawn):
    points = [ran("ddp", world_size=n) for n in (2, 4)]
    for point in points:
        point.set = {"workload.microbatch": point.world_size}
    found = comparison(ran("ddp"))
    found.over, found.points = {"workload.microbatch": [2, 4]}, points
    left, _ = drawn("comparison", found)
    assert left.get_ylabel() == "Micro-batch [samples per GPU]"
    assert [label.get_text() for label in left.get_yticklabels()] == ["2 · 2 GPUs", "4 · 4 GPUs"]


def test_a_point_that_cannot_run_says_why_in_its_row(drawn):
    left, _ = drawn("comparison", comparison())
    assert said(left)[3:] == ["cannot run: strategy.join: has no such thing."]
    assert len(left.get_yticklabels()) == 4
    assert left.get_xlabel() == "Step time [ms], mean over ranks"


def test_a_long_reason_is_cut_to_the_panel(drawn):
    study = comparison(ran("ddp"), cannot("horovod", "no " * 400))
    left, right = drawn("comparison", study)
    (reason,) = [text for text in left.texts if text.get_text().startswith("cannot run")]
    assert reason.get_text().endswith("…")
    assert reason.get_window_extent().x1 < right.get_window_extent().x0


@pytest.mark.long
def test_of_many_points_some_are_shown(drawn):
    many = comparison(*[ran(f"s{i}") for i in range(MAX_ROWS + 5)])
    left, _ = drawn("comparison", many)
    assert len(left.get_yticklabels()) == MAX_ROWS
    assert left.get_xlabel().endswith(f"\n{MAX_ROWS} of {MAX_ROWS + 5} points are shown")


def test_a_step_that_takes_no_time_can_be_drawn(drawn):
    left, _ = drawn("comparison", comparison(ran("ddp", (0.0,) * 5)))
    assert left.get_xlim() == (0, 1)
    assert left.get_xlabel() == "Step time [ns], mean over ranks"
