"""Profiler traces of the probes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO

from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from simdp.files import write_whole
from simdp.probes.device import Stepper, clock

WARM_UP, TRACED_STEPS = 2, 4
"""Discarded and kept steps under the profiler; the end of the last one is cut off in some versions
of torch, so that there is one more than three."""


def record_trace(
    stepper: Stepper,
    model: nn.Module,
    folder: Path,
    rank: int = 0,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Path:
    """Run a few steps under torch's profiler, save its trace, and return the file.

    Steps under the profiler are slower than the timed ones, so none of these counts as a time.

    Parameters
    ----------
    stepper : Stepper
        Model of the steps.
    model : torch.nn.Module
        Its module, or the wrapper.
    folder : Path
        Only for one file per rank, as HolisticTraceAnalysis requires.
    rank : int
        Of this process.
    around : callable
        As for `Stepper.run`.
    """
    activities = [ProfilerActivity.CPU]
    if stepper.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    watch = clock(stepper.device)
    kept = schedule(wait=0, warmup=WARM_UP, active=TRACED_STEPS, repeat=1)
    with profile(activities=activities, schedule=kept, record_shapes=True) as profiler:
        for _ in range(WARM_UP + TRACED_STEPS):
            with around():
                stepper.step(model, watch)
            profiler.step()
    watch.seconds()
    path = folder / f"rank{rank}.pt.trace.json.gz"
    write_whole(path, partial(_export, profiler))
    return path


def _export(profiler: profile, stream: BinaryIO) -> None:
    """Write the trace through a temporary folder, since torch only writes to files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        profiler.export_chrome_trace(str(path))
        stream.write(path.read_bytes())
