"""Peaks of each part of a step: short stacks of blocks tell the memory of any stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simdp.engine.phases import EDGE, peaks_by_phase
from simdp.engine.simulate import memory_needed
from simdp.scenario import Scenario, checked

WHOLE = ["ddp", "fsdp", "hsdp"]


def stack(strategy: str, recompute: str, depth: int, microbatch: int) -> Scenario:
    """A small GPT-2 on four ranks."""
    raw: dict[str, Any] = {
        "name": "stack",
        "cluster": {"machine": "dgx-h100", "world_size": 4},
        "workload": {
            "model": {
                "kind": "gpt2",
                "n_embd": 64,
                "n_head": 4,
                "n_layer": depth,
                "vocab_size": 500,
                "n_positions": 32,
            },
            "dataset": {"kind": "tokens", "num_samples": 400},
            "optimizer": "adamw",
            "microbatch": microbatch,
            "recompute": recompute,
            "steps": 2,
        },
        "strategy": strategy,
        "numerics": False,
    }
    return checked(raw, Path())


@pytest.mark.parametrize("strategy", WHOLE)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
def test_the_largest_peak_of_all_phases_is_the_peak_of_a_run(strategy: str, recompute: str) -> None:
    scenario = stack(strategy, recompute, 7, 3)
    peaks = peaks_by_phase(scenario)
    assert max(peaks.values()) == memory_needed(scenario).peak.max()


@pytest.mark.parametrize("strategy", WHOLE)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
def test_two_short_stacks_tell_the_peak_of_a_long_one(strategy: str, recompute: str) -> None:
    depth, size = 11, 6
    low, high = 2 * EDGE, 2 * EDGE + 1
    a, b, c, d = (
        peaks_by_phase(stack(strategy, recompute, *point))
        for point in ((low, 1), (high, 1), (low, 2), (high, 2))
    )
    x, y = depth - low, size - 1
    told = max(
        a[p] + x * (b[p] - a[p]) + y * (c[p] - a[p]) + x * y * (d[p] - b[p] - c[p] + a[p])
        for p in a
        if p in b and p in c and p in d
    )
    exact = memory_needed(stack(strategy, recompute, depth, size)).peak.max()
    assert told == pytest.approx(exact, rel=1e-9)
