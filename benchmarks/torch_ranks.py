"""Virtual ranks as threads, beside real processes on gloo and beside one process.

    python -m benchmarks.torch_ranks [--ranks 1 2 4 8] [--steps N] [--rounds N] [--samples N]

A step of a perceptron of ten million parameters with AdamW, 64 samples per rank:

* threads: ``simdp torchrun``, one rank at a time on one core, as by torchrun's default;
* threads, all cores: the same with ``OMP_NUM_THREADS`` set: each rank has all cores in its turn;
* processes: torch's own ``torchrun`` on gloo, one core each, which bounds from below what ranks as
  processes could take here, since they would also have to keep a common virtual clock;
* one process, same work: all forward passes, backward passes and updates of the ranks, on one core;
* one process, one update: the same samples as micro-batches.

Steps of several rounds, in which the ways take turns: the least wall time, since other work only
adds to it, and the median CPU time of all ranks. Starting is left out. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.table import Row, show

LIMIT = 1.2
"""Of the CPU time of threads over one process with the same work."""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

WARM = 2
"""Steps before those that are measured."""

SCRIPT = """
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

steps, samples, passes, updates, folder = *map(int, sys.argv[1:5]), sys.argv[5]
torch.manual_seed(0)


def build():
    widths = [512, 2048, 2048, 2048, 256]
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


rank = int(os.environ.get("RANK", 0))
device = "cpu"
models = [build() for _ in range(updates)]
if "RANK" in os.environ:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    models = [nn.parallel.DistributedDataParallel(model.to(device)) for model in models]
optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]
times = []
for step in range(steps + 1):
    now = os.times()  # of the host, also under simdp
    times.append((now.elapsed, now.user + now.system))
    if step == steps:
        break
    for model, optimizer in zip(models, optimizers):
        for _ in range(passes // updates):
            x = torch.randn(samples, 512, device=device)
            y = torch.randint(256, (samples,), device=device)
            cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
with open(os.path.join(folder, f"{rank}.json"), "w") as stream:
    json.dump(times, stream)
"""

THREADS, ALL_CORES, PROCESSES = "threads", "threads, all cores", "processes on gloo"
SAME, ACCUMULATED = "one process, same work", "one process, one update"
WAYS = (THREADS, ALL_CORES, PROCESSES, SAME, ACCUMULATED)


class Step(NamedTuple):
    """What a step took [s]."""

    wall: float
    cpu: float


def command(way: str, ranks: int) -> list[str]:
    """The command that starts the script."""
    if way in (THREADS, ALL_CORES):
        found = ["-m", "simdp", "torchrun", "--cluster", "dgx-a100", "--no-plots", "--quiet"]
    elif way == PROCESSES:
        found = ["-m", "torch.distributed.run", "--master-port", str(20000 + os.getpid() % 20000)]
    else:
        return [sys.executable, "train.py"]
    return [sys.executable, *found, "--nproc-per-node", str(ranks), "train.py"]


def steps_of(way: str, ranks: int, steps: int, samples: int) -> list[Step]:
    """Train, and return the steps after the first ones."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": str(CORES if way == ALL_CORES else 1)}
    environment["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    together = way in (THREADS, ALL_CORES, PROCESSES)
    passes = 1 if together else ranks
    updates = ranks if way == SAME else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        given = [str(one) for one in (steps + WARM, samples, passes, updates, folder)]
        done = subprocess.run(
            [*command(way, ranks), *given],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{way} failed:\n{done.stderr}")
        times = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    counted = times if way == PROCESSES else times[:1]  # all other ranks are in one process
    return [
        Step(
            times[0][step + 1][0] - times[0][step][0],
            sum(one[step + 1][1] - one[step][1] for one in counted),
        )
        for step in range(WARM, steps + WARM)
    ]


def measured(ranks: int, steps: int, samples: int, rounds: int) -> dict[str, Step]:
    """The step of each way: the least wall time, and the median CPU time."""
    found: dict[str, list[Step]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way] += steps_of(way, ranks, steps, samples)
    return {
        way: Step(min(one.wall for one in each), median(one.cpu for one in each))
        for way, each in found.items()
    }


def rows(ranks: Sequence[int], steps: int, samples: int, rounds: int) -> list[Row]:
    """What was measured."""
    found: list[Row] = []
    for count in ranks:
        each = measured(count, steps, samples, rounds)
        for way, step in each.items():
            figure = f"{1e3 * step.wall:.0f} ms wall, {1e3 * step.cpu:.0f} ms CPU"
            found.append((f"{count} ranks: {way}", figure, "", True))
        over = {way: each[THREADS].cpu / step.cpu for way, step in each.items()}
        wall = {way: each[THREADS].wall / step.wall for way, step in each.items()}
        for way in WAYS[1:]:
            target = f"<= {LIMIT} CPU" if way == SAME else ""
            figure = f"{wall[way]:.2f} wall, {over[way]:.2f} CPU"
            reached = way != SAME or over[way] <= LIMIT
            found.append((f"{count} ranks: threads over {way}", figure, target, reached))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--steps", type=int, default=8, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=64, help="of each rank")
    given = parser.parse_args()
    title = f"ranks as threads, {given.samples} samples each"
    return show(title, rows(given.ranks, given.steps, given.samples, given.rounds))


if __name__ == "__main__":
    raise SystemExit(main())
