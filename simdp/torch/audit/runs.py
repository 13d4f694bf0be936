"""Runs a script at several numbers of ranks, each run in a process of its own."""

from __future__ import annotations

import os
import pickle
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simdp.distributed.launch import find
from simdp.errors import DeadlockError, SimdpError
from simdp.torch.audit.changes import Change
from simdp.torch.audit.records import RankRecord, RunRecord

PER_NODE = 8
"""Devices of a virtual node."""


@dataclass(frozen=True)
class Program:
    """What runs on every rank: a script or module, or a function without arguments."""

    name: str
    file: str | None
    code: Any  # ScriptCode, or the function


@dataclass
class Run:
    """One run: its ranks, arguments and changes."""

    world_size: int
    arguments: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    changes: Sequence[Change] = ()
    max_steps: int = 24
    stop_at: tuple[int, Path] | None = None  # step, and the checkpoint that has to exist
    state_at: int | None = None
    keep: dict[str, Callable[[], Any]] = field(default_factory=dict)  # results of changes


class Runner:
    """Runs a program; ``seconds`` are CPU seconds of all runs so far, ``count`` their number."""

    def __init__(self, program: Program, workers: int | None = None) -> None:
        self.program = program
        self.workers = (
            workers or min(len(os.sched_getaffinity(0)), 2)
            if hasattr(os, "sched_getaffinity")
            else 1
        )
        self.seconds, self.count = 0.0, 0

    def run(self, runs: Sequence[Run]) -> list[RunRecord]:
        """Run them, as many at a time as there are workers; results in the same order."""
        found: list[RunRecord | None] = [None] * len(runs)
        with tempfile.TemporaryDirectory(prefix="simdp-audit-") as folder:
            waiting, running = list(enumerate(runs)), dict[int, tuple[int, Path]]()
            while waiting or running:
                while waiting and len(running) < self.workers:
                    number, run = waiting.pop(0)
                    path = Path(folder) / f"{number}"
                    running[self._start(run, path)] = number, path
                pid, status = os.wait()
                if pid not in running:
                    continue
                number, path = running.pop(pid)
                found[number] = _read(path, runs[number], status)
        records = [record for record in found if record is not None]
        self.count += len(records)
        self.seconds += sum(record.seconds for record in records)
        return records

    def _start(self, run: Run, path: Path) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            output = os.open(f"{path}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            record = play(self.program, run)
            with Path(f"{path}.pickle").open("wb") as stream:
                pickle.dump(record, stream)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)


def _read(path: Path, run: Run, status: int) -> RunRecord:
    text = Path(f"{path}.txt")
    output = text.read_text(errors="replace") if text.exists() else ""
    pickled = Path(f"{path}.pickle")
    if status or not pickled.exists():
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise SimdpError(f"audit: a run on {run.world_size} ranks ended by itself: {last[0]}")
    with pickled.open("rb") as stream:
        record: RunRecord = pickle.load(stream)
    record.output = output
    return record


def play(program: Program, run: Run) -> RunRecord:
    """Run a program in this process, and return what was recorded."""
    import torch

    from simdp.torch import launch
    from simdp.torch.audit.observer import Observer, exists
    from simdp.torch.ranks import PARTS

    torch.set_num_threads(1)
    stop = None
    if run.stop_at is not None:
        step, path = run.stop_at

        def stop(done: int) -> bool:
            return done >= step and exists(path)

    observer = Observer(run.max_steps, stop, run.state_at)
    where = find(Path("dgx-a100"), run.world_size, min(run.world_size, PER_NODE))
    begun = resource.getrusage(resource.RUSAGE_SELF)
    error, kind = "", ""
    waiting: tuple[str, ...] = ()
    PARTS.extend([*run.changes, observer])
    try:
        _start(launch, program, run, where)
    except DeadlockError as raised:
        error, kind, waiting = str(raised), "deadlock", tuple(raised.waiting)
    except SimdpError as raised:
        error = str(raised)
        own = " raised: exitcode" in error or " left with " in error
        kind = "rank" if own else "mismatch"
    finally:
        del PARTS[-1 - len(run.changes) :]
    ended = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    ranks = [observer.records.get(rank, RankRecord()) for rank in range(run.world_size)]
    record = RunRecord(run.world_size, ranks, error, kind, waiting, seconds)
    record.stopped_at = observer.stopped_at
    record.extra = {name: call() for name, call in run.keep.items()}
    if run.state_at is not None:
        record.extra["states"] = observer.states
    return record


def _start(launch: Any, program: Program, run: Run, where: Any) -> None:
    environ = dict(run.environ)
    count = min(run.world_size, PER_NODE)
    if callable(program.code):
        launch.play(
            program.name,
            where,
            lambda rank: program.code(),
            [program.name],
            0,
            environ,
            None,
            count,
        )
        return
    launch.run(program.code, where, list(run.arguments), 0, environ, (), count)
