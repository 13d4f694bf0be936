"""Backends: which algorithms and costs stand for the libraries that torch can use.

This table is the one place of registration.
"""

from __future__ import annotations

from simdp.collectives import Collectives

BACKENDS: dict[str, dict[str, object] | None] = {
    "gloo": {
        "all_gather": "ring",
        "all_reduce": {"kind": "ring", "chunking": "gloo"},
        "all_to_all": "pairwise",
        "broadcast": "binomial",
        "reduce": "ring",
        "reduce_scatter": "ring",
    },
    "mpi": {
        "all_gather": {"kind": "auto", "candidates": ["recursive_doubling", "ring"]},
        "all_reduce": {"kind": "auto", "candidates": ["recursive_doubling", "halving_doubling"]},
        "all_to_all": "pairwise",
        "broadcast": {"kind": "auto", "candidates": ["binomial", "halving_doubling"]},
        "reduce": {"kind": "auto", "candidates": ["binomial", "halving_doubling"]},
        "reduce_scatter": "halving_doubling",
    },
    "nccl": None,
}
"""What stands under ``collectives:`` for each backend; None is what the cluster brings, NCCL's
rings unless its scenario says otherwise. A collective that is not named is served as
`simdp.collectives.Collectives` has it.

gloo: its source, gloo/allreduce.cc (a ring over segments), gloo/broadcast.cc (binomial tree).
mpi: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005: short messages by recursive doubling and binomial trees, long ones by
halving and doubling; which is which, the clock decides for each size.
"""


def collectives_of(backend: str, own: Collectives) -> Collectives:
    """The algorithms and the cost of a backend on a cluster that brings its own."""
    chosen = BACKENDS[backend]
    return own if chosen is None else Collectives.model_validate(chosen)
