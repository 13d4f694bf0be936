"""NCCL names: what torch and NCCL call a collective, its kernel, and the fields of both."""

from __future__ import annotations

from typing import Any

from simdp.results.blocks import Call
from simdp.results.launched import Sent

NAMES = {
    "all_reduce": ("AllReduce", "allreduce"),
    "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all_gather": ("AllGather", "_allgather_base"),
    "broadcast": ("Broadcast", "broadcast"),
    "reduce": ("Reduce", "reduce"),
    "all_to_all": ("SendRecv", "all_to_all"),
    "gather": ("SendRecv", "gather"),
    "scatter": ("SendRecv", "scatter"),
    "barrier": ("AllReduce", "barrier"),
}
"""Of collectives: what NCCL's kernels are called, and the "Collective name"."""

DTYPES = {
    "float64": ("Double", 8, "f64"),
    "float32": ("Float", 4, "f32"),
    "float16": ("Half", 2, "f16"),
    "bfloat16": ("BFloat16", 2, "bf16"),
}
"""Of dtypes: the "dtype", bytes of an element, and NCCL's own word."""

BYTES = ("Byte", 1, "u8")
"""The same of what is none of these."""

ANNOTATED = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
"""Collectives that torch's process group calls otherwise."""

ALGORITHMS = {"double_binary_tree": "TREE", "multi_ring": "RING"}
"""Algorithms that NCCL calls otherwise than simdp; others are in capitals what they are here."""

ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"


def sizes(call: Call, dtype: str) -> dict[str, Any]:
    """Write the fields of a collective; sizes are those of one rank's tensors."""
    said, itemsize, _ = _dtype(call, dtype)
    whole = int(call.nbytes / itemsize)
    part = whole // call.group_size
    given = part if call.collective == "all_gather" else whole
    got = part if call.collective == "reduce_scatter" else whole
    return {
        "Collective name": NAMES.get(call.collective, ("", call.collective))[1],
        "In msg nelems": given,
        "Out msg nelems": got,
        "Group size": call.group_size,
        "dtype": said,
    }


def annotated(call: Call) -> str:
    """Name what torch's process group annotates a collective with: ``nccl:all_reduce``."""
    return f"nccl:{ANNOTATED.get(call.collective, call.collective)}"


def kernel(call: Call | None, sent: Sent) -> str:
    """Name the kernel of a collective, as NCCL has done since 2.19; of a message without one."""
    kind = NAMES.get(call.collective, ("SendRecv", ""))[0] if call is not None else "SendRecv"
    said = ["ncclDevKernel", kind]
    if call is None or kind == "SendRecv":
        return "_".join(said) + ARGUMENTS
    if "Reduce" in kind:
        said += ["Sum", _dtype(call, sent.dtype)[2]]
    said += [ALGORITHMS.get(sent.algorithm, sent.algorithm.upper()), sent.protocol.upper()]
    return "_".join(part for part in said if part) + ARGUMENTS


def _dtype(call: Call, dtype: str) -> tuple[str, int, str]:
    """How a dtype is written; that of bytes where it is not known, or the buffer is no whole."""
    found = DTYPES.get(dtype, BYTES)
    return BYTES if call.nbytes % found[1] else found
