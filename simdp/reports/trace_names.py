"""Names of events in traces: torch's and NCCL's.

Compute kernels are named after their layer's kind and pass, since simdp models a kernel's costs,
not the library that provides it.
"""

from __future__ import annotations

import json
from typing import Any

from simdp.results.memory import CollectiveTraffic
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, CallSize, Trace

# Torch's operators of kinds of layers and losses with another name; batch_norm1d and the like lose
# their dimension, as in torch
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

# autograd nodes of kinds with another name
NODES = {
    "add": "AddBackward0",
    "attention": "ScaledDotProductFlashAttentionBackward0",
    "linear": "AddmmBackward0",
    "projection": "AddmmBackward0",
    "transposed_linear": "AddmmBackward0",
}

# torch classes of kinds that are not just capitalised
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

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose")


def operator(kind: str) -> str:
    """Name the operator of a kind of layer or loss: ``aten::linear``."""
    if "batch_norm" in kind:
        return "aten::batch_norm"
    return f"aten::{OPERATORS.get(kind, kind)}"


def node(kind: str) -> str:
    """Name the autograd node of a kind of layer or loss: ``AddmmBackward0``."""
    if kind in NODES:
        return NODES[kind]
    if any(mark in kind for mark in CONVOLUTIONS):
        return "ConvolutionBackward0"
    if "batch_norm" in kind:
        return "NativeBatchNormBackward0"
    words = OPERATORS.get(kind, kind).split("_")
    return f"{''.join(word.capitalize() for word in words)}Backward0"


def optimizer_step(kind: str) -> str:
    """Name the annotation of an optimizer's step: ``Optimizer.step#SGD.step``."""
    return f"Optimizer.step#{OPTIMIZERS.get(kind, kind.capitalize())}.step"


def next_batch(workers: int) -> str:
    """Name the annotation of taking a batch from a DataLoader with ``workers`` workers."""
    kind = "MultiProcessing" if workers else "SingleProcess"
    return f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"


# name in NCCL's kernels, and "Collective name"
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

# "dtype", bytes of an element, and NCCL's name
DTYPES = {
    "float64": ("Double", 8, "f64"),
    "float32": ("Float", 4, "f32"),
    "float16": ("Half", 2, "f16"),
    "bfloat16": ("BFloat16", 2, "bf16"),
}

BYTES = ("Byte", 1, "u8")  # for all other dtypes
# collectives that torch's process group annotates with another name
ANNOTATED = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
# algorithms with another name in NCCL; others are capitalised
ALGORITHMS = {"double_binary_tree": "TREE", "multi_ring": "RING"}
ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"


def sizes(call: CallSize, dtype: str) -> dict[str, Any]:
    """Make the fields of a collective; sizes are those of one rank's tensors."""
    dtype_name, itemsize, _ = _nccl_dtype(call, dtype)
    whole = int(call.nbytes / itemsize)
    part = whole // call.group_size
    given = part if call.collective == "all_gather" else whole
    got = part if call.collective == "reduce_scatter" else whole
    return {
        "Collective name": NAMES.get(call.collective, ("", call.collective))[1],
        "In msg nelems": given,
        "Out msg nelems": got,
        "Group size": call.group_size,
        "dtype": dtype_name,
    }


def annotated(call: CallSize) -> str:
    """Name the annotation of a collective by torch's process group: ``nccl:all_reduce``."""
    return f"nccl:{ANNOTATED.get(call.collective, call.collective)}"


def kernel(call: CallSize | None, sent: CollectiveTraffic) -> str:
    """Name the kernel of a collective as NCCL does since 2.19, or of a point-to-point message."""
    kind = NAMES.get(call.collective, ("SendRecv", ""))[0] if call is not None else "SendRecv"
    words = ["ncclDevKernel", kind]
    if call is None or kind == "SendRecv":
        return "_".join(words) + ARGUMENTS
    if "Reduce" in kind:
        words += ["Sum", _nccl_dtype(call, sent.dtype)[2]]
    words += [ALGORITHMS.get(sent.algorithm, sent.algorithm.upper()), sent.protocol.upper()]
    return "_".join(part for part in words if part) + ARGUMENTS


def _nccl_dtype(call: CallSize, dtype: str) -> tuple[str, int, str]:
    """Look up a dtype; bytes if unknown, or if the buffer is no whole number of elements."""
    nccl_dtype = DTYPES.get(dtype, BYTES)
    return BYTES if call.nbytes % nccl_dtype[1] else nccl_dtype


STREAM = 7  # number of the compute stream, as of torch's default stream; others follow

# of activities; all others are a ``kernel``
CATEGORIES = {
    "input": "user_annotation",
    "host": "user_annotation",
    "copy": "gpu_memcpy",
    "wait": "wait",
    "transfer": "transfer",
}


class Words:
    """Names and fields of a trace's spans, computed once for each kind of span."""

    def __init__(self, result: Result, trace: Trace) -> None:
        self._names = trace.names
        self._calls = {(b.step, b.name): b.call for b in trace.blocks if b.call is not None}
        self._dtype = _dtype(result.scenario)
        self._hook = _hook(result.scenario)
        self._known: dict[tuple[int, int, int], tuple[str, str]] = {}

    def of(self, step: int, activity: int, name: int) -> tuple[str, str]:
        """Return ``cat`` and ``name`` of a span as JSON, and its fields of ``args``."""
        key = step, activity, name
        if key not in self._known:
            call = self._calls.get((step, name))
            self._known[key] = self._made(step, ACTIVITIES[activity], self._names[name], call)
        return self._known[key]

    def _made(self, step: int, activity: str, name: str, call: CallSize | None) -> tuple[str, str]:
        category = CATEGORIES.get(activity, "kernel")
        args: dict[str, Any] = {"step": step + 1, "activity": activity}
        label = f"{activity} {name}" if name else activity
        if activity == "comm":
            label = f"ncclDevKernel_{_kernel(name, call)}"
            args |= self._of_call(name, call) if call is not None else {}
        elif activity == "wait":
            label = f"wait {name}" if name.startswith("for ") else "wait for the slowest"
        elif activity == "input":
            label = "Memcpy HtoD" if name == "copy" else "enumerate(DataLoader)#__next__"
            category = "gpu_memcpy" if name == "copy" else category
        elif activity == "copy":
            label = f"Memcpy DtoD {name}".strip()
        written = json.dumps(args)[1:-1]
        return f'"cat": "{category}", "name": {json.dumps(label)}', f", {written}"

    def _of_call(self, name: str, call: CallSize) -> dict[str, Any]:
        is_bucket = name.removeprefix(call.collective).startswith(" bucket")
        return {
            **sizes(call, self._hook if self._hook and is_bucket else self._dtype),
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
        }


def origin(result: Result) -> dict[str, Any]:
    """Return the scenario's name and seed, and its catalogue machine if it has one."""
    scenario = result.scenario
    machine = scenario["cluster"].get("machine")
    named = {"machine": machine} if isinstance(machine, str) else {}
    return {"scenario": scenario["name"], "seed": scenario["seed"], **named}


def device_name(result: Result, rank: int = 0) -> str:
    """Name the device of a rank as in the scenario; empty without one."""
    device = result.scenario["cluster"].get("device")
    device = device[rank] if isinstance(device, list) else device
    return str(device.get("name") or "device") if device else ""


def _kernel(name: str, call: CallSize | None) -> str:
    """Name a kernel by its collective and its payload: ``AllReduce bucket 0``."""
    if call is None:  # a message, or what goes to a parameter server and back
        return f"SendRecv {name}"
    kind = NAMES.get(call.collective, ("SendRecv", ""))[0]
    return f"{kind} {name.removeprefix(call.collective).strip()}".strip()


def _dtype(scenario: dict[str, Any]) -> str:
    """Return the dtype of transfers if neither hook nor policy changes it; else empty."""
    workload, strategy = scenario.get("workload") or {}, scenario.get("strategy") or {}
    hook = strategy.get("comm_hook") or {"kind": "none"}
    precision = workload.get("precision") or {"kind": "full"}
    plain = hook.get("kind") == "none" and precision.get("kind") in ("full", "amp")
    return str(workload.get("dtype", "")) if plain else ""


def _hook(scenario: dict[str, Any]) -> str:
    """Return the dtype of compressed gradients; empty unless NCCL has it."""
    hook = (scenario.get("strategy") or {}).get("comm_hook") or {}
    return {"fp16": "float16", "bf16": "bfloat16"}.get(str(hook.get("kind")), "")
