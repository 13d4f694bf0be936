"""Where the time of a run with numerics goes, and how fast gradients move.

    python -m benchmarks.numerics

The share of NumPy's kernels: the main job is timed once as it is, and once with every matrix 16
times narrower and every block of elements 256 times smaller, so that Python does the same steps
while the kernels have next to nothing to do. What is left then is Python's share, together with
what NumPy needs per call; the rest of the full run was spent inside the kernels.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time

import numpy as np

import simdp
from benchmarks.table import show
from simdp.collectives.ring import RingAllReduce
from simdp.engine import payload
from simdp.scenario.root import Scenario
from simdp.workload.optimizers import base as optimizers

MAIN_JOB = Path(__file__).parents[1] / "scenarios" / "8gpu_ring.yaml"
NARROWER = 16
REPEATS = 3


def seconds(scenario: Scenario) -> float:
    """Least CPU time of simulate [s]."""
    times = []
    for _ in range(REPEATS):
        begin = process_time()
        simdp.simulate(scenario)
        times.append(process_time() - begin)
    return min(times)


def kernel_share() -> tuple[float, float]:
    """Share of simulate's time inside NumPy's kernels, and that time [s]."""
    full = simdp.load_scenario(MAIN_JOB)
    simdp.simulate(simdp.load_scenario(MAIN_JOB, {"workload.steps": 1}))  # import everything
    whole = seconds(full)
    widths = full.workload.model.model_dump()["widths"]
    narrow = simdp.load_scenario(
        MAIN_JOB,
        {
            "workload.model.widths": [max(width // NARROWER, 2) for width in widths],
            "workload.microbatch": 2,
            "strategy.bucket_cap": f"{2 * 2**20 // NARROWER**2} B",
        },
    )
    kept = optimizers.BLOCK, payload.CACHE_NBYTES, payload.MIN_BLOCK
    optimizers.BLOCK //= NARROWER**2
    payload.CACHE_NBYTES //= NARROWER**2
    payload.MIN_BLOCK //= NARROWER**2
    python = seconds(narrow)
    optimizers.BLOCK, payload.CACHE_NBYTES, payload.MIN_BLOCK = kept
    return 1 - python / whole, whole


def payload_speed(world_size: int, num_elements: int) -> tuple[float, float]:
    """Bytes per second that a ring all_reduce moves, and that np.copyto moves, side by side."""
    buffers = [np.ones(num_elements, np.float32) for _ in range(world_size)]
    plan = RingAllReduce().plan(world_size, buffers[0].nbytes)
    moved = plan.sends_per_rank.sum() * buffers[0].nbytes / plan.num_chunks
    copies = max(round(moved / buffers[0].nbytes), 1)
    ring, copy = [], []
    for _ in range(REPEATS + 1):
        begin = process_time()
        payload.run(plan, buffers)
        ring.append(moved / (process_time() - begin))
        for buffer in buffers:
            buffer[:] = 1
        begin = process_time()
        for number in range(copies):  # the same buffers, so that both work in the same caches
            np.copyto(buffers[(number + 1) % world_size], buffers[number % world_size])
        copy.append(copies * buffers[0].nbytes / (process_time() - begin))
    return max(ring), max(copy)


def main() -> int:
    share, whole = kernel_share()
    rows = [
        (
            f"main job: share of simulate's {whole:.2f} s inside NumPy's kernels",
            f"{100 * share:.0f} %",
            "80 %",
            share >= 0.8,
        )
    ]
    for world_size, num_elements in ((8, 1_000_000), (8, 16_000_000), (4, 4_000_000)):
        ring, copy = payload_speed(world_size, num_elements)
        rows.append(
            (
                f"payload of a ring, {world_size} ranks x {4 * num_elements / 1e6:.0f} MB",
                f"{ring / 1e9:.1f} GB/s, {ring / copy:.2f} of a copy's {copy / 1e9:.1f}",
                "0.5",
                ring >= 0.5 * copy,
            )
        )
    return show(f"numerics, CPU time, best of {REPEATS}", rows)


if __name__ == "__main__":
    raise SystemExit(main())
