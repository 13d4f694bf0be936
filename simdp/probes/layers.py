"""Measures layers.

Writes a CSV of each model, micro-batch and precision, which ``model: {kind: profile}`` reads, and
``steps.yaml``: the machine, and each model's ``compute: measured``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simdp.files import check_outputs
from simdp.probes import arguments, zoo
from simdp.probes.arguments import ProbeError, progress, require_torch, run
from simdp.probes.figures import (
    LayerTimes,
    median,
    milliseconds,
    percentiles,
)
from simdp.probes.record import PARTS, measured_compute, write_text, write_yaml

# Layers -------------------------------------------------------------------------------------------

MODES = ("eager", "compiled")

COLUMNS = ("name", "forward_us", "weight_grad_us", "input_grad_us", "gradient_bytes")


def parser() -> arguments.Parser:
    """Return the probe's arguments."""
    found = arguments.Parser(prog="simdp.probes.layers", description=__doc__)
    arguments.add_device(found)
    arguments.add_precision(found)
    arguments.add_models(found)
    found.add_argument("--microbatch", type=arguments.listed(arguments.positive), default=[1, 8])
    arguments.add_optimizer(found)
    found.add_argument("--warm-up", type=arguments.positive, default=5)
    found.add_argument("--steps", type=arguments.positive, default=20)
    modes = arguments.one_of("mode", MODES)
    found.add_argument(
        "--modes",
        type=arguments.listed(modes),
        default=["eager"],
        help="eager, compiled: as it is, and under torch.compile, whose layers have no times",
    )
    arguments.add_traces(found)
    found.add_argument(
        "--memory", type=Path, help="folder: snapshots of the CUDA allocator, for memory_viz"
    )
    found.add_argument("--out", type=Path, default=Path("probe_layers"), help="folder")
    return found


def main(given: Sequence[str]) -> None:
    """Run the measurement.

    Raises
    ------
    ProbeError
        If arguments are incompatible, or torch is missing.
    """
    args = parser().parse_args(given)
    check_outputs(args.out / "steps.yaml")
    check_outputs(*(folder and folder / "rank" for folder in (args.memory, args.traces)))
    arguments.check_device(args.device, "gloo", 1, args.precision)
    models = zoo.chosen(args.models, args.set)
    if args.memory is not None and args.device == "cpu":
        raise ProbeError("--memory: a CPU's allocator keeps no history; write --device cuda.")
    require_torch()
    import torch

    from simdp.probes import device as devices
    from simdp.probes.group import RankPlacement, check_devices

    check_devices(1, RankPlacement("gloo", args.device, 1, args.threads))
    torch.set_num_threads(args.threads)
    device = torch.device(args.device, *([0] if args.device == "cuda" else []))
    made = {name: _of_model(args, name, settings, device) for name, settings in models.items()}
    record = {
        "probe": "layers",
        "machine": devices.machine(device, args.threads),
        "device": devices.figures(device, args.precision),
        "optimizer": args.optimizer,
        "models": made,
    }
    path = args.out / "steps.yaml"
    write_yaml(path, record, "Written by python -m simdp.probes.layers.")
    progress(f"record: {path}")


def _of_model(args: Any, name: str, settings: zoo.Settings, device: Any) -> dict[str, Any]:
    """Measure one model in every mode, precision and micro-batch; return its part of the record."""
    found: dict[str, Any] = {"model": settings}
    for mode in args.modes:
        part = {
            precision: _of_precision(args, name, settings, device, mode, precision)
            for precision in args.precision
        }
        found["precisions" if mode == "eager" else mode] = part
    return found


def _of_precision(
    args: Any, name: str, settings: zoo.Settings, device: Any, mode: str, precision: str
) -> dict[str, Any]:
    """Measure one model at every micro-batch."""
    import torch

    from simdp.probes.device import free

    points: list[tuple[int, dict[str, Any]]] = []
    notes: list[dict[str, Any]] = []
    for microbatch in args.microbatch:
        about = f"{name}, {mode}, {precision}, micro-batches of {microbatch}, on {args.device}"
        stem = f"{name}_{precision}_{microbatch}"
        try:
            note, times = _of_microbatch(
                args, settings, device, mode, precision, microbatch, stem, about
            )
            points.append((microbatch, {part: [value] for part, value in times.items()}))
            progress(f"{about}: {milliseconds(median(times['step']))}")
        except torch.OutOfMemoryError:
            note = {"out_of_memory": True}
            progress(f"{about}: does not fit into the device's memory")
        free(device)
        notes.append({"microbatch": microbatch} | note)
    return {"steps": notes} | ({"compute": measured_compute(points)} if points else {})


def _of_microbatch(
    args: Any,
    settings: zoo.Settings,
    device: Any,
    mode: str,
    precision: str,
    microbatch: int,
    stem: str,
    about: str,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return one micro-batch's part of the record, and the times of its steps [s]."""
    from simdp.probes.device import Stepper
    from simdp.probes.traces import record_trace

    stepper = Stepper(settings, microbatch, precision, args.optimizer, device)
    model = stepper.module if mode == "eager" else _compiled(stepper.module)
    times = stepper.run(model, args.warm_up, args.steps)._asdict()
    note: dict[str, Any] = {"step_time": percentiles(times["step"])}
    note |= {part: milliseconds(median(times[part])) for part in PARTS}
    if device.type == "cuda":
        note |= _of_device(args, stepper, model, f"{stem}_{mode}")
    if mode == "eager":
        note |= _of_layers(args, stepper, stem, about)
    if args.traces is not None:
        record_trace(stepper, model, args.traces / f"{stem}_{mode}")
    return note, times


def _compiled(module: Any) -> Any:
    """Return a compiled module, for this micro-batch alone."""
    import torch

    torch._dynamo.reset()  # else a second micro-batch is compiled for any size
    return torch.compile(module, dynamic=False)


def _of_device(args: Any, stepper: Any, model: Any, stem: str) -> dict[str, Any]:
    """Measure what only a GPU has: the host's time for a step, and the allocator's memory."""
    issued = stepper.issue(model, args.steps)
    path = args.memory and args.memory / f"{stem}.pickle"
    return {
        "host": {part: milliseconds(median(times)) for part, times in issued._asdict().items()},
        "memory": stepper.memory(model, path),
    }


def _of_layers(args: Any, stepper: Any, stem: str, about: str) -> dict[str, Any]:
    """Time the layers of a model, write their profile, and print their sums."""
    from simdp.probes.layer_times import measure

    layers = measure(stepper, args.warm_up, args.steps)
    write_text(args.out / f"{stem}.csv", csv(layers, about))
    whole = sum(layers.forward) + sum(layers.weight_grad) + sum(layers.input_grad)
    return {"sum_of_layers": milliseconds(whole), "profile": f"{stem}.csv"}


def csv(layers: LayerTimes, about: str) -> str:
    """Format layer times for the model ``profile``, with ``about`` as a comment."""
    lines = [
        f"# {about}; what has no parameters is in the line of the layer before it",
        ",".join(COLUMNS),
    ]
    for name, forward, to_weight, to_input, nbytes in zip(*layers, strict=True):
        times = (f"{1e6 * seconds:.3f}" for seconds in (forward, to_weight, to_input))
        lines.append(",".join([name, *times, str(nbytes)]))
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
