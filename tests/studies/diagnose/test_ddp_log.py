"""DDP's logging data: what can be told from it alone."""

from pathlib import Path

import pytest

from simdp.studies.diagnose.ddp_log import diagnose_logging
from simdp.traces import DdpLogging


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
