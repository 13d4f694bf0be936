"""What ``python -m simdp calibrate`` prints."""

import io

import pytest
from calibrated import calibration, step_calibration
from rich.console import Console

from simdp.reports import calibration_table


def text(study):
    stream = io.StringIO()
    Console(file=stream, width=200, highlight=False).print(calibration_table.tables(study))
    return stream.getvalue()


def test_every_size_has_its_error_and_what_served_it():
    said = text(calibration())
    assert "box.csv" in said
    (row,) = [line for line in said.splitlines() if "1 KiB" in line]
    assert row.split()[-3:] == ["+10.0", "%", "ring/ll"]
    assert "all_reduce of 25 MiB is known within 10.0 %; measuring all_reduce of 16 MiB" in said


def test_every_step_has_its_error():
    said = text(step_calibration())
    (row,) = [line for line in said.splitlines() if "world_size=4" in line]
    assert row.split() == ["box:", "world_size=4", "200", "ms", "190", "ms", "-5.0", "%"]
    assert "what is predicted is known within 10.0 %; measuring box: world_size=16" in said


def test_constants_that_the_data_leave_open_say_so():
    said = [line for line in text(step_calibration()).splitlines() if " ... " in line]
    assert ["not determined by the data" in line for line in said] == [False, True]


def test_without_predicted_points_there_is_nothing_to_propose():
    assert "add points with role: predicted" in text(step_calibration(next_point=False))


@pytest.mark.parametrize("study", [calibration(), step_calibration()])
def test_a_saved_calibration_lists_what_is_open(study):
    opened = [constant.key for constant in study.constants if not constant.is_determined]
    assert study.undetermined == opened
    assert '"residual"' in study.to_json()
