"""What a whole run costs: ``python -m simdp run X.yaml --json --no-plots``, from start to end.

CPU seconds (user and system) and peak memory of the process, median of several runs. Byte code is
cached, as after a normal installation: every scenario runs once beforehand. The figures of other
simulators were measured on 2 cores of an AMD EPYC; on another machine only their order counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.layers import Layer, fifo_step, profile_scenario, write_layers
from benchmarks.table import Row

ROOT = Path(__file__).parents[1]
REPEATS = 3
EXACT = 1e-6
STARTER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as account:
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=account)
sys.exit(status)
"""


class Job(NamedTuple):
    """A scenario, and what it may cost.

    Attributes
    ----------
    what : str
        In words.
    raw : dict
        The scenario.
    seconds, megabytes : float or None
        Targets: CPU time [s] and peak memory [1e6 bytes].
    other : str
        What ASTRA-sim takes, analytical and congestion-unaware; ``""`` where it was not asked.
    answer : float or None
        The step by its closed form [s], where there is one.
    """

    what: str
    raw: Mapping[str, Any]
    seconds: float
    megabytes: float | None
    other: str
    answer: float | None


class Cost(NamedTuple):
    """CPU time [s], peak memory [1e6 bytes] and the step time that the run found [s]."""

    seconds: float
    megabytes: float
    step_time: float


def bert_large() -> dict[str, Any]:
    """DDP of bert-large on 2,048 nodes of 8, every rank at its own pace."""
    return {
        "cluster": {
            "world_size": 2048 * 8,
            "devices_per_node": 8,
            "device": "a100-sxm4-80gb",
            "topology": "switch",
            "link": "nvlink3",
            "inter_node": {"topology": "switch", "link": "ib-hdr", "links_per_node": 8},
            "stragglers": [{"kind": "lognormal", "sigma": 0.05}],
        },
        "workload": {
            "model": "bert-large",
            "dataset": {"kind": "tokens", "num_samples": 2 * 32 * 2048 * 8},
            "optimizer": "adamw",
            "microbatch": 32,
            "steps": 2,
        },
        "strategy": "ddp",
        "collectives": {"all_reduce": "hierarchical"},
        "numerics": False,
    }


def jobs(layers: Sequence[Layer], folder: Path) -> list[Job]:
    """Write the tables of the jobs into a folder, and list them."""
    one = [Layer(0.0, 0.0, 0.0, 25e6)]
    write_layers(folder / "one.csv", one)
    write_layers(folder / "layers.csv", layers)

    def ring(n: int, seconds: float, megabytes: float, other: str) -> Job:
        raw = profile_scenario("one.csv", n)
        return Job(f"run: ring, {n}", raw, seconds, megabytes, other, fifo_step(one, n))

    def step(n: int, seconds: float, other: str) -> Job:
        raw = profile_scenario("layers.csv", n)
        return Job(f"run: ResNet-50, {n}", raw, seconds, None, other, fifo_step(layers, n))

    return [
        ring(1024, 0.5, 120, "1.73 s, 353 MB"),
        ring(4096, 0.5, 120, "41.5 s, 5,450 MB"),
        ring(16384, 0.7, 150, ""),
        step(256, 0.6, "8.7 s"),
        step(4096, 1.5, ""),
        Job("run: bert-large, 2048 x 8", bert_large(), 5.0, 500, "", None),
    ]


def rows(layers: Sequence[Layer], folder: Path) -> Iterator[Row]:
    """Run everything."""
    for number, job in enumerate(jobs(layers, folder)):
        path = folder / f"job{number}.yaml"
        path.write_text(json.dumps(job.raw))
        yield row(job, [measured(path) for _ in range(REPEATS + 1)][1:])


def row(job: Job, costs: Sequence[Cost]) -> Row:
    seconds = median(cost.seconds for cost in costs)
    megabytes = median(cost.megabytes for cost in costs)
    figure = f"{seconds:.2f} s, {megabytes:.0f} MB"
    figure += f"; ASTRA-sim {job.other}" if job.other else ""
    target = f"{job.seconds} s" + (f", {job.megabytes:.0f} MB" if job.megabytes else "")
    reached = seconds <= job.seconds and (job.megabytes is None or megabytes <= job.megabytes)
    if job.answer is not None:
        reached = reached and abs(costs[0].step_time / job.answer - 1) <= EXACT
    return job.what, figure, target, reached


def measured(scenario: Path) -> Cost:
    """Run a scenario in a process of its own, started by a small one.

    Linux counts what the parent had in memory when it forked as the child's, so this process, which
    may be large, leaves both the start and the account of it to another.
    """
    command = [sys.executable, "-m", "simdp", "run", str(scenario), "--json", "--no-plots"]
    command += ["--out", str(scenario.with_suffix(""))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    account = scenario.with_suffix(".account")
    starter = [sys.executable, "-S", "-c", STARTER, str(account), *command]
    done = subprocess.run(starter, cwd=ROOT, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{scenario.name} failed: {done.stderr.decode()}")
    seconds, maxrss = map(float, account.read_text().split())
    step_time = json.loads(done.stdout)["points"][0]["metrics"]["step_time_s"]
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes there, KiB here
    return Cost(seconds, maxrss * unit / 1e6, step_time)
