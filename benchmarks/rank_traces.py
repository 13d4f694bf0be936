"""How long it takes to write a trace per rank, and in how much memory.

python -m benchmarks.rank_traces [RANKS]

Three steps of ResNet-50 under DDP on so many A100 (64).
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path
from time import process_time

import simdp
from benchmarks.table import Row, show
from simdp.scenario import checked

SECONDS_PER_RANK = 0.15
MEBIBYTES = 1_024


def scenario(ranks: int) -> simdp.Scenario:
    """The job."""
    raw = {
        "cluster": {"machine": "dgx-a100", "world_size": ranks},
        "workload": {"model": "resnet50", "microbatch": 32, "steps": 3},
        "numerics": False,
    }
    return checked(raw, Path())


def rows(ranks: int, folder: Path) -> list[Row]:
    """Write the traces, and say what that took."""
    result = simdp.simulate(scenario(ranks))
    assert result.trace is not None, "it was just simulated"
    begin, num_spans = process_time(), len(result.trace)
    made = process_time()
    paths = result.save_traces(folder)
    took = process_time() - made
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    size = sum(path.stat().st_size for path in paths) / 2**20
    return [
        (f"spans of {ranks} ranks: {num_spans:,}", f"{made - begin:.1f} s", "-", True),
        (
            f"{len(paths)} files, {size:.0f} MiB",
            f"{took:.1f} s",
            f"{SECONDS_PER_RANK * ranks:.0f} s",
            took <= SECONDS_PER_RANK * ranks,
        ),
        ("memory of the process", f"{used:.0f} MiB", f"{MEBIBYTES} MiB", used <= MEBIBYTES),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asked = int(sys.argv[1]) if len(sys.argv) > 1 else 64
        sys.exit(show("A trace per rank", rows(asked, Path(name))))
