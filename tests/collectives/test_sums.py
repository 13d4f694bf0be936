"""Every algorithm moves real numbers as its collective promises, on any layout, in any slices."""

import numpy as np
import pytest
from every_plan import ALGORITHMS, ROOTED, every_algorithm, layouts
from for_each import for_each, for_some

from simdp.collectives import FAMILIES
from simdp.engine import payload


def check(plan, before, after):
    """What every rank holds, chunk by chunk, against sums and copies of what there was."""
    n, chunks = plan.world_size, plan.num_chunks
    offsets = plan.offsets(before.shape[1], before.itemsize)
    total, owner = before.sum(axis=0), np.arange(chunks) * n // chunks
    for rank in range(n):
        for c in range(chunks):
            piece = slice(offsets[c], offsets[c + 1])
            wanted = {
                "all_reduce": total,
                "barrier": total,
                "reduce_scatter": total if owner[c] == rank else None,
                "reduce": total if rank == plan.root else None,
                "broadcast": before[plan.root],
                "scatter": before[plan.root] if owner[c] == rank else None,
                "all_gather": before[owner[c]],
                "gather": before[owner[c]] if rank == plan.root else None,
            }[plan.collective]
            if wanted is not None:
                np.testing.assert_array_equal(after[rank][piece], wanted[piece])


@pytest.mark.slow
@for_some("n", [1, 2, 3, 4, 6, 8], 2, first=1)
@every_algorithm
def test_numbers_end_where_they_should(algorithm, n):
    if served := layouts(algorithm, n):
        for number in sorted({0, n % len(served)}):
            sliced = algorithm.model_copy(update={"slices": 1 + (n + number) % 3})
            root = n // 2 if algorithm.collective in ROOTED else 0
            plan = sliced.plan(served[number], 3e6, root)
            size = 2 * plan.num_chunks if plan.num_scratch else 3 * plan.num_chunks + n - 2
            before = np.random.default_rng(n).integers(-99, 99, (n, size)).astype(float)
            after = list(before.copy())
            payload.run(plan, after)
            if plan.collective == "all_to_all":
                pieces = before.reshape(n, n, -1)
                np.testing.assert_array_equal(after, pieces.swapaxes(0, 1).reshape(n, -1))
            else:
                check(plan, before, after)


@pytest.mark.slow
@for_some("slices", [1, 3], 2, first=1)
@for_each("kind", [a.kind for a in ALGORITHMS.values() if a.collective == "all_reduce"])
def test_all_ranks_hold_the_same_bits(kind, slices):
    algorithm = FAMILIES["all_reduce"][kind](slices=slices)
    for n in (2, 3, 4, 7, 8):
        for layout in layouts(algorithm, n)[:2]:
            before = np.random.default_rng(n).standard_normal((n, 101)).astype(np.float32)
            after = list(before.copy())
            payload.run(algorithm.plan(layout, before[0].nbytes), after)
            for buffer in after[1:]:
                assert buffer.tobytes() == after[0].tobytes()
            exact = before.astype(float).sum(axis=0)
            bound = (n - 1) * np.finfo(np.float32).eps * np.abs(before).sum(axis=0)
            assert (np.abs(after[0] - exact) <= bound).all()
