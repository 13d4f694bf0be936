"""Trace words: how torch's traces name what a span is, and the fields that they give it."""

from __future__ import annotations

import json
from typing import Any

from simdp.reports.nccl_names import NAMES, sizes
from simdp.results.blocks import Call
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, Trace

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

    def _made(self, step: int, activity: str, name: str, call: Call | None) -> tuple[str, str]:
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

    def _of_call(self, name: str, call: Call) -> dict[str, Any]:
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


def _hook(scenario: dict[str, Any]) -> str:
    """The type that a hook makes of gradients; empty where it makes none of NCCL's."""
    hook = (scenario.get("strategy") or {}).get("comm_hook") or {}
    return {"fp16": "float16", "bf16": "bfloat16"}.get(str(hook.get("kind")), "")
