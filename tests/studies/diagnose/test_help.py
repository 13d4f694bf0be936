"""Remedies: simulated for what is worth it, on a replay of the same traces."""

import pytest
from trace_maker import RankMaker, job

import simdp
from simdp.results.diagnosis import Finding
from simdp.studies.diagnose.help import with_remedies

pytestmark = pytest.mark.slow


def test_a_straggler_that_is_replaced_costs_nothing_more():
    found = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5))
    assert found.replayed_s == pytest.approx(0.311, rel=0.05)
    best = found.verdict[0].remedies[0]
    assert best.step_time_s == pytest.approx(0.111, rel=0.1)


def test_without_remedies_nothing_is_simulated():
    found = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), remedies=False)
    assert found.replayed_s is None
    assert not any(one.remedies for one in found.verdict)


def test_what_cannot_be_replayed_is_said():
    finding = Finding("launch_bound", 0.9, "Why.")
    helped = with_remedies([finding], [RankMaker().trace()], None)
    assert helped.verdict == (finding,)
    assert helped.replayed_s is None
    assert helped.remarks[0].startswith("No remedies were simulated: ")


def test_small_causes_are_left_alone():
    finding = Finding("launch_bound", 0.01, "Why.")
    assert with_remedies([finding], job([[0, 0.2]] * 3), None).verdict == (finding,)
