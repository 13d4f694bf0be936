"""Measures steps of DistributedDataParallel on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from simdp.probes import device as devices
from simdp.probes.arguments import Collect, progress
from simdp.probes.device import Stepper
from simdp.probes.figures import StepSeconds, undisturbed
from simdp.probes.group import RankContext
from simdp.probes.record import DDPTimes, ModelTimes, RunTimes
from simdp.probes.traces import record_trace
from simdp.probes.zoo import Settings

LOGGED_STEPS = 3
"""Steps timed by DDP, in addition to those timed here."""

BASELINE, DDP, SKIPPED, NO_SYNC = "baseline", "ddp", "skipped", "no_sync"
"""Without DDP; with it; with it, but without sending buckets; and under ``no_sync``."""


class DDPProbe(NamedTuple):
    """Measurement settings."""

    models: dict[str, Settings]  # settings by name
    world_sizes: list[int]  # numbers of ranks
    bucket_caps: list[int | None]  # in MiB; None is torch's default
    microbatch: dict[str, int]  # samples per rank, by model
    precision: str  # as `Stepper` takes them
    optimizer: str  # as `Stepper` takes them
    # warm_up, steps, rounds: untimed and timed steps of every kind in every round
    warm_up: int
    steps: int
    rounds: int
    # share of the cores that other programs may use without the round being repeated
    max_foreign: float
    tries: int  # maximum repetitions of a round
    # folder of Kineto traces of DDP's steps, a subfolder for every world size and bucket cap
    traces: Path | None
    collect: Collect  # receives rank 0's `DDPTimes`


def measure(here: RankContext, job: DDPProbe) -> None:
    """Measure all models with all world sizes and bucket caps, and pass on the results.

    The kinds of steps alternate, round by round, so that other load on the machine affects all of
    them equally.
    """
    threads = torch.get_num_threads()
    machine = devices.machine(here.device, threads)
    figures = devices.figures(here.device, [job.precision]) if here.rank == 0 else None
    models: dict[str, ModelTimes] = {}
    here.meet()
    groups = {n: dist.new_group(list(range(n))) for n in job.world_sizes}
    for name, settings in job.models.items():
        runs: list[RunTimes] = []
        for n in job.world_sizes:
            runs += _of_world_size(here, job, name, settings, n, groups[n])
            here.meet()
        module = _stepper(here, job, name, settings).module
        parameters = [p.numel() for p in module.parameters()]
        models[name] = ModelTimes(settings, len(parameters), 4 * sum(parameters), runs)
    if figures is not None:
        job.collect(DDPTimes(machine, figures, models))


def _stepper(here: RankContext, job: DDPProbe, name: str, settings: Settings) -> Stepper:
    return Stepper(settings, job.microbatch[name], job.precision, job.optimizer, here.device)


class _Kind(NamedTuple):
    """A kind of step, and the times of its rounds."""

    stepper: Stepper
    cap: int | None
    variant: str
    model: nn.Module
    around: Callable[[], AbstractContextManager[object]]
    rounds: list[StepSeconds]
    foreign: list[float]


def _of_world_size(
    here: RankContext,
    job: DDPProbe,
    name: str,
    settings: Settings,
    n: int,
    group: dist.ProcessGroup,
) -> list[RunTimes]:
    """Run one model on n ranks; the other ranks only wait."""
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
        of_ranks = zip(*(rounds[number] for rounds in every), strict=True)
        rounds = [StepSeconds.joined(ranks) for ranks in of_ranks]
        run = RunTimes(n, kind.variant, kind.cap, kind.foreign, rounds, logged[number])
        runs.append(run)
        if here.rank == 0:
            cap = "default" if kind.cap is None else f"{kind.cap} MiB"
            middle = f"{run.median * 1e3:.3f} ms"
            progress(f"{name}: {n} ranks, {kind.variant}, buckets {cap}: {middle}")
    return runs


def _round(job: DDPProbe, kind: _Kind | None) -> StepSeconds | None:
    """Run some steps of one kind, on a rank that takes part."""
    if kind is None:
        return None
    return kind.stepper.run(kind.model, job.warm_up, job.steps, kind.around)


def _trace(kinds: list[_Kind], folder: Path, rank: int) -> None:
    """Record traces of all kinds of DDP's steps, one after the other."""
    for kind in kinds:
        if kind.variant == DDP:
            cap = "default" if kind.cap is None else f"{kind.cap}MiB"
            record_trace(kind.stepper, kind.model, folder / cap, rank, kind.around)


def _kinds(
    here: RankContext, job: DDPProbe, name: str, settings: Settings, group: dist.ProcessGroup
) -> Iterator[_Kind]:
    """Yield all kinds of steps of one world size.

    Each wrapper has a separate model, since its hooks run in every backward of the model.
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


def _wrapped(
    stepper: Stepper, group: dist.ProcessGroup, cap: int | None
) -> DistributedDataParallel:
    """Return the model under DDP; without an explicit cap if torch's default is requested."""
    limits = {} if cap is None else {"bucket_cap_mb": cap}
    ids = [stepper.device.index] if stepper.device.type == "cuda" else None
    return DistributedDataParallel(stepper.module, device_ids=ids, process_group=group, **limits)


def _logged(kind: _Kind) -> dict[str, str | int | float]:
    """Return DDP's logging data after a few steps; plain text and numbers."""
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
