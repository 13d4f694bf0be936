"""Trace words: how torch's traces name what a span is, and the fields that they give it."""

from __future__ import annotations

import json
from typing import Any

from simdp.results.blocks import Call
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, Trace

STREAM = 7
"""Number of the compute stream, as torch's default stream has; others count from it."""

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
    "float64": ("Double", 8),
    "float32": ("Float", 4),
    "float16": ("Half", 2),
    "bfloat16": ("BFloat16", 2),
}

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
        self._dtype = DTYPES.get(_dtype(result.scenario), ("Byte", 1))
        self._known: dict[tuple[int, int, int], tuple[str, str]] = {}

    def of(self, step: int, activity: int, name: int) -> tuple[str, str]:
        """Give the fields ``cat`` and ``name`` of a span as JSON, and its own of ``args``."""
        key = step, activity, name
        if key not in self._known:
            call = self._calls.get((step, name))
            self._known[key] = self._made(step, ACTIVITIES[activity], self._names[name], call)
        return self._known[key]

    def _made(self, step: int, activity: str, name: str, call: Call | None) -> tuple[str, str]:
        category = CATEGORIES.get(activity, "kernel")
        args: dict[str, Any] = {"step": step + 1, "activity": activity}
        said = f"{activity} {name}" if name else activity
        if activity == "comm":
            said = f"ncclDevKernel_{_kernel(name, call)}"
            args |= self._of_call(call) if call is not None else {}
        elif activity == "wait":
            said = f"wait {name}" if name.startswith("for ") else "wait for the slowest"
        elif activity == "input":
            said = "Memcpy HtoD" if name == "copy" else "enumerate(DataLoader)#__next__"
            category = "gpu_memcpy" if name == "copy" else category
        elif activity == "copy":
            said = f"Memcpy DtoD {name}".strip()
        written = json.dumps(args)[1:-1]
        return f'"cat": "{category}", "name": {json.dumps(said)}', f", {written}"

    def _of_call(self, call: Call) -> dict[str, Any]:
        """Write the fields of a collective; sizes are those of one rank's tensors."""
        dtype, itemsize = self._dtype
        if call.nbytes % itemsize:
            dtype, itemsize = "Byte", 1
        whole = int(call.nbytes / itemsize)
        part = whole // call.group_size
        given = part if call.collective == "all_gather" else whole
        got = part if call.collective == "reduce_scatter" else whole
        return {
            "Collective name": NAMES.get(call.collective, ("", call.collective))[1],
            "In msg nelems": given,
            "Out msg nelems": got,
            "Group size": call.group_size,
            "dtype": dtype,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
        }


def _kernel(name: str, call: Call | None) -> str:
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
