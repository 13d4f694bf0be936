"""Plots of sweeps over any key: curves over numbers, bars of points, loss by time."""

import copy
import dataclasses

import numpy as np
import pytest

from simdp.reports.charts import fitting
from simdp.reports.charts.sweep import places_of
from simdp.results.result import Study

A100 = 79.15 * 2**30 / 1e9


def swept(study, key, values, **metrics):
    """The study at points that set a key; each metric has a value for every point."""
    points = []
    for number, value in enumerate(values):
        point = copy.copy(study.points[0])
        point.set, point.trace = {key: value}, None
        point.metrics = dataclasses.replace(
            point.metrics, **{name: of[number] for name, of in metrics.items()}
        )
        points.append(point)
    return Study(study.version, {**study.scenario, "sweep": {key: values}}, points)


CAPS = ["64 KiB", "1 MiB", "25 MiB"]


def test_every_sweep_has_one_picture_of_its_points(single, sizes):
    kinds = {"scaling", "sweep", "points"}
    for study, kind in (
        (sizes, "scaling"),
        (swept(single, "strategy.bucket_cap", CAPS), "sweep"),
        (swept(single, "workload.microbatch", [1, 2, 4]), "sweep"),
        (swept(single, "workload.microbatch", [1, 2]), "points"),
        (swept(single, "strategy.overlap", [False, True]), "points"),
        (swept(single, "strategy", ["ddp", "fsdp", {"kind": "zero1"}]), "points"),
    ):
        assert kinds & set(fitting(study)) == {kind}
    assert not kinds & set(fitting(single))


def test_a_curve_stands_where_the_values_are(single, drawn):
    times = [0.003, 0.002, 0.001]
    study = swept(single, "strategy.bucket_cap", CAPS, step_time_s=times, interval_s=[None] * 3)
    top, _ = drawn("sweep", study)
    (line,) = [line for line in top.lines if line.get_linestyle() == "-" and line.get_clip_on()]
    assert line.get_xdata().tolist() == [2**16, 2**20, 25 * 2**20]
    assert line.get_ydata().tolist() == pytest.approx([3.0, 2.0, 1.0])
    assert top.get_xscale() == "log"
    assert [label.get_text() for label in top.get_xticklabels()] == CAPS
    assert top.get_title(loc="left") == "Step time by bucket cap"
    assert top.get_xlabel() == "Bucket cap"
    assert top.get_ylabel() == "Step time [ms]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metrics", "label"),
    [
        ({"loss": [[1.0], [2.0], [3.0]]}, "Last loss [the loss's own unit]"),
        ({"loss": [None] * 3, "peak_memory_bytes": [[1e9], [2e9], [3e9]]}, "Memory [GB]"),
        ({"loss": [[1.0]] * 3, "exposed_comm_s": [0.0, 0.1, 0.2]}, "Lost [ms]"),
    ],
)
def test_the_lower_panel_shows_what_changes_besides(single, drawn, metrics, label):
    same = {"loss": [[1.0]] * 3, "peak_memory_bytes": [[1e9]] * 3, "wait_s": [0.0] * 3}
    metrics = {**same, "exposed_comm_s": [0.0] * 3, **metrics}
    study = swept(single, "workload.microbatch", [1, 2, 4], **metrics)
    _, bottom = drawn("sweep", study)
    assert bottom.get_ylabel() == label


@pytest.mark.slow
def test_the_capacity_is_a_line_where_some_points_need_more(single, drawn):
    peaks = {"peak_memory_bytes": [[40e9], [60e9], [90e9]]}
    small = swept(single, "workload.microbatch", [1, 2, 4], **peaks)
    large = swept(
        single, "workload.microbatch", [1, 2, 4], **peaks, fits_memory=[True, True, False]
    )
    for study, expected in ((small, []), (large, ["capacity 84.99 GB"])):
        _, bottom = drawn("sweep", study)
        said = [text.get_text() for text in bottom.texts]
        assert [text for text in said if "capacity" in text] == expected
        heights = [line.get_ydata() for line in bottom.lines if line.get_linestyle() == "--"]
        assert [list(height) for height in heights] == [[A100, A100]] * len(expected)


def test_values_without_a_number_have_no_axis():
    assert places_of(["ring", "tree"]) is None
    assert places_of([True, False]) is None
    assert places_of([{"kind": "x"}, 3]) is None
    assert places_of([1, 2.5]) == {"1": 1.0, "2.5": 2.5}
    assert places_of(["1 us", "2 ms"]) == {"1 us": pytest.approx(1e-6), "2 ms": pytest.approx(2e-3)}
    assert places_of(["1 us", "2 MiB"]) is None


def test_a_bar_per_point_is_named_by_its_value(single, drawn):
    left, right = drawn("points", swept(single, "strategy.overlap", [False, True]))
    assert [label.get_text() for label in left.get_yticklabels()] == ["false", "true"]
    assert left.get_ylabel() == "Overlap"
    assert right.get_xlabel().startswith("Peak memory [")


def test_loss_stands_where_the_ranks_were_done_with_the_step(single, drawn):
    losses = [[3.0, 2.0, 1.0, 0.5, 0.4], [3.0, 2.5, 2.0, 1.5, 1.2]]
    study = swept(single, "strategy.local_steps", [1, 2], loss=losses)
    ends = single.points[0].step_ends
    study.points[1].step_ends = 0.5 * ends
    assert "loss_time" in fitting(study)
    (ax,) = drawn("loss_time", study)
    lines = [line for line in ax.lines if line.get_transform() == ax.transData]
    scale = lines[0].get_xdata()[-1] / ends[:, 1:].mean(axis=0)[-1]
    assert np.allclose(lines[0].get_xdata(), ends[:, 1:].mean(axis=0) * scale)
    assert np.allclose(lines[1].get_xdata(), lines[0].get_xdata() / 2)
    assert lines[1].get_ydata().tolist() == losses[1]


def test_loss_by_time_says_nothing_new_where_ranks_wait_or_times_are_equal(single, tmp_path):
    assert "loss_time" not in fitting(single)
    assert "loss_time" not in fitting(swept(single, "strategy.overlap", [False, True]))
    single.save(tmp_path / "result.json")
    assert "loss_time" not in fitting(Study.load(tmp_path / "result.json"))


def test_the_interval_of_a_points_step_lies_below_its_bar(single, drawn):
    step = single.points[0].metrics["step_time_s"]
    ends = [None, [0.8 * step, 1.4 * step]]
    study = swept(single, "strategy.overlap", [False, True], interval_s=ends)
    left, _ = drawn("points", study)
    (line,) = [one for one in left.collections if one.get_label() == "90 % interval"]
    ((start, end),) = line.get_segments()
    assert end[0] / start[0] == pytest.approx(1.4 / 0.8)
    assert start[1] == end[1] > 1  # in the second row, below the middle of its bar
    assert left.get_xlim()[1] > end[0]
    legend = [text.get_text() for text in left.get_legend().get_texts()]
    assert "90 % interval" in legend


def test_the_intervals_of_steps_are_drawn_over_any_key(single, drawn):
    step = single.points[0].metrics["step_time_s"]
    ends = [[0.9 * step, 1.2 * step], None, [0.8 * step, 1.5 * step]]
    study = swept(single, "strategy.local_steps", [1, 2, 4], interval_s=ends)
    top, bottom = drawn("sweep", study)
    band, bars = top.collections
    assert band.get_alpha() < 0.3
    found = [segment[:, 1] for segment in bars.get_segments() if len(segment)]
    ratios = np.array(found) / np.array([ends[0], ends[2]])
    assert np.allclose(ratios, ratios[0, 0])  # the unit
    assert top.get_ylim()[1] > np.max(found)
    assert not bottom.collections
