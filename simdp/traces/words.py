"""Words: what torch and NCCL, old and new, call collectives and types, as torch does now."""

from __future__ import annotations

import re
from typing import NamedTuple

COLLECTIVES = {
    "all_reduce": ("allreduce", "allreducecoalesced", "allreducesparse"),
    "all_gather": (
        "allgather",
        "allgatherbase",
        "allgathercoalesced",
        "allgatherintotensor",
        "allgatherintotensorcoalesced",
    ),
    "reduce_scatter": (
        "reducescatter",
        "reducescatterbase",
        "reducescattertensor",
        "reducescattertensorcoalesced",
        "reducescattercoalesced",
    ),
    "broadcast": ("broadcast", "broadcastoop", "broadcastuniqueid"),
    "reduce": ("reduce", "reduceoop"),
    "all_to_all": ("alltoall", "alltoallv", "alltoallbase", "alltoallsingle"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "send": ("send",),
    "recv": ("recv", "recvanysource"),
    "barrier": ("barrier", "allreducebarrier", "monitoredbarrier"),
    "send_recv": ("sendrecv", "coalesced", "batchisendirecv"),
}
"""By torch's names: all others, without underscores and in small letters."""

_NAMES = {other: name for name, others in COLLECTIVES.items() for other in others}

DTYPES = {
    "float64": ("double", "f64"),
    "float32": ("float", "f32"),
    "float16": ("half", "f16", "c10::half"),
    "bfloat16": ("bfloat16", "bf16", "c10::bfloat16"),
    "int64": ("long", "i64", "long int"),
    "int32": ("int", "i32"),
    "int16": ("short", "short int"),
    "int8": ("char", "i8", "signed char"),
    "uint8": ("byte", "u8", "unsigned char"),
    "uint32": ("u32", "unsigned int"),
    "uint64": ("u64", "unsigned long"),
    "bool": ("bool",),
    "complex64": ("complexfloat", "c10::complex<float>"),
    "complex128": ("complexdouble", "c10::complex<double>"),
    "float8_e4m3fn": ("float8_e4m3fn", "f8e4m3", "c10::float8_e4m3fn"),
    "float8_e5m2": ("float8_e5m2", "f8e5m2", "c10::float8_e5m2"),
}
"""By torch's names: what scalar types, C++ and NCCL's kernels call them, in small letters."""

_DTYPES = {other: name for name, others in DTYPES.items() for other in (name, *others)}

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
"""Collectives whose kernels are named after the type of what they add; others send bytes."""

_KERNEL = re.compile(
    r"^(?:nccl|rccl|msccl)\w*?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AlltoAll)(?![a-z])"
)
_WAYS = re.compile(
    r"_(RING|TREE|COLLNET|COLLNET_DIRECT|COLLNET_CHAIN|NVLS|NVLS_TREE|PAT)_(LL128|LL|SIMPLE)(?=_|\(|$)"
)
_TYPE = re.compile(
    r"_(?:Sum|Prod|Max|Min|MinMax|Avg|PreMulSum|SumPostDiv)_(\w+?)(?=_RING|_TREE|_COLLNET|_NVLS|_PAT|\(|$)"
)
_PREFIX = re.compile(r"^\w+::?")


def collective_name(written: str) -> str:
    """Name a collective as torch does, from any of its other names; ``""`` if it is none.

    ``allreduce``, ``nccl:all_reduce``, ``c10d::allreduce_``, ``_allgather_base`` and
    ``nccl:send 0->1`` are such names.
    """
    word = _PREFIX.sub("", written).split(" ")[0]
    return _NAMES.get(word.replace("_", "").lower(), "")


def dtype_name(written: object) -> str:
    """Name a type as torch does: ``Float``, ``c10::BFloat16`` and ``f32``; ``""`` if unknown."""
    return _DTYPES.get(str(written).lower().removeprefix("torch."), "")


class KernelName(NamedTuple):
    """What the name of a kernel of NCCL says; each is empty where it does not say it.

    Attributes
    ----------
    collective : str
        ``"all_reduce"``, ...; ``"send_recv"`` of messages and all_to_all.
    algorithm, protocol : str
        ``"RING"``, ``"TREE"``, ...; ``"LL"``, ``"LL128"``, ``"SIMPLE"``.
    dtype : str
        Of what is added.
    """

    collective: str
    algorithm: str
    protocol: str
    dtype: str


def kernel_name(name: str) -> KernelName:
    """Read the name of a kernel.

    ``ncclKernel_AllReduce_RING_LL_Sum_float(...)`` was the scheme up to NCCL 2.18, and then
    ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``.
    """
    kind, ways, of = _KERNEL.search(name), _WAYS.search(name), _TYPE.search(name)
    collective = collective_name(kind[1]) if kind else ""
    algorithm, protocol = (ways[1], ways[2]) if ways else ("", "")
    dtype = ""
    if of and collective in REDUCING:
        dtype = dtype_name(of[1].removeprefix("__nv_").removesuffix("_t"))
    return KernelName(collective, algorithm, protocol, dtype)


def is_communication(name: str) -> bool:
    """Tell by its name whether a kernel communicates: NCCL's, and AMD's RCCL's."""
    return name.startswith(("nccl", "rccl", "msccl"))
