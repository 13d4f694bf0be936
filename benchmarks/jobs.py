"""What ensembles of jobs cost: 1,000 runs of 54 days on 16,384 GPUs.

    python -m benchmarks.jobs

Times are those of the processor, shared out to the processes that share the runs: what the wall
says on a machine that does nothing else. The exit status is 0 if every target was reached, else 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.table import Row, show
from simdp.engine import threads
from simdp.scenario import load_scenario
from simdp.studies.job import job

PATH = Path(__file__).parents[1] / "scenarios/llama3_54_days.yaml"
RUNS, LIMIT = 1000, 60.0


def rows(runs: int = RUNS) -> list[Row]:
    """Play the ensemble with as many workers as there are cores, two at most."""
    scenario, workers = load_scenario(PATH), min(2, threads.available())
    begin = sum(os.times()[:4])  # of children, too
    (found,) = job(scenario, runs=runs, workers=workers).points
    seconds = (sum(os.times()[:4]) - begin) / workers
    failures = found.num_failures * runs
    name = f"{runs:,} runs of 54 days on 16,384 GPUs, {workers} processes"
    return [
        (name, f"{seconds:.1f} s", f"{LIMIT:.0f} s", seconds <= LIMIT),
        ("a failure in them", f"{seconds * workers / failures * 1e6:.0f} us", "-", True),
        ("goodput", f"{found.goodput.mean:.1%}", "> 90 %", found.goodput.mean > 0.9),
    ]


if __name__ == "__main__":
    sys.exit(show("jobs", rows()))
