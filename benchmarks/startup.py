"""How long the command line takes: its help, and the main job with all its files.

python -m benchmarks.startup
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.table import show

ROOT = Path(__file__).parents[1]
REPEATS = 5


def seconds(*arguments: str) -> float:
    """Median wall time of ``python -m simdp`` with some arguments [s]."""
    times = []
    for _ in range(REPEATS):
        begin = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "simdp", *arguments],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        times.append(perf_counter() - begin)
    return statistics.median(times)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        helps = seconds("--help")
        job = seconds("run", "scenarios/8gpu_ring.yaml", "--out", folder)
    return show(
        f"command line, wall time, median of {REPEATS}",
        [
            ("python -m simdp --help", f"{helps:.2f} s", "0.4 s", helps <= 0.4),
            ("run scenarios/8gpu_ring.yaml, all files", f"{job:.2f} s", "5 s", job <= 5),
        ],
    )


if __name__ == "__main__":
    raise SystemExit(main())
