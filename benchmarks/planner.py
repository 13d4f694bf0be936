"""How long a plan takes over the whole catalogue, and how much of it is simulated.

    python -m benchmarks.planner [--model bert-large] [--workers 2]
    python -m benchmarks.planner --exhaustive 10

BERT-large and Llama 3 8B on every machine of the catalogue, 1 to 64 nodes, six strategies and eight
micro-batches; CPU seconds are of this process and of its workers together. With ``--exhaustive`` a
small model, on as many random subspaces of 500 points, of each of which all points are simulated as
well: the best five and the front must be the same.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simdp.cluster.hardware import MACHINES
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.files import format_yaml
from simdp.studies.executor import executor_for
from simdp.studies.plan import PlanRequest, plan
from simdp.studies.plan.request import PlanPoint, Space, machines_for
from simdp.studies.plan.search import NUM_BEST

MODELS = {"bert-large": 1024, "llama3-8b": 256}
"""With the samples of a step."""

CHOICES = {
    "cluster.machine": MACHINES.names(),
    "nodes": [1, 2, 4, 8, 16, 32, 64],
    "strategy": ["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"],
    "workload.microbatch": [1, 2, 4, 8, 16, 32, 64, 128],
}


def scenario(model: str, batch: int) -> dict[str, object]:
    """One of the two, on eight devices."""
    return {
        "name": model,
        "cluster": {"machine": "dgx-a100", "world_size": 8},
        "workload": {
            "model": model,
            "optimizer": "adamw",
            "attention": "flash",
            "precision": {"kind": "amp", "dtype": "bfloat16"},
            "microbatch": 1,
            "grad_accum": batch // 8,
        },
        "numerics": False,
        "target": {"samples": 1e7},
    }


SMALL = {
    "model": {"kind": "mlp", "widths": [4096, 8192, 8192, 4096]},
    "optimizer": "adamw",
    "microbatch": 16,
    "grad_accum": 8,
}
"""Two layers that are not small, so that networks count; 1,024 samples of a step on eight ranks."""


def subspace(seed: int) -> dict[str, list[Any]]:
    """Some 500 points; machines that somebody has a price for, so that money counts as well."""
    dealt = random.Random(seed)
    return {
        "cluster.machine": dealt.sample(machines_for("cheapest"), 5),
        "nodes": dealt.sample([1, 2, 4, 8, 16], 5),
        "strategy": dealt.sample([*CHOICES["strategy"], {"kind": "ddp", "comm_hook": "fp16"}], 4),
        "workload.microbatch": dealt.sample([4, 8, 16, 32, 64, 128], 5),
    }


def everything(path: Path, choices: dict[str, list[Any]]) -> list[tuple[float, float, float]]:
    """Time, money and memory of every point that can be, each simulated."""
    found = []
    space = Space(yaml.safe_load(path.read_text()), path.parent, choices, 1024)
    for point in space.points():
        if not isinstance(point, PlanPoint):
            continue
        try:
            scenario = space.scenario(point.settings)
        except ScenarioError:
            continue
        result = simulate(scenario, keep_trace=False)
        told = result.target or {}
        peak = float(max(result.metrics["peak_memory_bytes"]))
        found.append((told["time_s"]["mean"], told["cost_usd"]["mean"], peak))
    return found


def not_worse(rows: list[tuple[float, float, float]]) -> set[tuple[str, ...]]:
    """Those that none is better than in all three, but for rounding."""
    values = np.array(rows)
    kept = set()
    for row in values:
        no_worse = (values <= row * (1 + 1e-9)).all(axis=1)
        if not (no_worse & (values < row * (1 - 1e-9)).any(axis=1)).any():
            kept.add(tuple(f"{value:.6g}" for value in row))
    return kept


def exhaustive(count: int) -> None:
    """Print a row per subspace: what was simulated, and whether best and front are the same."""
    print("subspace  goal      points  can be  simulated  front  best the same  front the same")
    for seed in range(count):
        goal, place = (("fastest", 0), ("cheapest", 1))[seed % 2]
        choices = subspace(seed)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scenario.yaml"
            raw = {**scenario("small", 1024), "workload": {**SMALL, "steps": 2}}
            path.write_text(format_yaml(raw))
            found = plan(path, PlanRequest(goal, choices=choices))
            rows = everything(path, choices)
        best = sorted(row[place] for row in rows)[:NUM_BEST]
        mine = [(one.finish_s, one.cost_usd)[place] for one in found.best]
        front = {
            tuple(f"{value:.6g}" for value in (o.finish_s, o.cost_usd, o.peak_memory_bytes))
            for o in found.front
        }
        same = (bool(np.allclose(mine, best, rtol=1e-6, atol=0.0)), front == not_worse(rows))
        print(
            f"{seed:8d}  {goal:8s}  {found.num_points:6d}  {len(rows):6d}  "
            f"{found.num_simulated:9d}  {len(front):5d}  {same[0]!s:>13s}  {same[1]!s:>14s}",
            flush=True,
        )


def cpu() -> float:
    """CPU time of this process and of those that have ended [s]."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS], action="append")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--for", dest="goal", default="fastest")
    parser.add_argument("--exhaustive", type=int, metavar="SUBSPACES")
    given = parser.parse_args()
    if given.exhaustive:
        exhaustive(given.exhaustive)
        return
    print("model       points  simulated  front   wall s    CPU s  the others")
    for model in given.model or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scenario.yaml"
            path.write_text(format_yaml(scenario(model, MODELS[model])))
            began, spent = time.perf_counter(), cpu()
            with executor_for(given.workers) as executor:
                found = plan(path, PlanRequest(given.goal, choices=CHOICES), executor=executor)
            wall, used = time.perf_counter() - began, cpu() - spent
        others = ", ".join(f"{why} {count:,}" for why, count in found.pruned.items() if count)
        print(
            f"{model:11s} {found.num_points:6,} {found.num_simulated:10,} {len(found.front):6,} "
            f"{wall:8.1f} {used:8.1f}  {others}"
        )


if __name__ == "__main__":
    main()
