"""How long rank programs take: many ranks, many collectives, on one core.

    python -m benchmarks.rank_programs

CPU time of everything in this process, the least of several runs; a program of 64 ranks hands the
baton on 64,000 times.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import numpy as np

import simdp.distributed as dist
from benchmarks.table import Row, show

REPEATS = 3
NUM_CALLS = 1_000
NUM_ELEMENTS = 1_024


def all_reduces(rank: int, backend: str) -> float:
    dist.init_process_group(backend)
    tensor = np.full(NUM_ELEMENTS, float(rank))
    for _ in range(NUM_CALLS):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return float(tensor[0])


def side_by_side(rank: int, backend: str) -> None:
    """Overlap two groups with compute, as a hierarchical program does."""
    dist.init_process_group(backend)
    inside = [dist.new_group(range(first, first + 8)) for first in range(0, 64, 8)][rank // 8]
    tensor = np.full(NUM_ELEMENTS, float(rank))
    for _ in range(NUM_CALLS // 10):
        work = dist.all_reduce(tensor, group=inside, async_op=True)
        dist.compute(seconds=1e-5)
        assert work is not None
        work.wait()
        dist.barrier()


def messages(rank: int, backend: str) -> None:
    dist.init_process_group(backend)
    tensor, other = np.zeros(NUM_ELEMENTS), np.zeros(NUM_ELEMENTS)
    for _ in range(NUM_CALLS // 10):
        works = dist.isend(tensor, (rank + 1) % 64), dist.irecv(other, (rank - 1) % 64)
        for work in works:
            assert work is not None
            work.wait()


def disturbed(rank: int, backend: str) -> None:
    """Send messages over the links of all_reduces, whose transfers must all be played then."""
    dist.init_process_group(backend)
    tensor, other = np.zeros(NUM_ELEMENTS), np.zeros(NUM_ELEMENTS)
    for _ in range(NUM_CALLS // 100):
        works = [dist.all_reduce(tensor, async_op=True)]
        works += dist.isend(tensor.copy(), (rank + 1) % 64), dist.irecv(other, (rank - 1) % 64)
        for work in works:
            assert work is not None
            work.wait()


def seconds(program: Callable[[int, str], object], backend: str) -> float:
    """CPU time of a program on 64 ranks, the least of several runs [s]."""
    times = []
    for _ in range(REPEATS):
        begin = process_time()
        dist.launch(program, 64, args=(backend,))
        times.append(process_time() - begin)
    return min(times)


def main() -> int:
    rows: list[Row] = []
    for what, program, backend, target in (
        (f"{NUM_CALLS:,} all_reduces, a formula's times", all_reduces, "nccl", 5.0),
        (f"{NUM_CALLS:,} all_reduces, over links", all_reduces, "gloo", 5.0),
        (f"{NUM_CALLS // 10} rounds of groups, compute, barrier", side_by_side, "nccl", 5.0),
        (f"{NUM_CALLS // 10} messages around a ring", messages, "nccl", 5.0),
        (f"{NUM_CALLS // 100} all_reduces, over links with messages", disturbed, "gloo", 5.0),
    ):
        took = seconds(program, backend)
        rows.append((what, f"{took:.2f} s", f"{target:g} s", took <= target))
    return show(f"rank programs of 64 ranks, CPU time, least of {REPEATS}", rows)


if __name__ == "__main__":
    raise SystemExit(main())
