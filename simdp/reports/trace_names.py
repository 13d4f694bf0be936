"""Names of events in traces: torch's and NCCL's.

Kernels have no names of their own here, since simdp knows what a kernel asks of a device, not which
library serves it: one is called after its layer's kind and pass.
"""

from __future__ import annotations

import json
from typing import Any

from simdp.results.memory import CollectiveTraffic
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, CallSize, Trace

# Torch names --------------------------------------------------------------------------------------

OPERATORS = {
    "attention": "scaled_dot_product_attention",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "cross_entropy": "cross_entropy_loss",
    "gelu_tanh": "gelu",
    "huber": "huber_loss",
    "kl_div": "kl_div",
    "l1": "l1_loss",
    "mse": "mse_loss",
    "nll": "nll_loss",
    "projection": "linear",
    "smooth_l1": "smooth_l1_loss",
    "transposed_linear": "linear",
}
"""Of kinds of layers and losses that torch's operators are not called after; batch_norm1d and the
like lose their dimension, as in torch."""

NODES = {
    "add": "AddBackward0",
    "attention": "ScaledDotProductFlashAttentionBackward0",
    "linear": "AddmmBackward0",
    "projection": "AddmmBackward0",
    "transposed_linear": "AddmmBackward0",
}
"""Of kinds that autograd's nodes are not called after."""

OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "asgd": "ASGD",
    "lamb": "LAMB",
    "lars": "LARS",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}
"""Of kinds whose class is not the kind with a capital."""

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose")


def operator(kind: str) -> str:
    """Name the operator of a kind of layer, or loss: ``aten::linear``."""
    if "batch_norm" in kind:
        return "aten::batch_norm"
    return f"aten::{OPERATORS.get(kind, kind)}"


def node(kind: str) -> str:
    """Name autograd's node behind a kind of layer, or loss: ``AddmmBackward0``."""
    if kind in NODES:
        return NODES[kind]
    if any(said in kind for said in CONVOLUTIONS):
        return "ConvolutionBackward0"
    if "batch_norm" in kind:
        return "NativeBatchNormBackward0"
    words = OPERATORS.get(kind, kind).split("_")
    return f"{''.join(word.capitalize() for word in words)}Backward0"


def optimizer_step(kind: str) -> str:
    """Name the annotation of an optimizer's step: ``Optimizer.step#SGD.step``."""
    return f"Optimizer.step#{OPTIMIZERS.get(kind, kind.capitalize())}.step"


def next_batch(workers: int) -> str:
    """Name the annotation of taking a batch from a DataLoader with so many workers."""
    kind = "MultiProcessing" if workers else "SingleProcess"
    return f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"


# Nccl names ---------------------------------------------------------------------------------------

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


def sizes(call: CallSize, dtype: str) -> dict[str, Any]:
    """Write the fields of a collective; sizes are those of one rank's tensors."""
    said, itemsize, _ = _nccl_dtype(call, dtype)
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


def annotated(call: CallSize) -> str:
    """Name what torch's process group annotates a collective with: ``nccl:all_reduce``."""
    return f"nccl:{ANNOTATED.get(call.collective, call.collective)}"


def kernel(call: CallSize | None, sent: CollectiveTraffic) -> str:
    """Name the kernel of a collective, as NCCL has done since 2.19; of a message without one."""
    kind = NAMES.get(call.collective, ("SendRecv", ""))[0] if call is not None else "SendRecv"
    said = ["ncclDevKernel", kind]
    if call is None or kind == "SendRecv":
        return "_".join(said) + ARGUMENTS
    if "Reduce" in kind:
        said += ["Sum", _nccl_dtype(call, sent.dtype)[2]]
    said += [ALGORITHMS.get(sent.algorithm, sent.algorithm.upper()), sent.protocol.upper()]
    return "_".join(part for part in said if part) + ARGUMENTS


def _nccl_dtype(call: CallSize, dtype: str) -> tuple[str, int, str]:
    """How a dtype is written; that of bytes where it is not known, or the buffer is no whole."""
    found = DTYPES.get(dtype, BYTES)
    return BYTES if call.nbytes % found[1] else found


# Trace words --------------------------------------------------------------------------------------

STREAM = 7
"""Number of the compute stream, as torch's default stream has; others count from it."""

CATEGORIES = {
    "input": "user_annotation",
    "host": "user_annotation",
    "copy": "gpu_memcpy",
    "wait": "wait",
    "transfer": "transfer",
}
"""Of activities; every other one is a ``kernel``."""


class Words:
    """Names and fields of the spans of a trace, worked out once for each kind of span.

    Parameters
    ----------
    result : Result
        Whose trace it is.
    trace : Trace
        The part of it that is shown.
    """

    def __init__(self, result: Result, trace: Trace) -> None:
        self._names = trace.names
        self._calls = {(b.step, b.name): b.call for b in trace.blocks if b.call is not None}
        self._dtype = _dtype(result.scenario)
        self._hook = _hook(result.scenario)
        self._known: dict[tuple[int, int, int], tuple[str, str]] = {}

    def of(self, step: int, activity: int, name: int) -> tuple[str, str]:
        """Give the fields ``cat`` and ``name`` of a span as JSON, and its own of ``args``."""
        key = step, activity, name
        if key not in self._known:
            call = self._calls.get((step, name))
            self._known[key] = self._made(step, ACTIVITIES[activity], self._names[name], call)
        return self._known[key]

    def _made(self, step: int, activity: str, name: str, call: CallSize | None) -> tuple[str, str]:
        category = CATEGORIES.get(activity, "kernel")
        args: dict[str, Any] = {"step": step + 1, "activity": activity}
        said = f"{activity} {name}" if name else activity
        if activity == "comm":
            said = f"ncclDevKernel_{_kernel(name, call)}"
            args |= self._of_call(name, call) if call is not None else {}
        elif activity == "wait":
            said = f"wait {name}" if name.startswith("for ") else "wait for the slowest"
        elif activity == "input":
            said = "Memcpy HtoD" if name == "copy" else "enumerate(DataLoader)#__next__"
            category = "gpu_memcpy" if name == "copy" else category
        elif activity == "copy":
            said = f"Memcpy DtoD {name}".strip()
        written = json.dumps(args)[1:-1]
        return f'"cat": "{category}", "name": {json.dumps(said)}', f", {written}"

    def _of_call(self, name: str, call: CallSize) -> dict[str, Any]:
        is_bucket = name.removeprefix(call.collective).startswith(" bucket")
        return {
            **sizes(call, self._hook if self._hook and is_bucket else self._dtype),
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
        }


def machine_name(result: Result) -> dict[str, str]:
    """Say which machine of the catalogue a run used; nothing where it used none."""
    name = result.scenario["cluster"].get("machine")
    return {"machine": name} if isinstance(name, str) else {}


def device_name(result: Result, rank: int = 0) -> str:
    """Name the device of a rank as the scenario does; empty where it does not."""
    device = result.scenario["cluster"].get("device")
    device = device[rank if rank < len(device) else 0] if isinstance(device, list) else device
    return str(device.get("name") or "device") if isinstance(device, dict) else str(device or "")


def _kernel(name: str, call: CallSize | None) -> str:
    """Name a kernel after its collective, and behind it what is sent: ``AllReduce bucket 0``."""
    if call is None:  # a message, or what goes to a parameter server and back
        return f"SendRecv {name}"
    kind = NAMES.get(call.collective, ("SendRecv", ""))[0]
    return f"{kind} {name.removeprefix(call.collective).strip()}".strip()


def _dtype(scenario: dict[str, Any]) -> str:
    """The type of what travels, where no hook and no policy makes it another one; else empty."""
    workload, strategy = scenario.get("workload") or {}, scenario.get("strategy") or {}
    hook = strategy.get("comm_hook") or {"kind": "none"}
    precision = workload.get("precision") or {"kind": "full"}
    plain = hook.get("kind") == "none" and precision.get("kind") in ("full", "amp")
    return str(workload.get("dtype", "")) if plain else ""


def _hook(scenario: dict[str, Any]) -> str:
    """The type that a hook makes of gradients; empty where it makes none of NCCL's."""
    hook = (scenario.get("strategy") or {}).get("comm_hook") or {}
    return {"fp16": "float16", "bf16": "bfloat16"}.get(str(hook.get("kind")), "")
