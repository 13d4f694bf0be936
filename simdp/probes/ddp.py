"""Measures DDP steps.

Starts its ranks itself, or runs under torchrun, on one node or several. Writes one record: the
machine, the times, DDP's own logging data, and for each model a scenario with ``measured:``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from simdp.files import check_outputs
from simdp.probes import arguments, zoo
from simdp.probes.arguments import ProbeError, progress, require_torch, run
from simdp.probes.record import (
    About,
    DDPSettings,
    DDPTimes,
    ddp_record,
    write_record,
    write_yaml,
)

# Ddp ----------------------------------------------------------------------------------------------


def parser() -> arguments.Parser:
    """Return the probe's arguments."""
    options = arguments.Parser(prog="simdp.probes.ddp", description=__doc__)
    arguments.add_ranks(options)
    arguments.add_precision(options)
    arguments.add_models(options)
    options.add_argument(
        "--bucket-caps",
        type=arguments.listed(arguments.bucket_cap),
        default=[1, 25],
        help="in MiB, as bucket_cap_mb; or default",
    )
    options.add_argument(
        "--microbatch",
        type=arguments.listed(arguments.positive, repeats=True),
        default=[8],
        help="samples per rank: one for all models, or one for each",
    )
    arguments.add_optimizer(options)
    options.add_argument("--warm-up", type=arguments.positive, default=5)
    options.add_argument("--steps", type=arguments.positive, default=20, help="timed, per round")
    arguments.add_quiet(options)
    options.add_argument("--rounds", type=arguments.positive, default=5)
    options.add_argument("--table", help="log of simdp.probes.collectives, for the scenarios")
    options.add_argument("--out", type=Path, default=Path("probe_ddp.yaml"), help="the record")
    arguments.add_traces(options)
    options.add_argument("--scenarios", type=Path, help="folder: write each model's scenario too")
    return options


def main(argv: Sequence[str]) -> None:
    """Run the measurement.

    Raises
    ------
    ProbeError
        If arguments are incompatible, torch is missing, or a rank fails.
    """
    args = parser().parse_args(argv)
    check_outputs(args.out, args.scenarios and args.scenarios / "scenario.yaml")
    if len(args.precision) > 1:
        raise ProbeError("--precision: a record is of one precision; run the probe once for each.")
    arguments.check_device(args.device, args.backend, args.ranks_per_device, args.precision)
    models = zoo.chosen(args.models, args.set)
    microbatch = arguments.per_model(args.microbatch, list(models))
    require_torch()
    about = About(
        backend=args.backend,
        device=args.device,
        ranks_per_device=args.ranks_per_device,
        microbatch=microbatch,
        precision=args.precision[0],
        optimizer=args.optimizer,
        table=args.table,
    )
    times = _measure(args, models, about)
    if times is None:  # another rank has it
        return
    record = ddp_record(times, about, DDPSettings.model_validate(vars(args)))
    write_record(args.out, record, "ddp")
    for name, scenario in record.scenarios.items() if args.scenarios else ():
        path = args.scenarios / f"probe_{name}.yaml"
        write_yaml(path, scenario, f"How long does a step of {name} take here under DDP?")
        progress(f"scenario: {path}")


def _measure(args: Namespace, models: dict[str, zoo.Settings], about: About) -> DDPTimes | None:
    from simdp.probes.ddp_runs import DDPProbe, measure
    from simdp.probes.group import run_probe

    return run_probe(
        measure,
        DDPProbe,
        args,
        models=models,
        bucket_caps=args.bucket_caps,
        microbatch=about.microbatch,
        precision=about.precision,
        optimizer=about.optimizer,
        steps=args.steps,
        traces=args.traces,
    )


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
