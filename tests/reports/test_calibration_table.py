"""What ``python -m simdp calibrate`` prints."""

import io
from dataclasses import replace

from calibrated import calibration, step_calibration
from for_each import for_each
from rich.console import Console

from simdp.reports import validation_table
from simdp.results.calibration import Proposal, WantedStep


def text(study):
    stream = io.StringIO()
    Console(file=stream, width=200, highlight=False).print(validation_table.tables(study))
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


@for_each("study", [calibration(), step_calibration()])
def test_a_saved_calibration_lists_what_is_open(study):
    opened = [constant.key for constant in study.constants if not constant.is_determined]
    assert study.undetermined == opened
    assert '"residual"' in study.to_json()


def test_what_was_asked_for_is_said_in_the_place_of_the_usual_prediction():
    proposals = (
        Proposal("step", "the step on 16 ranks", 16, (), 0.07),
        Proposal(
            "table", "a table of all_reduce at 1 MiB and 256 MiB on 2 nodes of 4", 8, (), 0.09
        ),
    )
    wanted = WantedStep("step of gpt2 on 64 ranks", 0.18, proposals)
    for study in (calibration(), step_calibration()):
        said = " ".join(text(replace(study, wanted=wanted)).split())
        assert (
            "step of gpt2 on 64 ranks: known within 18.0 %; the step on 16 ranks would make it "
            "7.0 %; a table of all_reduce at 1 MiB and 256 MiB on 2 nodes of 4 9.0 %"
        ) in said
    said = text(replace(calibration(), wanted=replace(wanted, proposals=())))
    assert "neither a table nor a step on fewer ranks would narrow it" in said
