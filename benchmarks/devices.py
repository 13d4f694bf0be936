"""How well catalogue devices alone predict measured steps, and fits of an architecture's figures.

python -m benchmarks.devices [--fit | --record]

Each row of ``scenarios/validation`` is a time of one device: the steps of ``compute: measured``,
and MPT's rows of 8 GPUs with samples of many lengths, whose communication is neglected. It is
predicted by the kernels of the model on the catalogue's device, without any row. ``layers`` and
``torch`` are the kernels that are charged (``compute.kernels``). ``--fit`` fits the figures of an
architecture to its rows, then without one source or one kind of model, and predicts what was left
out. Rows of one source, device, model and precision count as one.

``--record`` predicts the eager steps of ``records/h200-1gpu``: by the catalogue's device alone, and
with the machine's host, whose time per operator comes from the first step of ResNet-50. The figures
of misaligned products and of batch norms in bfloat16 come from this record, all others do not.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

import simdp
from benchmarks.table import machine
from simdp.cluster.hardware import DEVICES, Device
from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.profile_times import operators_of
from simdp.engine.compute.roofline import Roofline
from simdp.files import read_yaml
from simdp.probes.zoo import scenario_precision
from simdp.scenario import checked
from simdp.scenario.root import Scenario
from simdp.studies.validate.folds import items_of
from simdp.units import parse
from simdp.workload import Workload
from simdp.workload.compute import BACKWARD_OPERATORS, FromMeasurements, FromRoofline
from simdp.workload.lifetimes import recomputed
from simdp.workload.step_costs import time_beside_compute

FOLDER = Path(__file__).parents[1] / "scenarios" / "validation"

ARCHITECTURES = {
    "A100": ("a100-",),
    "H100": ("h100-",),
    "GA102": ("rtx3090", "rtxa6000"),
    "Ada": ("rtx4090", "rtx6000ada"),
    "V100": ("v100-",),
}
TF32 = ("lambda", "nvidia")
"""Sources whose containers allow TF32 in all products."""

EAGER_LLAMA = 2.3
"""Torchtitan's shorter steps [s] are compiled, or in 8 bits, which the scenario does not set."""

FITTED = {
    "float16": 0.6,
    "tfloat32": 0.8,
    "float32": 0.7,
    "forward": 0.45,
    "backward": 0.25,
    "memory": 0.5,
}
"""Figures to fit, and where the fit starts; forward and backward are those of fused attention."""

PULL = 0.03
"""Weight of the start, which decides where no row does."""


class MeasuredStep(NamedTuple):
    """A step of one device, of one micro-batch; ``seconds`` are measured."""

    source: str
    kind: str
    model: str
    device: str
    precision: str
    microbatch: int
    seconds: float
    share: float
    times: CallTimes
    workload: Workload
    again: frozenset[int]

    @property
    def group(self) -> tuple[str, ...]:
        """Rows that count as one."""
        return self.source, self.device, self.model, self.precision


def main() -> int:
    """Print the tables; the exit status is 0."""
    if "--record" in sys.argv:
        show_record()
        return 0
    for kernels in ("layers", "torch"):
        rows = list(measured_steps(kernels))
        show_catalogue(kernels, rows)
        if "--fit" in sys.argv:
            show_fits(kernels, rows)
    return 0


def measured_steps(kernels: str) -> Iterator[MeasuredStep]:
    """Rows that the catalogue's devices can predict."""
    seen = set[tuple[object, ...]]()
    for file in sorted(FOLDER.glob("*/*.yaml")):
        scenario = simdp.load_scenario(file)
        if scenario.measured is None or not scenario.measured.points:
            continue
        for item in items_of({file: scenario}):
            made = item.made
            if item.is_table or made.workload.model.timed or made.workload.host.operator:
                continue
            device, given = made.cluster.devices()[0], made.workload.compute
            if made.workload.compile or device.name not in DEVICES.names():
                continue
            high = file.parent.name in TF32
            compute = FromRoofline(
                kernels=kernels, float32_matmul_precision="high" if high else "highest"
            )
            workload = made.workload.model_copy(update={"compute": compute})
            if not workload.graph.calls or len(workload.graph.calls) < 3:
                continue
            steps: Sequence[tuple[int, float]]
            again, share = frozenset[int](), 1.0
            if isinstance(given, FromMeasurements):
                steps = [(point.microbatch, point.step_time) for point in given.points]
            elif item.point.throughput and file.name.endswith("_lengths.yaml"):
                size, parts = int(made.workload.microbatch or 1), int(str(made.workload.grad_accum))
                whole = made.cluster.world_size * size * parts / item.point.throughput
                steps, share = [(size, whole / parts)], 1 / made.cluster.world_size / parts
                again = frozenset(call for run in recomputed(workload) for call in run.again)
            else:
                continue
            for size, seconds in steps:
                key = (file.name, device.name, size, seconds, workload.precision)
                if key in seen:
                    continue
                seen.add(key)
                if file.parent.name == "torchtitan" and size == 2 and seconds < EAGER_LLAMA:
                    continue
                convolves = any("conv" in call.layer.kind for call in workload.graph.calls)
                yield MeasuredStep(
                    file.parent.name,
                    "convolutional" if convolves else "attention",
                    workload.model.kind,
                    str(device.name),
                    workload.precision.kind,
                    size,
                    seconds,
                    share,
                    CallTimes(workload, Roofline([device])),
                    workload,
                    again,
                )


def predicted(row: MeasuredStep, device: Device) -> float:
    """Time of a step by the kernels of its model [s]."""
    row.times.roofline = Roofline([device])
    batch = row.microbatch
    passes = {name: row.times.kernels(name, 0, batch) for name in ("forward", "backward")}
    total = sum(float((waits + busy).sum()) for _, waits, busy in passes.values())
    if row.again:
        calls, waits, busy = passes["forward"]
        total += float((waits + busy)[np.isin(calls, sorted(row.again))].sum())
    return total + row.share * time_beside_compute(row.workload, batch, device)


def device_of(name: str, figures: dict[str, float] | None = None) -> Device:
    """A catalogue device, with fitted figures in place of its own."""
    device = Device(**DEVICES.figures(name))
    if figures is None:
        return device
    by_dtype = {"bfloat16": "float16", "float64": "float32", "float8": "float16"}
    changed = {
        "efficiency": {name: figures[by_dtype.get(name, name)] for name in device.peak},
        "memory_efficiency": figures["memory"],
        "stream_efficiency": 0.85,
        "flash_efficiency": {"forward": figures["forward"], "backward": figures["backward"]},
    }
    return Device(**{**DEVICES.figures(name), **changed})


def errors(rows: Sequence[MeasuredStep], device: Callable[[str], Device]) -> dict[str, list[float]]:
    """Mean error of each group, by source and kind."""
    known = {name: device(name) for name in {row.device for row in rows}}
    groups = defaultdict[tuple[str, ...], list[float]](list)
    for row in rows:
        ratio = predicted(row, known[row.device]) / row.seconds
        groups[(f"{row.source}, {row.kind}", *row.group)].append(abs(float(np.log(ratio))))
    found = defaultdict[str, list[float]](list)
    for (name, *_), each in groups.items():
        found[name].append(float(np.mean(each)))
    return found


def of_architecture(rows: Sequence[MeasuredStep], starts: tuple[str, ...]) -> list[MeasuredStep]:
    """Rows on devices of an architecture."""
    return [row for row in rows if row.device.startswith(starts)]


def show_catalogue(kernels: str, rows: Sequence[MeasuredStep]) -> None:
    """Print the errors of the catalogue's figures."""
    table = Table(title=f"catalogue devices alone, kernels: {kernels}", caption=machine())
    for column in ("architecture", "source, kind", "groups", "mean error"):
        table.add_column(column, justify="left" if "e, k" in column else "right")
    for name, starts in ARCHITECTURES.items():
        for source, each in sorted(errors(of_architecture(rows, starts), device_of).items()):
            table.add_row(name, source, str(len(each)), f"{100 * np.mean(each):.1f} %")
    Console(highlight=False, width=110).print(table)


def fit(rows: Sequence[MeasuredStep]) -> dict[str, float]:
    """Figures that predict some rows best, groups of rows weighing the same."""
    counts = defaultdict[tuple[str, ...], int](int)
    for row in rows:
        counts[row.group] += 1
    weights = np.array([counts[row.group] ** -0.5 for row in rows])
    start = np.array(list(FITTED.values()))
    logit = np.log(start / (1 - start))

    def figures(at: np.ndarray) -> dict[str, float]:
        return dict(zip(FITTED, (1 / (1 + np.exp(-at))).tolist(), strict=True))

    def residuals(at: np.ndarray) -> np.ndarray:
        values = figures(at)
        known = {name: device_of(name, values) for name in {row.device for row in rows}}
        ratios = [predicted(row, known[row.device]) / row.seconds for row in rows]
        return np.concatenate([np.log(ratios) * weights, PULL * (at - logit)])

    found = least_squares(residuals, logit, loss="soft_l1", f_scale=0.1)
    return figures(found.x)


def show_fits(kernels: str, rows: Sequence[MeasuredStep]) -> None:
    """Print fits of all rows, and of those without a source or a kind."""
    table = Table(title=f"fits of an architecture, kernels: {kernels}", caption=machine())
    for column in ("architecture", "left out", *FITTED, "mean error"):
        table.add_column(column, justify="right")
    for name, starts in ARCHITECTURES.items():
        own = of_architecture(rows, starts)
        whole = [("nothing", own, own)]
        parts = sorted({row.source for row in own} | {row.kind for row in own})
        for part in parts:
            left = [row for row in own if part in (row.source, row.kind)]
            rest = [row for row in own if part not in (row.source, row.kind)]
            whole += [(part, rest, left)] * bool(rest and left)
        for part, used, tried in whole:
            values = fit(used)

            def made(device: str, values: dict[str, float] = values) -> Device:
                return device_of(device, values)

            each = [error for found in errors(tried, made).values() for error in found]
            figures = [f"{value:.2f}" for value in values.values()]
            table.add_row(name, part, *figures, f"{100 * np.mean(each):.1f} %")
    Console(highlight=False, width=110).print(table)


RECORD = Path(__file__).parents[1] / "records" / "h200-1gpu"
RECORDED_ON = "h200-sxm5-141gb"
OPTIMIZERS = {"mlp": "sgd", "resnet50": "sgd"}
"""Of the recorded steps; AdamW for all other models."""


class RecordedStep(NamedTuple):
    """An eager step of a record; ``host`` is what its launches take on an idle device [s]."""

    model: str
    precision: str
    microbatch: int
    seconds: float
    host: float
    memory: float
    settings: dict[str, Any]

    def scenario(self, operator: float | None) -> Scenario:
        """The step on the catalogue's device, with a host's time per operator [s]."""
        high = "high" if self.precision == "tf32" else "highest"
        compute = {"kind": "roofline", "kernels": "torch", "float32_matmul_precision": high}
        workload: dict[str, Any] = {
            "model": self.settings,
            "optimizer": OPTIMIZERS.get(self.model, "adamw"),
            "microbatch": self.microbatch,
            "steps": 2,
            "compute": compute,
            "precision": scenario_precision(self.precision),
        }
        if "sequence_length" in self.settings:
            workload["attention"] = "flash"
        if operator is not None:
            workload["host"] = {"operator": f"{operator * 1e6} us"}
        cluster = {"world_size": 1, "device": RECORDED_ON}
        raw = {"cluster": cluster, "workload": workload, "strategy": "single", "numerics": False}
        return checked(raw, Path())


def recorded_steps() -> Iterator[RecordedStep]:
    """Eager steps of the record, a model after the other."""
    for file in sorted(RECORD.glob("*/steps.yaml")):
        for name, model in read_yaml(file)["models"].items():
            for precision, found in model["precisions"].items():
                for step in found["steps"]:
                    times = (step["step_time"]["p50"], step["host"]["step"])
                    yield RecordedStep(
                        name,
                        precision,
                        step["microbatch"],
                        *(parse(text, "time") for text in times),
                        parse(step["memory"]["allocated"], "data size"),
                        model["model"],
                    )


def show_record() -> None:
    """Print the record's steps and what the catalogue's device predicts."""
    rows = list(recorded_steps())
    first = next(row for row in rows if row.model == "resnet50" and row.microbatch == 1)
    kernels = operators_of(
        first.scenario(None).workload, len(first.scenario(None).workload.graph.calls)
    )
    operator = first.host / ((1 + BACKWARD_OPERATORS) * float(kernels.sum()))
    title = f"one H200, {operator * 1e6:.0f} us per operator of forward"
    table = Table(title=title, caption=machine())
    texts = ("model", "precision")
    for column in (*texts, "batch", "step", "host", "device alone", "with host", "memory"):
        table.add_column(column, justify="left" if column in texts else "right")
    for row in rows:
        each = [simdp.simulate(row.scenario(one)).metrics for one in (None, operator)]
        ratios = [metrics["step_time_s"] / row.seconds - 1 for metrics in each]
        memory = max(each[0]["peak_memory_bytes"]) / row.memory - 1
        table.add_row(
            row.model,
            row.precision,
            str(row.microbatch),
            f"{row.seconds * 1e3:.1f} ms",
            f"{row.host * 1e3:.1f} ms",
            *(f"{100 * ratio:+.0f} %" for ratio in ratios),
            f"{100 * memory:+.0f} %",
        )
    Console(highlight=False, width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
