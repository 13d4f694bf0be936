"""What the memory model says of our own arrays, against what a process really takes.

    python -m benchmarks.memory

Each run has a process of its own, which first runs a tiny scenario, so that all modules and threads
are there, and then gives free memory back to the system. Then the real one: by how much its
resident set grows at most, and the most that tracemalloc counts. Only Linux says the first.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

from benchmarks.table import Row, show
from simdp.engine.simulate import simulate
from simdp.scenario import checked
from simdp.scenario.root import Scenario
from simdp.strategies.memory import host_memory_needed

LIMITS = {"traced": 0.15, "resident": 0.15}
"""Part of what is taken by which the model may be wrong."""

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"
"""Makes the largest resident set the present one (Linux: proc_pid_clear_refs(5))."""

MLP = {
    "model": {"kind": "mlp", "widths": [512, 1024, 1024, 512]},
    "dataset": {"kind": "regression", "num_samples": 256},
    "microbatch": 16,
}
TRANSFORMER = {
    "model": {
        "kind": "transformer",
        "task": "language_model",
        "vocab_size": 2000,
        "d_model": 256,
        "nhead": 4,
        "num_layers": 4,
        "dim_feedforward": 1024,
    },
    "dataset": {"kind": "tokens", "num_samples": 64, "sequence_length": 64},
    "loss": "cross_entropy",
    "microbatch": 8,
}
RESNET = {
    "model": {"kind": "resnet18", "num_classes": 10, "image_size": 64},
    "dataset": {"kind": "images", "num_samples": 32},
    "loss": "cross_entropy",
    "microbatch": 4,
}
ADAM = {"optimizer": "adam"}
SPLIT = {"microbatch": None, "global_batch": 64}
BFLOAT16 = {"precision": {"kind": "amp", "dtype": "bfloat16"}}

CASES: dict[str, tuple[int, Any, dict[str, Any]]] = {
    "mlp, single": (1, "single", MLP | ADAM),
    "mlp": (4, "ddp", MLP),
    "mlp, Adam": (4, "ddp", MLP | ADAM),
    "mlp, large batches": (
        4,
        "ddp",
        MLP | {"dataset": {"kind": "regression", "num_samples": 8192}, "microbatch": 1024} | ADAM,
    ),
    "mlp, two micro-steps": (4, "ddp", MLP | {"grad_accum": 2}),
    "mlp, autocast": (4, "ddp", MLP | {"precision": "amp"}),
    "mlp, 16-bit weights": (4, "ddp", MLP | {"precision": "mixed"} | ADAM),
    "mlp, fp16 hook": (4, {"kind": "ddp", "comm_hook": "fp16"}, MLP),
    "mlp, horovod": (4, "horovod", MLP),
    "mlp, data_parallel": (4, "data_parallel", MLP | SPLIT),
    "mlp, parameter_server": (4, "parameter_server", MLP | ADAM),
    "mlp, parameter_server, autocast": (4, "parameter_server", MLP | BFLOAT16),
    "mlp, parameter_server alone": (1, "parameter_server", MLP),
    "mlp, inference": (4, "data_parallel", MLP | SPLIT | {"mode": "inference"}),
    "mlp, zero1": (4, "zero1", MLP | ADAM),
    "mlp, zero2": (4, "zero2", MLP | ADAM),
    "mlp, fsdp": (4, "fsdp", MLP | ADAM),
    "mlp, hsdp": (4, {"kind": "hsdp", "shard_size": 2}, MLP),
    "mlp, hsdp, Adam": (4, {"kind": "hsdp", "shard_size": 2}, MLP | ADAM),
    "mlp, fsdp, not resharded": (4, {"kind": "fsdp", "reshard_after_forward": False}, MLP),
    "mlp, zero2, two micro-steps": (4, "zero2", MLP | {"grad_accum": 2}),
    "mlp, fsdp, 16-bit weights": (4, "fsdp", MLP | {"precision": "mixed"} | ADAM),
    "transformer, zero1": (2, "zero1", TRANSFORMER | ADAM),
    "transformer, Adam": (2, "ddp", TRANSFORMER | ADAM),
    "transformer, fsdp": (2, "fsdp", TRANSFORMER | ADAM),
    "resnet18": (2, "ddp", RESNET),
}
"""World size, strategy and workload of each run; arrays dominate all of them."""

WARM_UP = (2, "ddp", MLP)


def scenario(name: str, **workload: Any) -> Scenario:
    """Make one of `CASES`, with other keys of the workload if they are given."""
    world_size, strategy, given = CASES.get(name, WARM_UP)
    cluster = {"world_size": world_size, "device": "a100-sxm4-80gb", "link": "nvlink3"}
    raw = {
        "name": "memory",
        "cluster": cluster,
        "workload": {**given, "steps": 3, **workload},
        "strategy": strategy,
    }
    return checked(raw, Path())


def needed(chosen: Scenario) -> float:
    """What the model says [bytes]."""
    num_samples = chosen.workload.dataset.length(chosen.base)
    n = chosen.cluster.world_size
    return host_memory_needed(chosen.workload, chosen.strategy, n, num_samples)


def traced(chosen: Scenario) -> int:
    """Run it, and return the most that was allocated at a time [bytes]."""
    tracemalloc.start()
    try:
        simulate(chosen)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident(chosen: Scenario) -> int:
    """Run it, and return by how much the largest resident set grew [bytes]."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text(CLEAR_PEAK)
    before = _status("VmRSS")
    simulate(chosen)
    return _status("VmHWM") - before


def _status(name: str) -> int:
    """A figure of this process [bytes]."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == f"{name}:")


def row(name: str, said: float, taken: float, how: str) -> Row:
    """Compare what was said with what was taken."""
    off, limit = said / taken - 1, LIMITS[how]
    figure = f"{said / 1e6:.0f} MB against {taken / 1e6:.0f} MB {how}, {off:+.1%}"
    return (name, figure, f"{limit:.0%}", abs(off) <= limit)


def _measured(name: str) -> tuple[int, int]:
    """Growth of the resident set, and what was traced, each in a process of its own."""
    found = []
    for how in ("resident", "traced"):
        command = [sys.executable, "-m", "benchmarks.memory", name, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(int(json.loads(done.stdout)))
    return found[0], found[1]


def main() -> int:
    if len(sys.argv) > 1:
        name, how = sys.argv[1:]
        tiny = {"model": {"kind": "mlp", "widths": [256, 512, 256]}}  # with threads, and their BLAS
        chosen = scenario(name)
        simulate(scenario("warm-up", **tiny))
        print((resident if how == "resident" else traced)(chosen))
        return 0
    rows = []
    for name in CASES:
        said = needed(scenario(name))
        grown, counted = _measured(name)
        rows += [row(name, said, grown, "resident"), row(name, said, counted, "traced")]
    return show(f"arrays of a run with numerics, {os.cpu_count()} cores", rows)


if __name__ == "__main__":
    raise SystemExit(main())
