"""Backends: which algorithms and costs stand for the libraries that torch can use.

This table is the one place of registration.
"""

from __future__ import annotations

from simdp.collectives import Collectives
from simdp.errors import ProgramError, unknown_name

BACKENDS: dict[str, dict[str, object] | None] = {
    "gloo": {
        "all_gather": "ring",
        "all_reduce": {"kind": "ring", "chunking": "gloo"},
        "all_to_all": "pairwise",
        "broadcast": "binomial",
        "reduce": "gloo",
        "reduce_scatter": "gloo",
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

gloo: its source, gloo/allreduce.cc (a ring over segments), gloo/reduce.cc, gloo/broadcast.cc
(binomial tree), and torch's ProcessGroupGloo.cpp.
mpi: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005: short messages by recursive doubling and binomial trees, long ones by
halving and doubling; which is which, the clock decides for each size.
"""


REDUCES_PIECES = ("gloo",)
"""Whose ``reduce_scatter`` of a list is a reduce for each of its tensors; others join them. So
torch does: the bits of real processes tell (``tests/golden/real_gloo.json``)."""

NO_BITS = ("nccl",)
"""Which refuse ``ReduceOp.BAND``, ``BOR`` and ``BXOR``."""


def collectives_of(backend: str, own: Collectives) -> Collectives:
    """The algorithms and the cost of a backend on a cluster that brings its own."""
    chosen = BACKENDS[backend]
    return own if chosen is None else Collectives.model_validate(chosen)


def chosen_backend(asked: object, default: str, call: str) -> str:
    """The backend that a program asks for, in any of torch's spellings.

    Raises
    ------
    ProgramError
        If there is no such backend.
    """
    if asked is None:
        return default
    if not isinstance(asked, str):
        raise ProgramError(f"{call}: backend is {asked!r}; give one of {', '.join(BACKENDS)}.")
    pairs = [pair.partition(":") for pair in asked.lower().split(",")]
    devices = [device for device, _, _ in pairs]
    if ":" not in asked:
        names = {"cuda": asked.lower()}
    elif all(name for _, _, name in pairs) and len(set(devices)) == len(pairs):
        names = {device: name for device, _, name in pairs}
    else:
        raise ProgramError(
            f"{call}: backend {asked!r} must name one for each device, as 'cpu:gloo,cuda:nccl'."
        )
    for name in names.values():
        if name not in BACKENDS:
            raise ProgramError(unknown_name("backend", name, sorted(BACKENDS)))
    return names.get("cuda", next(iter(names.values())))


def is_available() -> bool:
    """Tell whether there are programs of ranks: always."""
    return True


def is_backend_available(backend: str) -> bool:
    """Tell whether there is a backend."""
    return backend.lower() in BACKENDS


def is_gloo_available() -> bool:
    """Tell whether there is the backend gloo: always."""
    return is_backend_available("gloo")


def is_mpi_available() -> bool:
    """Tell whether there is the backend mpi: always."""
    return is_backend_available("mpi")


def is_nccl_available() -> bool:
    """Tell whether there is the backend nccl: always."""
    return is_backend_available("nccl")
