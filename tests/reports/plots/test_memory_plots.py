"""Memory over a step, and rank by rank: what is drawn is what the metrics say."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import simdp
from simdp.reports.charts import fitting
from simdp.reports.charts.memory import (
    capacity,
    device_ranks,
    phases,
    shown_parts,
)
from simdp.reports.plots.text import ABOUT
from simdp.results.memory import MEMORY_PARTS, usage
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE

pytestmark = pytest.mark.slow


def texts(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() != ABOUT]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def top(ax):
    """The highest line that is no capacity and no boundary: the total over the step."""
    return max(ax.lines, key=lambda line: len(line.get_xdata())).get_ydata()


def test_the_top_of_the_areas_is_the_total_of_the_fullest_rank(single, drawn):
    (ax,) = drawn("memory", single)
    result = single.points[-1]
    found = usage(result.trace.memory, [0])
    assert max(top(ax)) * 1e3 == pytest.approx(max(result.metrics["peak_memory_bytes"]))
    assert top(ax)[0] * 1e3 == pytest.approx(found.total[found.step == 0][-1])
    assert ax.get_ylabel() == "Device memory [kB]"


def test_the_peak_is_marked_and_named(single, drawn):
    (ax,) = drawn("memory", single)
    (said,) = [text for text in texts(ax) if text.startswith("peak")]
    first, second = said.splitlines()
    assert " kB of 84.99 GB, in " in first
    assert second.startswith(("parameters", "gradients", "buckets"))
    marker = next(line for line in ax.lines if line.get_marker() == "v")
    assert marker.get_ydata()[0] == pytest.approx(max(top(ax)))


def test_the_capacity_is_a_line_where_the_peak_comes_near(play, drawn):
    small = play(set={"cluster.device": "a100-sxm4-80gb", "cluster.device.memory": "100 kB"})
    (ax,) = drawn("memory", small)
    assert any("capacity 100 kB" in text for text in texts(ax))
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [100]


def test_only_parts_that_can_be_seen_have_a_name(single, drawn):
    (ax,) = drawn("memory", single)
    assert {"parameters", "gradients", "buckets"} < set(legend(ax))
    assert "optimizer state" not in legend(ax)
    found = usage(single.points[-1].trace.memory, [0])
    shown = shown_parts(found.kept)
    assert found.kept[:, shown].sum(axis=1) == pytest.approx(found.total, rel=0.05)


def test_the_phases_of_the_step_are_named_from_a_twentieth_of_it_on(single, drawn):
    (ax,) = drawn("memory", single)
    assert texts(ax)[1:] == ["forward", "backward"]  # the update takes 2.7 %


def test_forward_that_runs_again_is_a_part_of_backward():
    order = ("forward a", "forward b", "backward b", "forward b", "backward a", "update model")
    again = [*order[:4], "forward a", *order[4:]]  # with the first call, too
    assert [name for name, *_ in phases(spans(order), 0)] == ["forward", "backward", "update"]
    assert phases(spans(order), 0)[1] == ("backward", 2.0, 5.0)
    two = [*order[:3], "backward a", *order[:3], "backward a", "update model"]
    assert [name for name, *_ in phases(spans(two), 0)] == [
        *("forward", "backward", "forward", "backward", "update")
    ]
    assert len(phases(spans(again), 0)) == 5


def spans(order):
    """A rank's step of calls that take a second each."""
    activities, names = zip(*(one.split() for one in order), strict=True)
    known = sorted(set(names))
    return SimpleNamespace(
        step=np.zeros(len(order), dtype=int),
        lane=np.full(len(order), COMPUTE_LANE),
        activity=np.array([ACTIVITIES.index(one) for one in activities]),
        name=np.array([known.index(one) for one in names]),
        start=np.arange(len(order), dtype=float),
        end=np.arange(len(order), dtype=float) + 1,
    )


def test_ranks_on_one_device_are_drawn_together(play, drawn):
    pair = play(set={"cluster.ranks_per_device": 2})
    alone, result = play().points[-1], pair.points[-1]
    assert device_ranks(result, 3) == [2, 3]
    assert device_ranks(alone, 3) == [3]
    (ax,) = drawn("memory", pair)
    assert ax.get_title(loc="left") == "Memory of ranks 0–1, the fullest"
    assert max(top(ax)) * 1e3 <= 2 * max(result.metrics["peak_memory_bytes"]) + 1e-6


def test_every_rank_has_its_own_capacity(play):
    devices = ["a100-sxm4-80gb"] * 3 + ["a100-sxm4-40gb"]
    result = play(set={"cluster.device": devices}).points[-1]
    assert [capacity(result, rank) for rank in (0, 3)] == [79.15 * 2**30, 39.5 * 2**30]


def test_bars_are_the_peaks_of_the_ranks(uneven, drawn):
    (ax,) = drawn("memory_per_rank", uneven)
    peaks = uneven.points[-1].metrics["peak_memory_bytes"]
    alike = list(dict.fromkeys(peaks))  # in the order of their first ranks
    assert texts(ax) == [f"{peak / 1e3:.4g}" for peak in alike]
    ends = [0.0] * len(alike)
    for bar in ax.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends[row], bar.get_x() + bar.get_width())
    assert [1e3 * end for end in ends] == pytest.approx(alike)
    assert "capacity 84.99 GB" in ax.get_xlabel()


def test_ranks_that_keep_the_same_share_a_bar(play, drawn):
    many = play(
        set={
            "cluster.world_size": 40,
            "cluster.stragglers": [],
            "workload.microbatch": None,
            "workload.global_batch": 401,
            "numerics": False,
        }
    )
    (ax,) = drawn("memory_per_rank", many)
    peaks = many.points[0].metrics["peak_memory_bytes"]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == len(set(peaks)) < 16
    assert any(label.endswith(" ranks") for label in labels)


def test_of_many_groups_some_are_left_out_and_the_axis_says_so(uneven, drawn):
    many = copy.deepcopy(uneven)
    (point,) = many.points
    point.scenario["cluster"]["world_size"] = 40
    held = point.trace.memory[0]
    peaks = [1000 + rank for rank in range(40)]
    point.metrics = dataclasses.replace(point.metrics, peak_memory_bytes=peaks)
    ranks = np.arange(40)
    point.trace.memory = [held._replace(ranks=ranks, at=ranks * 0.0, nbytes=1000.0 + ranks)]
    (ax,) = drawn("memory_per_rank", many)
    assert "\n16 of 40 groups of ranks are shown, the fullest among them" in ax.get_xlabel()
    assert {"0", "39"} <= {label.get_text() for label in ax.get_yticklabels()}


def test_equal_ranks_have_no_bars_and_a_saved_study_no_areas(single, tmp_path):
    assert "memory_per_rank" not in fitting(single)
    single.save(tmp_path / "result.json")
    loaded = simdp.results.result.Study.load(tmp_path / "result.json")
    assert "memory" not in fitting(loaded)
    assert "memory_per_rank" not in fitting(loaded)


def test_every_part_has_a_look_of_its_own():
    from simdp.reports.theme import PART_FILLS

    assert set(PART_FILLS) == set(MEMORY_PARTS)
    assert len({fill[:2] for fill in PART_FILLS.values()}) == len(MEMORY_PARTS)
