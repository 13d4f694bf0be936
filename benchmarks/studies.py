"""What many points cost: a plain sweep, and a Dask cluster whose workers are killed.

    python -m benchmarks.studies [POINTS_OF_THE_SWEEP] [POINTS_ON_THE_CLUSTER]

The sweep's time is that of the processor, shared out to two processes: what the wall says on a
machine that does nothing else. The cluster, of two local processes of which one is killed every 10
seconds, needs distributed. The exit status is 0 if every target was reached, else 1.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.table import Row, show
from simdp.files import read_yaml
from simdp.results.result import Study
from simdp.scenario.loading import checked
from simdp.scenario.root import Scenario
from simdp.studies.store import Store
from simdp.studies.sweep import sweep

PATH = Path(__file__).parents[1] / "scenarios/scaling.yaml"
POINTS, LIMIT, ON_CLUSTER, KILLS_EVERY = 1000, 20.0, 10_000, 10.0
SIZES = [2, 4, 8, 16]


def made(num_points: int) -> Scenario:
    """A scenario of times alone, over world sizes, latencies and bandwidths."""
    raw = read_yaml(PATH)
    alphas = [f"{number} us" for number in range(1, 26)]
    each = max(1, num_points // (len(SIZES) * len(alphas)))
    bandwidths = [f"{10 + number} GB/s" for number in range(each)]
    raw |= {"name": "many", "numerics": False}
    raw["sweep"] = {
        "cluster.world_size": SIZES,
        "cluster.link.alpha": alphas,
        "cluster.link.bandwidth": bandwidths,
    }
    return checked(raw, PATH.parent)


def spent() -> float:
    """Seconds of the processor, of processes that have ended, too."""
    return sum(os.times()[:4])


def plain(num_points: int) -> list[Row]:
    """A sweep by two processes, from the scenario as plain data to its result."""
    cpu, wall = spent(), time.perf_counter()
    scenario = made(num_points)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        study = sweep(scenario, workers=2, store=store)
        text = study.to_json()
    cpu, wall = spent() - cpu, time.perf_counter() - wall
    number = len(study.points)
    limit = LIMIT * number / POINTS
    return [
        (f"{number:,} points, 2 processes", f"{cpu / 2:.1f} s", f"{limit:.0f} s", cpu / 2 <= limit),
        ("of the wall, here", f"{wall:.1f} s", "-", True),
        ("a point", f"{1e3 * cpu / number:.1f} ms", "-", True),
        ("result.json", f"{len(text) / 1e6:.1f} MB", "-", True),
    ]


def on_cluster(num_points: int) -> list[Row]:
    """The same on a Dask cluster whose workers are killed, held against a serial sweep."""
    from distributed import LocalCluster

    scenario = made(num_points)
    whole, stop, kills = sweep(scenario), threading.Event(), list[int]()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local,
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder)) as store,
    ):

        def kill() -> None:
            while not stop.wait(KILLS_EVERY):
                worker = list(local.workers.values())[len(kills) % 2]
                process = worker.process  # while it starts, its death would end the nanny, too
                if process is not None and process.status.name == "running":
                    os.kill(process.process.pid, signal.SIGKILL)
                    kills.append(process.process.pid)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        begin = time.perf_counter()
        study = sweep(scenario, scheduler=local.scheduler_address, store=store)
        wall = time.perf_counter() - begin
        stop.set()
        killer.join()
    return [
        (f"{len(whole.points):,} points on Dask, {len(kills)} kills", f"{wall:.0f} s", "-", True),
        *_equal(study, whole),
    ]


def _equal(study: Study, whole: Study) -> list[Row]:
    missing = len(whole.points) - len(study.points)
    same = study.to_json() == whole.to_json()
    return [
        ("points that are lost, or failed", str(missing), "0", missing == 0),
        ("the file is the serial one", "yes" if same else "no", "yes", same),
    ]


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:]]
    sizes = [*given, *(POINTS, ON_CLUSTER)[len(given) :]]
    sys.exit(show("studies", [*plain(sizes[0]), *(on_cluster(sizes[1]) if sizes[1] else [])]))
