"""What a replay of two ranks' traces predicts of more, beside what simdp says of the job itself.

python -m benchmarks.replays [--models A,B] [--machines A,B] [--strategies A,B] [--by-rank]

A job of two ranks is played and its traces are written, read again, and replayed at 4 to 64 ranks.
Machines and strategies are all combined; compute takes 40 ms.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from benchmarks.table import Row, show
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.reports.chrome_trace import write
from simdp.scenario import checked
from simdp.studies.replay.scenario import replay_of
from simdp.studies.variants import timed_only
from simdp.traces import read_traces

SIZES = (4, 8, 16, 64)

WITHIN = 0.02

MODELS = ("resnet18", "bert-base", "vgg16")

MACHINES = ("dgx-a100", "dgx-h100", "hkbu-ib100", "hkbu-10gbe", "aws-p3dn", "aws-g4dn")

STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "ddp bf16": {"kind": "ddp", "comm_hook": "bf16"},
    "fsdp": "fsdp",
    "fsdp1": "fsdp1",
    "zero1": "zero1",
    "zero1 deepspeed": {"kind": "zero1", "communication": "deepspeed"},
    "zero2": "zero2",
    "zero3": "zero3",
}

Raw = dict[str, Any]


def job(machine: str, model: str, strategy: Any, ranks: int) -> Raw:
    """A job as plain data."""
    measured = {"kind": "measured", "points": [{"microbatch": 8, "step_time": "40 ms"}]}
    return {
        "cluster": {"machine": machine, "world_size": ranks},
        "workload": {"model": model, "microbatch": 8, "compute": measured, "steps": 3},
        "strategy": strategy,
    }


def step_time(raw: Raw) -> float:
    """Time of a steady step [s]."""
    result = simulate(timed_only(checked(raw, Path())))
    return float(result.metrics["step_time_s"])


def row(machine: str, model: str, name: str, folder: Path, by_rank: bool) -> Row:
    """Replay one job, and compare."""
    result = simulate(timed_only(checked(job(machine, model, STRATEGIES[name], 2), Path())))
    path = folder / "trace.json"
    if by_rank:
        path = folder / f"{machine}, {model}, {name}"
        result.save_traces(path)
    else:
        path.write_text(write(result))
    found = replay_of(read_traces(path), machine=machine)
    own = found.simulate().metrics["step_time_s"] / result.metrics["step_time_s"] - 1
    said, worst = [f"{own:+.1%}"], 0.0
    for n in SIZES:
        try:
            direct = step_time(job(machine, model, STRATEGIES[name], n))
        except ScenarioError:
            said.append("-")
            continue
        off = found.simulate({"cluster.world_size": n}).metrics["step_time_s"] / direct - 1
        worst = max(worst, abs(off))
        said.append(f"{off:+.1%}")
    kind = found.scenario["strategy"]["kind"]
    what = f"{machine}, {model}, {name}" + ("" if name.startswith(kind) else f" (as {kind})")
    return what, " ".join(said), f"{WITHIN:.0%}", worst <= WITHIN


def rows(models: list[str], machines: list[str], names: list[str], by_rank: bool) -> list[Row]:
    """All of them."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            row(machine, model, name, Path(folder), by_rank)
            for machine in machines
            for model in models
            for name in names
        ]


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--by-rank", action="store_true", help="traces by rank, not trace.json")
    given = parser.parse_args()
    asked = [text.split(",") for text in (given.models, given.machines, given.strategies)]
    title = f"Replayed from 2 ranks: own step, then {', '.join(map(str, SIZES))} ranks"
    sys.exit(show(title, rows(*asked, given.by_rank)))
