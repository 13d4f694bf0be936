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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing as mp

from simdp.distributed.launch import ProgramResult
from simdp.errors import ProgramError
from simdp.files import read_text
from simdp.results.trace import Trace
from simdp.torch.ranks import PARTS, Rank, RankLocal, asking, become, current

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
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or fn.__module__ != "__main__" or "." in fn.__qualname__:
        return fn
    own = ModuleType("__mp_main__")
    own.__file__, own.__spec__ = path, main.__spec__
    own.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = sys.modules["__mp_main__"] = own
    text = read_text(Path(path), "a script is Python")
    exec(compile(text, path, "exec", dont_inherit=True), own.__dict__)
    found = getattr(own, fn.__qualname__, fn)
    return found if callable(found) else fn


class Spawning(RankLocal):
    """Functions that start processes; ``play`` runs the started ones."""

    def __init__(self, play: Play) -> None:
        self._play = play

    @contextmanager
    def installed(self) -> Iterator[None]:
        kind: Any = multiprocessing.process.BaseProcess
        module: Any = mp
        inner: Any = mp.spawn.__globals__
        system: Any = os
        names = "start", "join", "is_alive", "exitcode"
        methods = {name: vars(kind)[name] for name in names}
        doors = {name: getattr(module, name) for name in ("spawn", "start_processes")}
        forks = {name: getattr(system, name) for name in ("fork", "forkpty")}
        kind.start, kind.join, kind.is_alive, kind.exitcode = self._methods(methods)
        for name, fork in forks.items():
            setattr(system, name, _guarded(fork, f"os.{name}()"))
        for name in doors:
            setattr(module, name, self._spawn)
            inner[name] = self._spawn
        try:
            yield
        finally:
            inner.update(doors)
            for name, door in doors.items():
                setattr(module, name, door)
            for name, fork in forks.items():
                setattr(system, name, fork)
            for name, method in methods.items():
                setattr(kind, name, method)

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

    def _methods(self, real: dict[str, Any]) -> tuple[Any, ...]:
        """Replace the methods of a process: started ranks run when they are joined."""

        def start(process: Any) -> None:
            if current() is None:
                real["start"](process)
                return
            rank = _alone(f"multiprocessing.Process({process.name!r}).start")
            process._ended = False
            rank.state.setdefault(STARTED, []).append(process)

        def join(process: Any, timeout: float | None = None) -> None:
            if hasattr(process, "_ended"):
                self.run_started(asking("multiprocessing.Process.join"))
            else:
                real["join"](process, timeout)

        def is_alive(process: Any) -> bool:
            if hasattr(process, "_ended"):
                return not process._ended
            return bool(real["is_alive"](process))

        def exitcode(process: Any) -> int | None:
            if hasattr(process, "_ended"):
                return 0 if process._ended else None
            return real["exitcode"].__get__(process)

        return start, join, is_alive, property(exitcode)


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


def _guarded(fork: Callable[[], int], call: str) -> Callable[[], int]:
    def guarded() -> int:
        if current() is None:
            return fork()
        raise ProgramError(
            f"{call}: a rank is a thread, and cannot be doubled; start ranks with torchrun or "
            f"{START}."
        )

    return guarded


def together(result: ProgramResult, spawned: Sequence[tuple[float, ProgramResult]]) -> Any:
    """Concatenate the results of a script and of the programs that it spawned.

    ``spawned`` are the start [s] and the result of each.
    """
    blocks, names = list(result.trace.blocks), list(result.trace.names)
    largest = result
    for begun, found in spawned:
        for block in found.trace.blocks:
            blocks.append(
                block._replace(
                    start=block.start + begun,
                    end=block.end + begun,
                    asked=block.asked + begun,
                    name=block.name + len(names),
                )
            )
        names += found.trace.names
        if found.world_size >= largest.world_size:
            largest = found
            clocks = found.clocks + begun
    values = largest.values
    where = largest.where._replace(name=result.where.name)
    trace = Trace(blocks, names)
    stopped = result.stopped
    return ProgramResult(result.name, where, result.seed, values, clocks, trace, stopped)
