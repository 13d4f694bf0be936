"""Peaks of each part of a step: short stacks of blocks tell the memory of any stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from for_each import for_each, for_some

from simdp.engine.phases import EDGE, MemoryLine, lines_by_phase
from simdp.engine.simulate import memory_needed
from simdp.scenario import checked
from simdp.scenario.root import Scenario

WHOLE = ["ddp", "fsdp", "hsdp"]
RECOMPUTE = ["none", "selective", "blocks"]


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


def test_a_line_says_what_each_sample_adds() -> None:
    line = MemoryLine.through(3.0, 5.0)
    assert [line.at(samples) for samples in (0, 1, 2, 10)] == [1.0, 3.0, 5.0, 21.0]
    assert (-line).at(10) == -21.0


@for_some("strategy", WHOLE, 2)
@for_each("recompute", RECOMPUTE)
@for_each("everywhere", [False, True])
def test_the_largest_peak_of_all_phases_is_the_peak_of_a_run(
    strategy: str, recompute: str, everywhere: bool
) -> None:
    lines = lines_by_phase(stack(strategy, recompute, 7, 3), everywhere)
    for samples in (1, 3, 8):
        exact = memory_needed(stack(strategy, recompute, 7, samples)).peak.max()
        assert max(line.at(samples) for line in lines.values()) == pytest.approx(exact, rel=1e-12)


@for_each("strategy", WHOLE)
@for_each("recompute", RECOMPUTE)
def test_two_short_stacks_tell_the_peak_of_a_long_one(strategy: str, recompute: str) -> None:
    depth, size = 11, 6
    low, high = 2 * EDGE, 2 * EDGE + 1
    a, b = (lines_by_phase(stack(strategy, recompute, depth, 1)) for depth in (low, high))
    further = depth - low
    told = max(a[p].at(size) + further * (b[p].at(size) - a[p].at(size)) for p in a if p in b)
    exact = memory_needed(stack(strategy, recompute, depth, size)).peak.max()
    assert told == pytest.approx(exact, rel=1e-9)
