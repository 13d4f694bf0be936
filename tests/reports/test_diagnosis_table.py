"""The page of a diagnosis: twenty lines, with what matters first."""

from dataclasses import replace

import numpy as np
import pytest
from for_each import for_each
from trace_maker import RankMaker, job

import simdp
from simdp.reports.diagnosis_table import LINES, lines, page, replay_error
from simdp.reports.figures import WIDTH
from simdp.results.diagnosis import Diagnosis, Finding, MatchRow, Remedy


def told(traces, **more):
    return lines(simdp.diagnose(traces, remedies=False, **more), "traces")


def test_the_page_has_the_step_the_verdict_the_waits_and_the_collectives():
    shown = told(job([[0, 0.2, 0, 0]] * 5), machine="dgx-a100")
    text = "\n".join(shown)
    assert shown[0].startswith("traces: 4 ranks, step 311 ms (mean of 5;")
    assert "verdict: straggler 64.3 % (rank 1): rank 1 comes last" in text
    assert "ranks wait, a step" not in text
    assert "5 x all_reduce 4 MB RING LL: 10 ms + 150 ms" in text
    assert "machine: dgx-a100" in text
    assert "buckets: 1,000,000 float32" in text


def test_a_straggler_has_one_figure_and_others_name_their_definitions():
    """The same seconds in the verdict, the rows and the evidence; means over ranks are named so."""
    found = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), machine="dgx-a100", remedies=False)
    cost = found.verdict[0].seconds
    assert cost == pytest.approx(max(row.wait_s for row in found.waits))
    assert cost == pytest.approx(found.ranks[1].late_s)
    assert found.verdict[0].share == pytest.approx(cost / found.step_time_s)
    text = " ".join(" ".join(lines(found, "traces")).split())
    assert "the rank that waits longest waits 200 ms of a step's 311 ms (64.3 %)" in text
    assert "of what is not compute, mean over all ranks: waiting for ranks 150 ms" in text
    assert text.count("200 ms") == 1
    assert found.wait_s == pytest.approx(cost * 3 / 4)  # the late rank waits for nobody


def test_ranks_that_wait_are_listed_where_the_verdict_names_no_straggler():
    text = "\n".join(told(job([[0.2, 0.0], [0.0, 0.2]] * 4)))
    assert "verdict: imbalance" in text
    assert "ranks wait, a step: " in text


@for_each("num_ranks", [1, 2, 16])
def test_it_never_has_more_than_its_lines_nor_wider_ones(num_ranks):
    shown = told(job(np.random.default_rng(1).random((6, num_ranks))))
    assert len(shown) <= LINES
    assert max(map(len, shown)) <= WIDTH


def test_without_steps_it_says_so():
    maker = RankMaker()
    maker.kernel(0.0, 1.0)
    shown = told([maker.trace()])
    assert shown[0] == "traces: 1 rank, no steps"


def test_remedies_stand_below_the_verdict_with_their_gain():
    finding = Finding("launch_bound", 0.5, "Why.", remedies=(Remedy("CUDA graphs", 0.06),))
    made = Diagnosis("kineto", 0.1, 0.05, 0.0, 0.0, 0.05, 1, verdict=(finding,), replayed_s=0.12)
    shown = " ".join(lines(made))
    assert "helps: CUDA graphs: 60 ms instead of 120 ms (50.0 % less, simulated; base" in shown
    assert replay_error(made) == "; base 20.0 % above the trace"
    assert replay_error(replace(made, replayed_s=0.099)) == "; base 1.0 % below the trace"
    assert replay_error(replace(made, replayed_s=0.1)) == "; base as in the trace"
    assert replay_error(replace(made, source="reported")) == ""


def test_flight_records_show_what_ranks_disagree_on():
    rows = tuple(MatchRow("0", i, "all_reduce", "UNDECIDED", (1,), (1,), "") for i in range(7))
    found = Diagnosis("flight_record", None, None, None, None, None, 2, mismatches=rows)
    shown = lines(found, "dumps")
    assert "  all_reduce, 1 of group 0: UNDECIDED" in shown
    assert "  and 3 more" in shown


def test_ranks_that_agree_are_said_to():
    shown = lines(Diagnosis("flight_record", None, None, None, None, None, 2), "dumps")
    assert shown == [
        "dumps: 2 ranks",
        "verdict: ranks agree on all collectives that their dumps hold",
    ]


def test_the_page_can_be_rendered():
    assert "verdict" in str(page(simdp.diagnose(job([[0, 0.2]] * 3), remedies=False), "x"))
