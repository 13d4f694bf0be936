"""Gradient buckets are found in traces and in DDP's logging data."""

from pathlib import Path

import pytest
from for_each import for_each
from trace_maker import RankMaker

from simdp.results.diagnosis import BucketRow
from simdp.studies.diagnose.buckets import (
    buckets_of,
    diagnose_logging,
    preset_buckets,
    rule_in_words,
)
from simdp.traces import DdpLogging
from simdp.traces.timeline import timeline

RESNET50 = [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
"""Torch 2.4's own, as a Kineto trace of ResNet-50 under DDP shows them."""

MILLION = 1_000_000


def line(steps, marked=True):
    maker = RankMaker(0, 2)
    for step, sizes in enumerate(steps):
        if marked:
            maker.step(step + 1, float(step), step + 1.0)
        maker.call("broadcast", step + 0.01, step + 0.02, 53_120)
        for i, elements in enumerate(sizes):
            maker.call("all_reduce", step + 0.1 * (i + 1), step + 0.1 * (i + 1) + 0.05, elements)
        maker.call("all_reduce", step + 0.95, step + 0.96, 1)  # of the loss, for a log
    return timeline(maker.trace(), 0)


def sizes(rows):
    return [row.num_elements for row in rows]


@for_each("marked", [True, False])
def test_the_usual_steps_buckets_are_found(marked):
    steps = [RESNET50] * 4 if not marked else [[sum(RESNET50)], *[RESNET50] * 3]
    found = buckets_of([line(steps, marked)]).rows
    assert sizes(found) == RESNET50
    assert {row.dtype for row in found} == {"float32"}


def test_buckets_of_a_model_of_the_catalogue_are_held_against_simdps_own():
    assert preset_buckets("resnet50") == RESNET50
    rows = [BucketRow(size, "float32") for size in RESNET50]
    assert rule_in_words(rows) == "as torch's rule makes them of resnet50 by default"


@for_each(
    ("elements", "words"),
    [
        ([MILLION, 7 * MILLION, 7 * MILLION, MILLION], "as torch's default limits make them"),
        ([3 * MILLION, 3 * MILLION, MILLION], "not by torch's default limits"),
        ([7 * MILLION, 7 * MILLION, MILLION], "as one limit for all makes them"),
        ([5 * MILLION], "one bucket"),
    ],
)
def test_other_buckets_are_held_against_the_limits(elements, words):
    assert words in rule_in_words([BucketRow(count, "float32") for count in elements])


def test_without_gradients_there_is_no_rule():
    assert rule_in_words([]) is None
    assert rule_in_words([BucketRow(4, "")]) is None
    assert buckets_of([line([[]])]) == ((), None)


def test_without_all_reduces_reduce_scatters_are_the_buckets():
    maker = RankMaker(0, 2)
    for step in range(2):
        maker.step(step + 1, float(step), step + 1.0)
        for i in range(3):
            maker.call("reduce_scatter", step + 0.1 * i + 0.1, step + 0.1 * i + 0.15, 500 + i)
    found = buckets_of([timeline(maker.trace(), 0)])
    assert (sizes(found.rows), found.rule) == ([500, 501, 502], None)


def logged(**more):
    made = {
        "path": Path("ddp.json"),
        "rank": 0,
        "world_size": 4,
        "backend": "nccl",
        "module": "ResNet",
        "iteration": 100,
        "forward_s": 0.03,
        "backward_s": 0.06,
        "backward_comm_s": 0.05,
        "overlap_s": 0.02,
        "bucket_nbytes": (8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160),
        "parameter_nbytes": 102_228_128,
        "num_parameters": 161,
        "dtypes": ("float32",),
        "fields": {},
    }
    return DdpLogging(**{**made, **more})


def test_times_and_buckets_are_told():
    found = diagnose_logging(logged())
    assert found.step_time_s == pytest.approx(0.12)
    assert (found.compute_s, found.exposed_comm_s) == (pytest.approx(0.09), pytest.approx(0.03))
    assert found.hidden_comm_s == pytest.approx(0.02)
    assert found.idle_s is None
    assert [one.cause for one in found.verdict] == ["exposed_communication", "compute_bound"]
    assert found.verdict[0].share == pytest.approx(0.25)
    assert found.bucket_rule == "as torch's rule makes them of resnet50 by default"
    assert found.buckets[0].num_elements == 2_049_000
    assert any("one rank alone" in remark for remark in found.remarks)


def test_hidden_communication_leaves_compute():
    found = diagnose_logging(logged(overlap_s=0.049))
    assert found.verdict[0].cause == "compute_bound"


def test_without_times_nothing_is_claimed():
    found = diagnose_logging(logged(forward_s=None, backward_s=None, backward_comm_s=None))
    assert found.step_time_s is None
    assert found.verdict == ()
    assert any("holds no times" in remark for remark in found.remarks)


def test_buckets_of_several_dtypes_are_not_guessed():
    assert diagnose_logging(logged(dtypes=("float32", "bfloat16"))).buckets == ()
