"""First sentences of pages hold for the measured values that they are drawn over."""

from dataclasses import replace
from pathlib import Path

import pytest
from for_each import for_each

from simdp.engine.simulate import simulate
from simdp.reports.answers import of_run
from simdp.reports.page import page_of
from simdp.scenario.loading import checked
from simdp.studies.diagnose.reported import diagnose_reported, reported_job

JOB = {
    "cluster": {"world_size": 1, "device": "t4-16gb"},
    "workload": {"model": "mpt-3b", "microbatch": 1, "steps": 2},
    "strategy": "single",
    "numerics": False,
}


@pytest.fixture(scope="module")
def result():
    return simulate(checked(JOB, Path()))


def test_a_model_that_does_not_fit_says_so_first_with_how_much_is_lacking(result):
    assert result.metrics["fits_memory"] is False
    first, second, *_ = of_run(result).lines
    assert first.startswith("The model does not fit: the fullest GPU needs ")
    assert first.endswith(" too much; `simdp fits` lists what would.")
    assert second.startswith("Of a step of ")
    assert not of_run(result).good
    roomy = replace(result, metrics={**result.metrics, "fits_memory": True})
    assert of_run(roomy).lines[0].startswith("Of a step of ")


@for_each("source", ["reported", "kineto"])
def test_only_a_diagnosis_of_traces_speaks_of_traces(source):
    given = {"step": "320ms", "comm": "40%", "gpus": 8, "device": "a100-sxm4-80gb"}
    diagnosis = diagnose_reported(reported_job({**given, "parameters": "350M"}), True)
    page = page_of(replace(diagnosis, source=source))
    text = " ".join(str(vars(section)) for section in page.sections if hasattr(section, "__dict__"))
    text += str(page.sections)
    assert ("in the replay of these traces" in text) == (source == "kineto")
    assert ("as it was reported" in text) == (source == "reported")
