"""Runs a script at several numbers of ranks, each run in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from typing import Any

from simdp.distributed.launch import BACKENDS, collectives_of, find
from simdp.errors import DeadlockError, SimdpError
from simdp.files import INSTALLED
from simdp.torch.audit.changes import Change
from simdp.torch.audit.records import RankRecord, RunRecord, ranks_counted
from simdp.torch.generators import PER_RANK
from simdp.torch.spawning import OWN_RANKS

PREFIX = "simdp-audit-"
"""Of folders for the files of an audit, such as the checkpoints that it asks a script for."""

MOST_WORKERS = 4
"""Runs at a time, for their memory."""

NO_DEVICE = "invalid device ordinal"
"""Part of torch's message to a script that uses more devices than there are ranks."""

MACHINE, PER_NODE = Path("dgx-a100"), 8
"""The virtual machine, and devices of a node."""


@dataclass(frozen=True)
class Program:
    """What runs on every rank: a script or module, or a function without arguments."""

    name: str
    file: str | None
    code: Any  # ScriptCode, or the function
    spawns: bool = False  # it starts its ranks itself, on all devices of one process
    devices: int = 0  # of a node; 0 for one of each rank


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


def checkpoints(path: Path) -> list[Path]:
    """Return the files and folders of a checkpoint; a script may add each rank's number to it."""
    return list(path.parent.glob(f"{path.name}*"))


def exists(path: Path) -> bool:
    """Return whether a checkpoint was written: a file, or a folder with one."""
    return any(written.is_file() or any(written.iterdir()) for written in checkpoints(path))


class Runner:
    """Runs a program; ``seconds`` are CPU seconds of all runs so far, ``count`` their number."""

    def __init__(self, program: Program, workers: int | None = None) -> None:
        self.program = program
        self.workers = workers or min(os.cpu_count() or 1, MOST_WORKERS)
        self.seconds, self.count, self._preloaded = 0.0, 0, False
        self.earlier: set[str] = set()  # files that a run read, and an earlier one had written
        with tempfile.NamedTemporaryFile(prefix=PREFIX) as first:
            self._begun = Path(first.name).stat().st_mtime

    def run(self, runs: Sequence[Run]) -> list[RunRecord]:
        """Run them, as many at a time as there are workers; results in the same order.

        Raises
        ------
        SimdpError
            If a process ends without a result, for example for lack of memory.
        """
        _load()
        by_number: dict[int, RunRecord] = {}
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            waiting = list(enumerate(runs))
            running: dict[Any, tuple[int, Path, Any]] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < self.workers:
                        number, run = waiting.pop(0)
                        path = Path(folder) / f"{number}"
                        process = FORK.Process(
                            target=_write, args=(self.program, run, path, self._begun)
                        )
                        process.start()
                        running[process.sentinel] = number, path, process
                    for sentinel in connection.wait(list(running)):
                        number, path, process = running.pop(sentinel)
                        process.join()
                        by_number[number] = _read(path, runs[number])
            finally:
                for _, _, process in running.values():
                    process.kill()
        records = [by_number[number] for number in range(len(runs))]
        reads = [record.extra.pop("reads", False) for record in records]
        self.earlier |= {path for record in records for path in record.extra.pop("earlier", ())}
        if self.workers > 1 and any(reads):
            self.workers = 1  # a run must not read what another one writes in the same folder
            return self._again(runs)
        self._preload(records)
        self.count += len(records)
        self.seconds += sum(record.seconds for record in records)
        changed = self._fitted(records)
        if changed == self.program:
            return records
        self.program = changed
        return self._again(runs)

    def _again(self, runs: Sequence[Run]) -> list[RunRecord]:
        """Run them once more, without the checkpoints at which runs were stopped."""
        for path in (path for run in runs if run.stop_at for path in checkpoints(run.stop_at[1])):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return self.run(runs)

    def _fitted(self, records: Sequence[RunRecord]) -> Program:
        """Return the program as it has to be started, by the errors of its runs."""
        errors = [record.error for record in records]
        return replace(
            self.program,
            spawns=self.program.spawns or any(OWN_RANKS in error for error in errors),
            devices=PER_NODE
            if any(NO_DEVICE in error for error in errors)
            else self.program.devices,
        )

    def _preload(self, records: Sequence[RunRecord]) -> None:
        """Import the installed packages that the program has imported, for all later runs."""
        names = [name for record in records for name in record.extra.pop("imported", ())]
        if not names or self._preloaded:
            return
        self._preloaded = True
        for name in dict.fromkeys(names):
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module(name)


@cache
def _load() -> None:
    """Load what every run needs, once, for all processes that are forked later."""
    from simdp.torch.cuda.queries import extensions

    extensions()
    import_module("simdp.collectives.auto")
    where = find(MACHINE, 2, 2)
    for backend in BACKENDS:  # the checks of whose algorithms are compiled
        collectives_of(backend, where.collectives)


def _imported(before: Collection[str]) -> list[str]:
    """Return the new modules of installed packages, except those of each rank."""
    files = {
        name: getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name not in before and name.partition(".")[0] not in LEFT
    }
    return [name for name, file in files.items() if file and INSTALLED & set(Path(file).parts)]


LEFT = PER_RANK | {"torch", "simdp"}
"""Packages that are not imported for later runs."""

FORK = multiprocessing.get_context("fork")
"""Processes that have imported torch already, and share the program."""


def _write(program: Program, run: Run, path: Path, begun: float) -> None:
    """Run a program in a process of its own; its output and record go to files."""
    output = os.open(f"{path}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with open(1, "w", closefd=False) as stdout, open(2, "w", closefd=False) as stderr:
        sys.stdout, sys.stderr = stdout, stderr
        warnings.simplefilter("default")  # the script's, whatever this process makes of them
        before, written = set(sys.modules), Written(begun, Path(f"{path}.txt"))
        sys.addaudithook(written.observe)
        record = play(program, run)
        record.extra |= {"reads": written.own, "earlier": written.earlier}
        record.extra |= {"imported": _imported(before)}
        with Path(f"{path}.pickle").open("wb") as stream:
            pickle.dump(record, stream)


class Written:
    """Observes whether a process reads files that were written in the course of an audit.

    Parameters
    ----------
    begun : float
        When the audit began [s].
    first : Path
        A file that was written when the process began.
    """

    def __init__(self, begun: float, first: Path) -> None:
        self.begun, self.now = begun, first.stat().st_mtime
        self.own = False  # whether it reads what was written since the process began
        self.earlier: list[str] = []  # files read that were written before that

    def observe(self, event: str, arguments: Any) -> None:
        """Receive an event of the interpreter: https://docs.python.org/3/library/audit_events.html."""
        if event != "open" or not isinstance(arguments[0], str):
            return
        path, mode, flags = arguments
        reads = not flags & (os.O_WRONLY | os.O_RDWR) if mode is None else "r" in str(mode)
        if not reads or path.endswith(".pyc") or path.startswith(SYSTEMS) or PREFIX in path:
            return
        with suppress(OSError):
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode) or status.st_mtime < self.begun:
                return
            if status.st_mtime >= self.now:
                self.own = True
            elif path not in self.earlier:
                self.earlier.append(path)


SYSTEMS = ("/proc/", "/sys/", "/dev/")
"""Folders whose files are none."""


def _read(path: Path, run: Run) -> RunRecord:
    text = Path(f"{path}.txt")
    output = text.read_text(errors="replace") if text.exists() else ""
    pickled = Path(f"{path}.pickle")
    try:
        with pickled.open("rb") as stream:
            record: RunRecord = pickle.load(stream)
    except (OSError, EOFError, pickle.UnpicklingError):
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise SimdpError(
            f"audit: a run on {ranks_counted(run.world_size)} ended without a result: {last[0]}"
        ) from None
    record.output = output
    return record


def play(program: Program, run: Run) -> RunRecord:
    """Run a program in this process, and return what was recorded."""
    import torch

    from simdp.torch import launch
    from simdp.torch.audit.observer import Observer
    from simdp.torch.ranks import PARTS

    torch.set_num_threads(1)
    stop = None
    if run.stop_at is not None:
        step, path = run.stop_at

        def stop(done: int) -> bool:
            return done >= step and exists(path)

    observer = Observer(run.max_steps, stop, run.state_at)
    count = 1 if program.spawns else run.world_size
    where = find(MACHINE, count, min(count, PER_NODE))
    begun = resource.getrusage(resource.RUSAGE_SELF)
    error, kind = "", ""
    PARTS.extend([*run.changes, observer])
    try:
        _start(launch, program, run, where)
    except DeadlockError as raised:
        error, kind = str(raised), "deadlock"
    except SimdpError as raised:
        error = str(raised)
        own = " raised: exitcode" in error or " left with " in error
        kind = "rank" if own else "mismatch"
    finally:
        del PARTS[-1 - len(run.changes) :]
    ended = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    ranks = [observer.records.get(rank, RankRecord()) for rank in range(run.world_size)]
    for rank in ranks:
        rank.divide_batches()
    record = RunRecord(run.world_size, ranks, error, kind, seconds)
    record.stopped_at, record.started = observer.stopped_at, observer.started
    record.extra = {name: call() for name, call in run.keep.items()}
    if run.state_at is not None:
        record.extra |= {"states": observer.states}
    return record


def _start(launch: Any, program: Program, run: Run, where: Any) -> None:
    environ = dict(run.environ)
    count = program.devices or min(run.world_size, PER_NODE)
    if program.spawns:
        count = run.world_size
    if callable(program.code):
        name, body = program.name, lambda rank: program.code()
        result = launch.play(name, where, body, [name], 0, environ, None, count)
        if result.values[0] is not None:
            sys.stdout.write(f"{result.values[0]}\n")  # as a script prints its metrics
        return
    code = program.code
    for change in run.changes:
        code = code._replace(code=change.rewritten(code.code))
    launch.run(code, where, list(run.arguments), 0, environ, (), count)
