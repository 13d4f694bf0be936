"""Every algorithm of every family, and the layouts of ranks that it can serve."""

import pytest
from for_each import for_each

from simdp.collectives import FAMILIES, Layout

ALGORITHMS = {
    f"{family} {kind}": member()
    for family, table in FAMILIES.items()
    for kind, member in table.items()
    if kind != "auto"  # has no plan of its own
    and not any(field.is_required() for field in member.model_fields.values())
} | {
    "all_reduce ring gloo": FAMILIES["all_reduce"]["ring"](chunking="gloo"),
    "all_reduce tree small chunks": FAMILIES["all_reduce"]["tree"](chunk_size="256 KiB"),
}
ROOTED = {"broadcast", "gather", "reduce", "scatter"}
MiB = 2**20

every_algorithm = for_each("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def layouts(algorithm, n):
    """Layouts of n ranks that an algorithm can serve: one node, several, and switches that add."""
    sizes = [m for m in range(n, 0, -1) if n % m == 0]
    found = [Layout(n, m) for m in sizes]
    found += [Layout(n, m, inside=(m,) * m + (-1,)) for m in sizes if m > 1]
    found += [Layout(n, m, across=(n,) * n + (-1,)) for m in sizes if m < n]
    return [layout for layout in found if algorithm.problem_with(layout) is None]


def some_plan(algorithm, n, nbytes=2 * MiB, root=0):
    """A plan on the first layout that will do; skips the test where there is none."""
    served = layouts(algorithm, n)
    if not served:
        pytest.skip(f"{algorithm.kind} serves no {n} ranks")
    return algorithm.plan(served[0], nbytes, root)
