"""Traces of ResNet-50 on an H200 (bf16, eager), next to step times without the profiler.

They are the project's own, of torch 2.11, without arrows and without the fields that are not read.
"""

from pathlib import Path

import pytest
import yaml

import simdp

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "golden" / "h200"
RECORD = ROOT / "records" / "h200-1gpu" / "resnet50" / "steps.yaml"

pytestmark = pytest.mark.slow


def measured(microbatch):
    """Median step without the profiler [s]."""
    steps = yaml.safe_load(RECORD.read_text())["models"]["resnet50"]["precisions"]["bf16"]["steps"]
    (step,) = [one for one in steps if one["microbatch"] == microbatch]
    return float(step["step_time"]["p50"].removesuffix(" ms")) / 1e3


def told(microbatch):
    found = simdp.diagnose(TRACES / f"resnet50_{microbatch}.json.gz", remedies=False)
    assert sum(one.share for one in found.verdict) == pytest.approx(1.0, abs=2e-3)
    return found


def test_8_images_are_bound_by_launches_of_which_the_profiler_causes_a_part():
    found = told(8)
    first = found.verdict[0]
    assert first.cause == "launch_bound"
    assert found.step_time_s > 1.5 * measured(8), "the profiler makes it longer"
    without = float(first.evidence.rpartition("without it takes about ")[2].split(" ms")[0])
    assert without * 1e-3 == pytest.approx(measured(8), rel=0.1)


def test_128_images_are_bound_by_compute_and_change_their_layout():
    found = told(128)
    first, copies, *_ = found.verdict
    assert (first.cause, copies.cause) == ("compute_bound", "copies")
    assert found.step_time_s == pytest.approx(measured(128), rel=0.03)
    assert "most of all batch_norm_backward_kernel" in first.evidence
    assert copies.share == pytest.approx(0.126, abs=0.01)
    assert "memory_format=torch.channels_last" in copies.evidence
