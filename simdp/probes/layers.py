"""Measures layers.

Writes a CSV of each model, micro-batch and precision, which ``model: {kind: profile}`` reads, and
``steps.yaml``: the machine, and each model's ``compute: measured``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simdp.probes import arguments, zoo
from simdp.probes.arguments import progress, require_torch, run
from simdp.probes.figures import (
    LayerTimes,
    median,
    milliseconds,
    percentiles,
)
from simdp.probes.record import measured_compute, write_text, write_yaml

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
    arguments.check_device(args.device, "gloo", 1, args.precision)
    models = zoo.chosen(args.models, args.set)
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

    from simdp.probes.device import Stepper
    from simdp.probes.traces import record_trace

    points, notes = [], []
    for microbatch in args.microbatch:
        stepper = Stepper(settings, microbatch, precision, args.optimizer, device)
        model = stepper.module if mode == "eager" else torch.compile(stepper.module)
        times = stepper.run(model, args.warm_up, args.steps)
        points.append((microbatch, {part: [value] for part, value in times._asdict().items()}))
        note = {"microbatch": microbatch, "step_time": percentiles(times.step)}
        about = f"{name}, {mode}, {precision}, micro-batches of {microbatch}, on {args.device}"
        stem = f"{name}_{precision}_{microbatch}"
        if mode == "eager":
            note |= _of_layers(args, stepper, stem, about)
        notes.append(note)
        if args.traces is not None:
            record_trace(stepper, model, args.traces / f"{stem}_{mode}")
        progress(f"{about}: {milliseconds(median(times.step))}")
    return {"steps": notes, "compute": measured_compute(points)}


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
