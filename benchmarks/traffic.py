"""How long the payload takes beside a plain copy of as many bytes.

    python -m benchmarks.traffic

What an algorithm must move is counted in reads and writes: a chunk that is added is read at its
source and at its destination and written back, three times its bytes; a chunk that replaces is read
and written, twice its bytes. A plain copy reads and writes. So the time of `payload.run` is held
against that of ``np.copyto`` on half as many bytes as the algorithm reads and writes, between the
same buffers, in turns. CPU time; the median of the ratios counts. 25 MiB of float32 on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import process_time

import numpy as np
from numpy.typing import NDArray

from benchmarks.table import Row, show
from simdp.collectives import ALL_REDUCE, Layout, Plan
from simdp.engine import payload

Floats = NDArray[np.float32]

NUM_ELEMENTS = 25 * 2**20 // 4
LIMIT = 2.0
REPEATS = 5
CASES = (
    ("ring", 4, 4),
    ("ring", 8, 8),
    ("tree", 8, 8),
    ("halving_doubling", 8, 8),
    ("hierarchical", 8, 4),
)
"""Algorithm, ranks, and ranks per node."""


def copied_elements(plan: Plan) -> int:
    """Elements of a copy that reads and writes as much as the plan must."""
    sizes = np.diff(plan.offsets(NUM_ELEMENTS, 4))
    touched = sum(int((sizes[m.chunk] * np.where(m.reduce, 3, 2)).sum()) for m in plan.moves())
    return touched // 2


def copy(buffers: list[Floats], num_elements: int) -> None:
    """Copy as many elements, from one buffer to the next."""
    n, place = len(buffers), 0
    while num_elements > 0:
        size = min(num_elements, NUM_ELEMENTS)
        np.copyto(buffers[(place + 1) % n][:size], buffers[place % n][:size])
        num_elements, place = num_elements - size, place + 1


def row(kind: str, world_size: int, per_node: int) -> Row:
    plan = ALL_REDUCE[kind](kind=kind).plan(Layout(world_size, per_node), 4 * NUM_ELEMENTS)
    buffers = [np.ones(NUM_ELEMENTS, np.float32) for _ in range(world_size)]
    num_elements, ratios, speeds = copied_elements(plan), list[float](), list[float]()
    for _ in range(REPEATS):
        for buffer in buffers:
            buffer[:] = 1
        begin = process_time()
        payload.run(plan, buffers)
        between = process_time()
        copy(buffers, num_elements)
        ratios.append((between - begin) / (process_time() - between))
        speeds.append(8 * num_elements / (between - begin))
    ratio = median(ratios)
    figure = f"{ratio:.2f} of a copy's time, {median(speeds) / 1e9:.0f} GB/s"
    return f"payload: {kind}, {world_size}", figure, f"{LIMIT}", ratio <= LIMIT


def rows() -> Iterator[Row]:
    for case in CASES:
        yield row(*case)


def main() -> int:
    return show("payload against a plain copy, CPU time", list(rows()))


if __name__ == "__main__":
    raise SystemExit(main())
