"""Runs processes that a script spawns as ranks, and rejects unsupported ways to start one.

``torch.multiprocessing.spawn``, and processes that are started one by one and then joined, form a
separate program: its ranks are the processes, on the cluster of the script that starts them, which
resumes when they have ended. Any other way to create a process is refused.
"""

from __future__ import annotations

import io
import multiprocessing.process
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing as mp

from simdp.distributed.launch import ProgramResult
from simdp.errors import ProgramError
from simdp.files import read_text
from simdp.results.trace import Trace
from simdp.torch.ranks import MAIN, PARTS, Patches, Rank, RankLocal, asking, become, current

KEY, STARTED = "spawned", "started"
"""Keys of a rank's started programs, and of its processes that have not run yet."""

SPAWNED = "by script"
"""Key of a rank that a script has started."""

Play = Callable[[Rank, str, int, Callable[[Rank], Any]], ProgramResult]
"""Runs a program of several ranks on behalf of a rank."""

START = "torch.multiprocessing.spawn"

OWN_RANKS = "start a script that makes its own ranks"
"""Part of the message to a script that starts its ranks itself, but was started on several."""


class Context:
    """Result of ``spawn`` with ``join=False``: the processes have already ended."""

    def __init__(self, count: int) -> None:
        self._pids = [os.getpid() + 1 + number for number in range(count)]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Return that all have ended."""
        return True

    def pids(self) -> list[int]:
        """Return unique process numbers."""
        return self._pids


class SentCopies:
    """Arguments for processes, each of which gets a copy; the memory of tensors is shared."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._shared: list[Any] = []
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream)
        pickler.persistent_id = self._kept  # type: ignore[method-assign]
        try:
            pickler.dump(tuple(values))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ProgramError(f"{START}: args cannot be sent to a process: {error}.") from None
        self._text = stream.getvalue()

    def _kept(self, value: Any) -> int | None:
        if not isinstance(value, torch.storage.TypedStorage | torch.UntypedStorage):
            return None
        self._shared.append(value)
        return len(self._shared) - 1

    def made(self) -> tuple[Any, ...]:
        """Return a copy."""
        unpickler = pickle.Unpickler(io.BytesIO(self._text))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        return unpickler.load()


def in_own_main(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function of the module that the rank imports, as a spawned process does.

    Only functions of the script found by name are replaced.
    """
    main = sys.modules[MAIN]
    path = getattr(main, "__file__", None)
    if path is None or fn.__module__ != MAIN or "." in fn.__qualname__:
        return fn
    own = ModuleType("__mp_main__")
    own.__file__, own.__spec__ = path, main.__spec__
    own.__dict__["__builtins__"] = __builtins__
    sys.modules[MAIN] = sys.modules[own.__name__] = own
    text = read_text(Path(path), "a script is Python")
    exec(compile(text, path, "exec", dont_inherit=True), own.__dict__)
    function = getattr(own, fn.__qualname__, fn)
    return function if callable(function) else fn


class Spawning(RankLocal):
    """Functions that start processes; ``play`` runs the started ones."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def patch(self, patches: Patches) -> None:
        kind: Any = multiprocessing.process.BaseProcess
        patches.wrap(kind, "start", _start, current)
        patches.wrap(kind, "join", self._join)
        patches.wrap(kind, "is_alive", _is_alive)
        patches.put(kind, "exitcode", property(partial(_exitcode, kind.exitcode)))
        for name in ("fork", "forkpty"):
            patches.wrap(os, name, partial(_refuse_fork, f"os.{name}()"), current)
        doors = dict.fromkeys(("spawn", "start_processes"), self._spawn)
        patches.update(mp.spawn.__globals__, doors)
        for name, door in doors.items():
            patches.put(mp, name, door)

    def end(self, rank: Rank) -> None:
        rank.state.pop(STARTED, None)

    def _spawn(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        **more: Any,
    ) -> Context | None:
        """Run ``fn(i, *args)`` on ``nprocs`` ranks, each a process."""
        rank = _alone(START)
        if not isinstance(nprocs, int) or nprocs < 1:
            raise ProgramError(f"{START}: nprocs is {nprocs!r}; give a number >= 1.")
        name = getattr(fn, "__name__", "spawn")
        sent = SentCopies(args)
        fresh = start_method != "fork"

        def body(child: Rank) -> Any:
            own = in_own_main(fn) if fresh else fn
            return own(child.rank, *sent.made())

        self._nested(rank, name, nprocs, body)
        return None if join else Context(nprocs)

    def run_started(self, rank: Rank) -> None:
        """Run the processes that a rank has started and not joined yet."""
        waiting = rank.state.pop(STARTED, [])
        if not waiting:
            return
        self._nested(rank, "processes", len(waiting), lambda child: waiting[child.rank].run())
        for process in waiting:
            process._ended = True

    def _nested(self, rank: Rank, name: str, count: int, body: Callable[[Rank], Any]) -> None:
        """Run ranks while the one that starts them waits."""
        begun = rank.settle()
        for part in reversed(PARTS):
            part.leave(rank)
        try:
            result = self._play(rank, name, count, body)
        finally:
            become(rank)
            for part in PARTS:
                part.enter(rank)
        rank.state.setdefault(KEY, []).append((begun, result))
        rank.runtime.pass_until(rank.rank, begun + result.simulated_s)

    def _join(self, real: Any, process: Any, timeout: float | None = None) -> None:
        """Run the ranks that were started as processes."""
        if hasattr(process, "_ended"):
            self.run_started(asking("multiprocessing.Process.join"))
        else:
            real(process, timeout)


def _start(rank: Rank, real: Any, process: Any) -> None:
    _alone(f"multiprocessing.Process({process.name!r}).start")
    process._ended = False
    rank.state.setdefault(STARTED, []).append(process)


def _is_alive(real: Any, process: Any) -> bool:
    return not process._ended if hasattr(process, "_ended") else bool(real(process))


def _exitcode(real: Any, process: Any) -> int | None:
    if hasattr(process, "_ended"):
        return 0 if process._ended else None
    return real.__get__(process)


def _alone(call: str) -> Rank:
    """Return the rank that starts others, which must be the only one."""
    rank = asking(call)
    world_size = rank.runtime.cluster.world_size
    local_size = rank.runtime.cluster.local_size
    if world_size > local_size == 1:
        raise ProgramError(
            f"{call}: the script runs on {world_size} nodes, and processes that each of them "
            "starts cannot meet here; let torchrun start them (--nproc-per-node, and RANK and "
            "LOCAL_RANK in the script), or run one node with --nnodes 1."
        )
    if world_size > 1:
        raise ProgramError(
            f"{call}: the script runs on {world_size} ranks already, which are threads and start "
            f"no processes; {OWN_RANKS} with --nproc-per-node 1."
        )
    return rank


def _refuse_fork(call: str, rank: Rank, real: Any) -> int:
    raise ProgramError(
        f"{call}: a rank is a thread, and cannot be doubled; start ranks with torchrun or {START}."
    )


def together(
    result: ProgramResult, spawned: Sequence[tuple[float, ProgramResult]]
) -> ProgramResult:
    """Concatenate the results of a script and of the programs that it spawned.

    ``spawned`` are the start [s] and the result of each.
    """
    blocks, names = list(result.trace.blocks), list(result.trace.names)
    largest = result
    for begun, program in spawned:
        for block in program.trace.blocks:
            blocks.append(
                block._replace(
                    start=block.start + begun,
                    end=block.end + begun,
                    asked=block.asked + begun,
                    name=block.name + len(names),
                )
            )
        names += program.trace.names
        if program.world_size >= largest.world_size:
            largest = program
            clocks = program.clocks + begun
    where, trace = largest.where._replace(name=result.where.name), Trace(blocks, names)
    return ProgramResult(
        result.name, where, result.seed, largest.values, clocks, trace, result.stopped
    )
