from __future__ import annotations

import dataclasses

import numpy as np
from calibrated import calibration

from simdp.reports import theme
from simdp.reports.charts import fitting
from simdp.reports.plots.text import ABOUT


def test_two_sizes_are_needed():
    study = calibration()
    assert fitting(study) == ["fit"]
    assert "fit" not in fitting(dataclasses.replace(study, points=study.points[:1]))


def test_open_circles_are_measured_and_lines_fitted(drawn):
    top, _ = drawn("fit", calibration())
    circles = [line for line in top.lines if line.get_markerfacecolor() == "none"]
    (measured,) = circles
    assert np.allclose(measured.get_xydata(), [(1024, 1.792e-2), (2**20, 9.175)], rtol=1e-3)
    solid = [line for line in top.lines if line.get_linestyle() == "-"]
    assert any(np.allclose(line.get_ydata(), [1.792e-2 / 1.1, 9.175 / 0.3]) for line in solid)
    assert top.get_ylabel() == "Bus bandwidth [GB/s]"
    assert top.get_title("left") == "Collectives of box"
    (about,) = [text.get_text() for text in top.texts if text.get_gid() == ABOUT]
    assert about == "fitted with 5.0 % RMS error; open circles: measured"


def test_errors_stand_below_and_large_ones_at_the_edge(drawn):
    _, bottom = drawn("fit", calibration())
    errors = next(line for line in bottom.lines if len(line.get_xdata()) == 2
                  and line.get_linestyle() == "None")  # fmt: skip
    assert np.allclose(errors.get_ydata(), [10, -50])
    assert bottom.get_ylabel() == "Error [%]"


def test_lines_are_named_by_layout_and_by_collective_where_there_are_several(drawn):
    study = calibration()
    more = [dataclasses.replace(point, collective="all_gather") for point in study.points]
    top, _ = drawn("fit", dataclasses.replace(study, points=(*study.points, *more)))
    names = {text.get_text() for text in top.texts}
    assert {"all_reduce, 1 x 8 GPUs", "all_gather, 1 x 8 GPUs"} <= names


def test_the_footer_names_the_machine_and_counts_the_logs():
    assert theme.footer(calibration()) == "machine box · 1 file of nccl-tests · simdp 0.1.0"
