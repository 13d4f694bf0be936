"""How far steps of many GPUs are off that are predicted from the first row of a series, one GPU.

python -m benchmarks.extrapolate [SERIES ...]

The series of ``scenarios/validation`` that have a measured step of one GPU (torchtitan's begins at
8): compute is that step's. ``without``: the machine is left out, its links have the constants of
other sites' machines; all rows of more GPUs count. ``entry``: by the machine's own entry of the
catalogue, which was fitted to the rows with role calibration; the others count. These are the
points of ``python -m simdp extrapolate`` on the recording's machine, with the times of a run.
Targets are of the mean error without the machine.

Last, other devices: the samples per second of one GPU of each Lambda box, scaled from every other.
BERT in float32 is left out: its rows used TF32, which measured steps do not tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from simdp.results.validation import HeldOutPoint, StepComparison
from simdp.scenario import load_scenario
from simdp.studies.executor import executor_for
from simdp.studies.extrapolate import (
    ExtrapolationRequest,
    extrapolate,
    recording_of_scenario,
)
from simdp.studies.validate.folds import items_of
from simdp.studies.validate.jobs import load_valid
from simdp.studies.validate.leave_out import leave_out

FOLDER = Path(__file__).parents[1] / "scenarios" / "validation"

SERIES = (
    *("pytorch-ddp-2026", "marenostrum", "torch-ddp", "nvidia", "torchtitan", "lambda", "dlperf"),
    "hkbu",
)

FIRST = {"torchtitan": 8}
"""GPUs of the first row, where it is not one."""

KINDS = {
    **{"nvlink": "NVLink", "rdma": "RDMA", "roce": "RDMA", "libfabric": "RDMA"},
    **{"pcie": "PCIe", "host": "PCIe", "staged": "TCP", "tcp": "TCP"},
}
"""Kinds of network of a point's slowest link, by its class."""

TARGETS = {"NVLink": 0.05, "RDMA": 0.05, "PCIe": 0.10, "TCP": 0.10}

HEADS = ("", "points", "GPUs", "without", "worst", "inside 90 %", "entry", "points", "target")


class Prediction(NamedTuple):
    """A predicted step of more GPUs than the recording."""

    series: str
    scenario: str
    gpus: int
    kind: str
    error: float  # simulated over measured, less one, without the machine
    inside: bool  # whether the measured time is in the 90 % interval
    entry: float | None  # the error by the machine's own entry; None where that was fitted to it


def predictions(series: str) -> list[Prediction]:
    """Predict the rows of a series from its first."""
    folder = [FOLDER / series]
    found = leave_out(folder, "cluster")
    roles = {
        (Path(item.file).stem, repr(item.point.set)): item.point.role
        for item in items_of(load_valid(folder).scenarios)
        if not item.is_table
    }
    rows = [
        (point, held, roles[point.scenario, repr(point.set)] == "calibration")
        for point, held in zip(found.whole.points, found.of_points, strict=True)
    ]
    first = FIRST.get(series, 1)
    recorded = {point.scenario for point, _, fitted in rows if point.world_size == first and fitted}
    return [
        _prediction(series, point, held, fitted)
        for point, held, fitted in rows
        if point.scenario in recorded and point.world_size > first and held.counts
    ]


def _prediction(series: str, point: StepComparison, held: HeldOutPoint, fitted: bool) -> Prediction:
    entry = None if fitted else held.fitted / point.measured - 1
    name, kind = Path(point.scenario).stem, KINDS[point.joined]
    return Prediction(series, name, point.world_size, kind, point.error, point.is_inside, entry)


def mean_error(errors: Iterable[float | None]) -> float | None:
    """Mean absolute error; None without any."""
    given = [abs(one) for one in errors if one is not None]
    return float(np.mean(given)) if given else None


def row(name: str, points: Sequence[Prediction], target: float | None) -> list[str]:
    """Write the errors of some points."""
    error = mean_error(one.error for one in points) or 0.0
    worst = max(points, key=lambda one: abs(one.error))
    entry = mean_error(one.entry for one in points)
    reached = "" if target is None else f"{target:.0%}{'' if error <= target else ' NO'}"
    return [
        name,
        str(len(points)),
        f"{min(one.gpus for one in points)}-{max(one.gpus for one in points)}",
        f"{error:.1%}",
        f"{worst.error:+.1%}",
        f"{np.mean([one.inside for one in points]):.0%}",
        "-" if entry is None else f"{entry:.1%}",
        str(sum(one.entry is not None for one in points)),
        reached,
    ]


def table(
    title: str, points: Sequence[Prediction], key: Callable[[Prediction], str]
) -> tuple[Table, int]:
    """Draw a row for each group of points, and count the missed targets."""
    drawn = Table(*HEADS, title=title, box=None, title_justify="left")
    missed = 0
    for name in dict.fromkeys(key(one) for one in points):
        group = [one for one in points if key(one) == name]
        kinds = {one.kind for one in group}
        target = TARGETS[kinds.pop()] if len(kinds) == 1 else None
        cells = row(name, group, target)
        missed += cells[-1].endswith("NO")
        drawn.add_row(*cells)
    return drawn, missed


class OneGpu(NamedTuple):
    """A measured step of one GPU."""

    path: Path
    machine: str
    settings: dict[str, Any]  # of the scenario
    alike: str  # settings that both of a pair must have
    samples_per_s: float


def single_gpus(pattern: str) -> list[OneGpu]:
    """Measured steps of one GPU of the scenarios of one model, the first of each precision."""
    found: dict[tuple[Path, str], OneGpu] = {}
    for path in sorted((FOLDER / "lambda").glob(pattern)):
        scenario = load_scenario(path)
        assert scenario.measured is not None
        for point in scenario.measured.points:
            chosen = {k: v for k, v in point.set.items() if k != "strategy"}
            if chosen.get("cluster.world_size") != 1 or point.throughput is None:
                continue
            rest = {k: v for k, v in chosen.items() if not any(word in k for word in OWN)}
            if "bert" in pattern and "workload.precision" not in rest:
                continue
            machine = str(scenario.cluster.machine)
            one = OneGpu(path, machine, chosen, repr(rest), point.throughput)
            found.setdefault((path, one.alike), one)
    return list(found.values())


OWN = ("microbatch", "compute.points")
"""Words in keys that differ between devices."""


def scaled(pattern: str) -> list[tuple[float, bool]]:
    """Predict each box of a model from every other: errors of samples per second, and if inside."""
    singles, found = single_gpus(pattern), []
    with executor_for(1, None) as executor:
        for one in singles:
            others = [o for o in singles if o.alike == one.alike and o.machine != one.machine]
            if not others:
                continue
            recording = recording_of_scenario(one.path, one.settings)
            request = ExtrapolationRequest([1], [other.machine for other in others], ["single"])
            points = extrapolate(recording, request, executor=executor).found.points
            for point, other in zip(points, others, strict=True):
                if not (point.throughput_samples_per_s and point.step_time_s):
                    continue
                ratio = other.samples_per_s / point.throughput_samples_per_s  # times, inverted
                low, high = (end or point.step_time_s for end in (point.low_s, point.high_s))
                inside = low <= point.step_time_s / ratio <= high
                found.append((ratio - 1, inside))
    return found


def main(series: Sequence[str]) -> int:
    """Print the errors by series and network, and by network; 1 where a target is missed."""
    points = [one for name in series for one in predictions(name)]
    console = Console(width=110)
    whole, _ = table("by series", points, lambda one: f"{one.series}, {one.kind}")
    kinds, missed = table("by network", points, lambda one: one.kind)
    files, _ = table("by scenario", points, lambda one: f"{one.scenario}, {one.kind}")
    for one in (files, whole, kinds):
        console.print(one)
    for pattern in ("*resnet50.yaml", "*bert*.yaml") if "lambda" in series else ():
        errors = scaled(pattern)
        mean, inside = np.mean(np.abs(np.array(errors)), axis=0)
        worst = max((error for error, _ in errors), key=abs)
        said = f"mean error {mean:.1%}, worst {worst:+.1%}, inside 90 %: {inside:.0%}"
        console.print(f"one GPU scaled from another, {pattern}: {len(errors)} pairs, {said}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or SERIES))
