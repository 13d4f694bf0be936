"""Remarks: what a trace lacks, as sentences for a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from simdp.traces.collectives import Collectives
from simdp.traces.gathering import Gathered
from simdp.traces.kernels import SYNC, Kernels
from simdp.traces.plain import mapping
from simdp.traces.rank_trace import Steps, TraceGroup

SAMPLED = 0.9
"""A file holds a sample if it lacks more than a tenth of the host events that torch numbered."""


class Noticed(NamedTuple):
    """What was noticed of a file.

    Attributes
    ----------
    gathered : Gathered
        Its events.
    head : mapping
        What stands beside them.
    without_device : bool
        Whether no device did anything.
    cut : bool
        Whether the file was already said to lack something.
    num_launched, num_runtime : int
        Kernels whose launch is in the trace; and calls of the device's runtime.
    num_processes : int
        Processes with operators.
    """

    gathered: Gathered
    head: Mapping[str, Any]
    without_device: bool
    cut: bool
    num_launched: int
    num_runtime: int
    num_processes: int


def remarks_of(
    noticed: Noticed,
    steps: Steps,
    kernels: Kernels,
    collectives: Collectives,
    groups: Mapping[str, TraceGroup],
) -> list[str]:
    """Say what is missing, sampled or odd."""
    said = [*_of_file(noticed), *_of_kernels(noticed, kernels)]
    if not len(steps):
        said.append(
            "It has no ProfilerStep, since it was taken without a schedule: times are of the "
            "whole trace, not of a step."
        )
    if not len(collectives):
        said.append("It holds no collective, and so says nothing of communication.")
    elif unknown := int((collectives.num_elements < 0).sum()):
        said.append(
            f"The sizes of {unknown} of {len(collectives)} collectives are not in it: take the "
            "trace with record_shapes=True, or with torch 2.3 or later."
        )
    cut = sum(group.ranks is None for group in groups.values())
    if cut:
        said.append(f"The lists of ranks of {cut} process groups are cut or missing.")
    return said


def _of_file(noticed: Noticed) -> Iterator[str]:
    gathered = noticed.gathered
    if gathered.num_odd:
        yield (
            f"{gathered.num_odd} events have no finite times, or end before they begin, and "
            "were left out."
        )
    if not noticed.cut and gathered.num_numbered < SAMPLED * gathered.numbered_to:
        share = gathered.num_numbered / gathered.numbered_to
        yield (
            f"It is a sample: of {gathered.numbered_to:,} host events that torch numbered it "
            f"holds {gathered.num_numbered:,} ({share:.1%}), so that busy times and shares are "
            "lower bounds."
        )
    if noticed.num_processes > 1:
        yield (
            f"{noticed.num_processes} processes call operators in it, as if several ranks were "
            "put together: give one file per rank."
        )
    shown = mapping(noticed.head.get("otherData"))
    for what in ("ranks", "steps", "transfers"):
        words = str(shown.get(what, ""))
        if words and not _is_all(words):
            yield f"It shows a part of the {what}: {words}."
    if gathered.others and not shown:
        common = ", ".join(name for name, _ in gathered.others.most_common(3))
        number = sum(gathered.others.values())
        yield f"{number} events of unknown categories ({common}) were passed over."


def _is_all(words: str) -> bool:
    """Tell whether ``"0 ... 7 of 8"`` are all."""
    which, _, number = words.rpartition(" of ")
    return number.isdecimal() and which in ("0", f"0 ... {int(number) - 1}") and number != "0"


def _of_kernels(noticed: Noticed, kernels: Kernels) -> Iterator[str]:
    if noticed.without_device:
        yield (
            "No device is in it: the outermost operators of each thread stand in for kernels, "
            "and the events of the backend for those of collectives."
        )
        if any(note.name.startswith("nccl:") for note in noticed.gathered.notes):
            yield (
                "It was taken on a machine with GPUs, but without them: profile with "
                "ProfilerActivity.CUDA as well."
            )
        elif noticed.num_runtime:
            yield (
                f"The host called a device {noticed.num_runtime:,} times, but what the device did "
                "was not recorded: the operators say how long the host took."
            )
        return
    real = kernels.kind != SYNC
    lost = int((np.isnan(kernels.launched) & real).sum())
    if noticed.num_launched and lost:
        yield (
            f"{lost} of {int(real.sum())} kernels were launched before the trace began, or "
            "their launches are missing: they belong to no step."
        )
