"""Measures layers.

Writes a CSV of each model, micro-batch and precision, which ``model: {kind: profile}`` reads, and
``steps.yaml``: the machine, and each model's ``compute: measured``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from simdp.files import check_outputs
from simdp.probes import arguments, zoo
from simdp.probes.arguments import ProbeError, require_torch, run
from simdp.probes.record import LayersRecord, write_record

# Layers -------------------------------------------------------------------------------------------

MODES = ("eager", "compiled")


def parser() -> arguments.Parser:
    """Return the probe's arguments."""
    options = arguments.Parser(prog="simdp.probes.layers", description=__doc__)
    arguments.add_device(options)
    arguments.add_precision(options)
    arguments.add_models(options)
    options.add_argument("--microbatch", type=arguments.listed(arguments.positive), default=[1, 8])
    arguments.add_optimizer(options)
    options.add_argument("--warm-up", type=arguments.positive, default=5)
    options.add_argument("--steps", type=arguments.positive, default=20)
    modes = arguments.one_of("mode", MODES)
    options.add_argument(
        "--modes",
        type=arguments.listed(modes),
        default=["eager"],
        help="eager, compiled: as it is, and under torch.compile, whose layers have no times",
    )
    arguments.add_traces(options)
    options.add_argument(
        "--memory", type=Path, help="folder: snapshots of the CUDA allocator, for memory_viz"
    )
    options.add_argument("--out", type=Path, default=Path("probe_layers"), help="folder")
    return options


def main(argv: Sequence[str]) -> None:
    """Run the measurement.

    Raises
    ------
    ProbeError
        If arguments are incompatible, or torch is missing.
    """
    args = parser().parse_args(argv)
    check_outputs(args.out / "steps.yaml")
    check_outputs(*(folder and folder / "rank" for folder in (args.memory, args.traces)))
    arguments.check_device(args.device, "gloo", 1, args.precision)
    chosen = zoo.chosen(args.models, args.set)
    if args.memory is not None and args.device == "cpu":
        raise ProbeError("--memory: a CPU's allocator keeps no history; write --device cuda.")
    require_torch()
    import torch

    from simdp.probes import device as devices
    from simdp.probes.group import RankPlacement, check_devices
    from simdp.probes.layer_times import measure_model

    check_devices(1, RankPlacement("gloo", args.device, 1, args.threads))
    torch.set_num_threads(args.threads)
    device = devices.first_device(args.device)
    models = {name: measure_model(args, name, model, device) for name, model in chosen.items()}
    record = LayersRecord(
        machine=devices.machine(device, args.threads),
        device=devices.figures(device, args.precision),
        optimizer=args.optimizer,
        models=models,
    )
    write_record(args.out / "steps.yaml", record, "layers")


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
