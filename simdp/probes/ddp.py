"""Measures DDP steps.

Starts its ranks itself, or runs under torchrun, on one node or several. Writes one record: the
machine, the times, DDP's own logging data, and for each model a scenario with ``measured:``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from simdp.probes import arguments, networks
from simdp.probes import device as devices
from simdp.probes.arguments import ProbeError, RankContext, handover, require_torch, run, say
from simdp.probes.device import Stepper, StepSeconds, median, undisturbed
from simdp.probes.networks import Settings
from simdp.probes.record import About, ddp_record, record_trace, write_yaml

# Ddp ----------------------------------------------------------------------------------------------


def parser() -> arguments.Parser:
    """The probe's arguments."""
    found = arguments.Parser(prog="simdp.probes.ddp", description=__doc__)
    arguments.add_ranks(found)
    arguments.add_precision(found)
    found.add_argument("--models", type=arguments.listed(str), default=["mlp", "transformer"])
    found.add_argument("--set", action="append", default=[], help="resnet50.image_size=64")
    found.add_argument(
        "--bucket-caps",
        type=arguments.listed(arguments.bucket_cap),
        default=[1, 25],
        help="in MiB, as bucket_cap_mb; or default",
    )
    found.add_argument(
        "--microbatch",
        type=arguments.listed(arguments.positive, repeats=True),
        default=[8],
        help="samples per rank: one for all models, or one for each",
    )
    optimizers = arguments.one_of("optimizer", ("sgd", "adam", "adamw"))
    found.add_argument("--optimizer", type=optimizers, default="sgd")
    found.add_argument("--warm-up", type=arguments.positive, default=5)
    found.add_argument("--steps", type=arguments.positive, default=20, help="timed, per round")
    arguments.add_quiet(found)
    found.add_argument("--rounds", type=arguments.positive, default=5)
    found.add_argument("--table", help="log of simdp.probes.collectives, for the scenarios")
    found.add_argument("--out", type=Path, default=Path("probe_ddp.yaml"), help="the record")
    arguments.add_traces(found)
    found.add_argument("--scenarios", type=Path, help="folder: write each model's scenario too")
    return found


def main(given: Sequence[str]) -> None:
    """Measure as the arguments say.

    Raises
    ------
    ProbeError
        If arguments do not fit together, torch is missing, or a rank fails.
    """
    args = parser().parse_args(given)
    if len(args.precision) > 1:
        raise ProbeError("--precision: a record is of one precision; run the probe once for each.")
    arguments.check_device(args.device, args.backend, args.ranks_per_device, args.precision)
    models = networks.chosen(args.models, args.set)
    microbatch = _per_model(args.microbatch, list(models))
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
    found = _measure(args, models, about)
    if found is None:  # another rank has it
        return
    noted = {
        key: value for key, value in vars(args).items() if key not in ("out", "scenarios", "traces")
    }
    record = ddp_record(found, about, noted)
    write_yaml(args.out, record, "Written by python -m simdp.probes.ddp.")
    say(f"record: {args.out}")
    for name, scenario in record["scenarios"].items() if args.scenarios else ():
        path = args.scenarios / f"probe_{name}.yaml"
        write_yaml(path, scenario, f"How long does a step of {name} take here under DDP?")
        say(f"scenario: {path}")


def _per_model(sizes: Sequence[int], names: Sequence[str]) -> dict[str, int]:
    if len(sizes) not in (1, len(names)):
        raise ProbeError(
            f"--microbatch: {len(sizes)} sizes for {len(names)} models; give one, or one for each."
        )
    return dict(zip(names, [*sizes] * (len(names) if len(sizes) == 1 else 1), strict=True))


def _measure(
    args: Any, models: dict[str, networks.Settings], about: About
) -> dict[str, Any] | None:
    """Run the ranks; what rank 0 has found, in the process that has rank 0 or started it."""
    from simdp.probes.arguments import RankPlacement, launch

    place = RankPlacement(args.backend, args.device, args.ranks_per_device, args.threads)
    with handover() as (collect, read):
        job = DDPProbe(
            models=models,
            world_sizes=sorted(args.world_sizes),
            bucket_caps=args.bucket_caps,
            microbatch=about.microbatch,
            precision=about.precision,
            optimizer=args.optimizer,
            warm_up=args.warm_up,
            steps=args.steps,
            rounds=args.rounds,
            max_foreign=args.max_foreign,
            tries=args.tries,
            traces=args.traces,
            collect=collect,
        )
        launch(measure, job, max(args.world_sizes), place)
        return read()


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))


# Ddp runs -----------------------------------------------------------------------------------------

LOGGED_STEPS = 3
"""Steps of which DDP keeps times of its own, apart from those that are timed here."""

BASELINE, DDP, SKIPPED, NO_SYNC = "baseline", "ddp", "skipped", "no_sync"
"""Without DDP; with it; with it, but no bucket is sent; and under ``no_sync``."""


class DDPProbe(NamedTuple):
    """What is measured.

    Attributes
    ----------
    models : dict
        Settings by name.
    world_sizes : list of int
        Numbers of ranks.
    bucket_caps : list of int or None
        In MiB; None is torch's default.
    microbatch : dict of str to int
        Samples per rank, by model.
    precision, optimizer : str
        As `Stepper` takes them.
    warm_up, steps, rounds : int
        Steps that are not timed, and that are, of every kind in every round.
    max_foreign : float
        Share of the cores that other programs may use; a round that they disturb is repeated.
    tries : int
        How often a round is taken at most.
    traces : Path or None
        Where Kineto traces of DDP's steps go, a folder for every world size and bucket cap.
    collect : callable
        Takes what rank 0 has found.
    """

    models: dict[str, Settings]
    world_sizes: list[int]
    bucket_caps: list[int | None]
    microbatch: dict[str, int]
    precision: str
    optimizer: str
    warm_up: int
    steps: int
    rounds: int
    max_foreign: float
    tries: int
    traces: Path | None
    collect: Callable[[dict[str, Any]], None]


def measure(here: RankContext, job: DDPProbe) -> None:
    """Measure all models with all world sizes and bucket caps, and hand over what was found.

    The kinds of steps take turns, round by round, so that what else goes on in the machine meets
    all of them alike.
    """
    threads = torch.get_num_threads()
    found: dict[str, Any] = {"machine": devices.machine(here.device, threads), "models": {}}
    if here.rank == 0:
        found["device"] = devices.figures(here.device, [job.precision])
    here.meet()
    groups = {n: dist.new_group(list(range(n))) for n in job.world_sizes}
    for name, settings in job.models.items():
        runs: list[dict[str, Any]] = []
        for n in job.world_sizes:
            mine = _of_world_size(here, job, name, settings, n, groups[n])
            runs += mine
            here.meet()
        parameters = [p.numel() for p in _module(here, job, name, settings).parameters()]
        found["models"][name] = {
            "model": settings,
            "gradients": len(parameters),
            "gradient_bytes": 4 * sum(parameters),
            "runs": runs,
        }
    if here.rank == 0:
        job.collect(found)


def _module(here: RankContext, job: DDPProbe, name: str, settings: Settings) -> Any:
    return _stepper(here, job, name, settings).module


def _stepper(here: RankContext, job: DDPProbe, name: str, settings: Settings) -> Stepper:
    return Stepper(settings, job.microbatch[name], job.precision, job.optimizer, here.device)


class _Kind(NamedTuple):
    """A kind of step, and what all its rounds took."""

    stepper: Stepper
    cap: int | None
    variant: str
    model: Any
    around: Callable[[], AbstractContextManager[Any]]
    rounds: list[StepSeconds]
    foreign: list[float]


def _of_world_size(
    here: RankContext, job: DDPProbe, name: str, settings: Settings, n: int, group: Any
) -> list[dict[str, Any]]:
    """Runs of one model on n ranks; the other ranks only wait."""
    kinds = list(_kinds(here, job, name, settings, group)) if here.rank < n else []
    for _ in range(job.rounds):
        for number in range(1 + 3 * len(job.bucket_caps)):
            kind = kinds[number] if kinds else None
            times, foreign = undisturbed(
                here.gathered, partial(_round, job, kind), job.max_foreign, job.tries
            )
            if kind and times:
                kind.rounds.append(times)
                kind.foreign.append(foreign)
    logged = [_logged(kind) for kind in kinds]
    if job.traces is not None:
        _trace(kinds, job.traces / f"{name}_{n}_ranks", here.rank)
    every = here.gathered([kind.rounds for kind in kinds])[:n]
    runs = []
    for number, kind in enumerate(kinds):
        of_ranks = [rounds[number] for rounds in every]
        runs.append(_run(n, kind, of_ranks) | {"logging": logged[number]})
        if here.rank == 0:
            middle = median([t for rounds in of_ranks for times in rounds for t in times.step])
            cap = "default" if kind.cap is None else f"{kind.cap} MiB"
            say(f"{name}: {n} ranks, {kind.variant}, buckets {cap}: {middle * 1e3:.3f} ms")
    return runs


def _round(job: DDPProbe, kind: _Kind | None) -> StepSeconds | None:
    """Some steps of one kind, on a rank that takes part."""
    if kind is None:
        return None
    return kind.stepper.run(kind.model, job.warm_up, job.steps, kind.around)


def _trace(kinds: list[_Kind], folder: Path, rank: int) -> None:
    """Keep traces of all kinds of steps that are DDP's, one after the other."""
    for kind in kinds:
        if kind.variant == DDP:
            cap = "default" if kind.cap is None else f"{kind.cap}MiB"
            record_trace(kind.stepper, kind.model, folder / cap, rank, kind.around)


def _kinds(
    here: RankContext, job: DDPProbe, name: str, settings: Settings, group: Any
) -> Iterator[_Kind]:
    """All kinds of steps of one world size.

    Each wrapper has a model of its own, since its hooks run in every backward of the model.
    """
    alone = _stepper(here, job, name, settings)
    yield _Kind(alone, None, BASELINE, alone.module, nullcontext, [], [])
    for cap in job.bucket_caps:
        stepper = _stepper(here, job, name, settings)
        synced = _wrapped(stepper, group, cap)
        yield _Kind(stepper, cap, DDP, synced, nullcontext, [], [])
        yield _Kind(stepper, cap, NO_SYNC, synced, synced.no_sync, [], [])
        stepper = _stepper(here, job, name, settings)
        skipping = _wrapped(stepper, group, cap)
        skipping.register_comm_hook(None, noop_hook)
        yield _Kind(stepper, cap, SKIPPED, skipping, nullcontext, [], [])


def _wrapped(stepper: Stepper, group: Any, cap: int | None) -> Any:
    """The model under DDP; without a cap of its own where torch's default is asked for."""
    limits = {} if cap is None else {"bucket_cap_mb": cap}
    ids = [stepper.device.index] if stepper.device.type == "cuda" else None
    return DistributedDataParallel(stepper.module, device_ids=ids, process_group=group, **limits)


def _run(n: int, kind: _Kind, of_ranks: list[list[StepSeconds]]) -> dict[str, Any]:
    """What one kind of step took, in seconds: all ranks together, round by round."""
    rounds = list(zip(*of_ranks, strict=True))

    def joined(part: str) -> list[list[float]]:
        return [[t for times in ranks for t in getattr(times, part)] for ranks in rounds]

    return {
        "world_size": n,
        "variant": kind.variant,
        "bucket_cap": kind.cap,
        "foreign": kind.foreign,
        **{part: joined(part) for part in StepSeconds._fields},
    }


def _logged(kind: _Kind) -> dict[str, Any]:
    """What DDP says of itself after a few steps; plain text and numbers."""
    if kind.variant != DDP:
        return {}
    kind.model._set_ddp_runtime_logging_sample_rate(1)
    kind.stepper.run(kind.model, 0, LOGGED_STEPS)
    data = kind.model._get_ddp_logging_data()
    return {
        key: data[key]
        for key in sorted(data)
        if isinstance(data[key], str | int | float)
        and data[key] not in ("", "N/A")
        and not key.endswith(("_start", "_end"))  # instants of the wall clock
    }
